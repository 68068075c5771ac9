// Streams and events of the emulated device.
#include "stream.h"

#include <chrono>
#include <exception>
#include <utility>

namespace emulated {

Stream::Stream(int32_t id, int32_t device) : id_(id), device_(device), thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  queued_.notify_all();
  thread_.join();
}

void Stream::push(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  queued_.notify_one();
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return tasks_.empty() && !busy_;
}

void Stream::drain() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return tasks_.empty() && !busy_; });
}

std::optional<std::string> Stream::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, std::nullopt);
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    queued_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    {
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      std::optional<std::string> failure;
      try {
        task();
      } catch (const std::exception& error) {
        failure = error.what();
      }
      lock.lock();
      if (failure && !failure_) failure_ = std::move(failure);
    }
    busy_ = false;
    done_.notify_all();
  }
}

uint64_t EventState::expect() {
  const std::lock_guard lock(mutex_);
  queued_.insert(++expected_);
  return expected_;
}

void EventState::complete(uint64_t number) {
  {
    const std::lock_guard lock(mutex_);
    queued_.erase(number);
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    if (number == expected_)
      microseconds_ = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  }
  changed_.notify_all();
}

uint64_t EventState::expected() {
  const std::lock_guard lock(mutex_);
  return expected_;
}

void EventState::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !queued_.contains(number); });
}

bool EventState::reached(uint64_t number) {
  const std::lock_guard lock(mutex_);
  return !queued_.contains(number);
}

uint64_t EventState::microseconds() {
  const std::lock_guard lock(mutex_);
  return microseconds_;
}

}  // namespace emulated
