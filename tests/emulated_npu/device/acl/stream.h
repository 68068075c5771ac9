// Streams and events: a thread and a queue for each stream, so that what is queued runs later and in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

namespace emulated {

using Task = std::function<void()>;

class Stream {
 public:
  Stream(int32_t id, int32_t device);
  ~Stream();  // after what is queued has run

  int32_t id() const { return id_; }
  int32_t device() const { return device_; }

  void push(Task task);
  bool idle();
  void drain();

  // What a task threw since the last call, once. The stream runs on after a failed task, as ACL's do by
  // default.
  std::optional<std::string> take_failure();

 private:
  void run();

  const int32_t id_, device_;
  std::mutex mutex_;
  std::condition_variable queued_, done_;
  std::deque<Task> tasks_;
  bool busy_ = false, closing_ = false;
  std::optional<std::string> failure_;
  std::thread thread_;
};

// The state of an event, which queued tasks share: it may be destroyed before they run. Records are numbered,
// so that a wait is for the record before it and for no other one: another stream may run a later record
// first.
class EventState {
 public:
  uint64_t expect();               // a record has been queued: its number
  void complete(uint64_t number);  // it has run
  uint64_t expected();
  void wait(uint64_t number);
  bool reached(uint64_t number);
  uint64_t microseconds();  // when the last record ran; 0 if none has

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> queued_;
  uint64_t expected_ = 0, microseconds_ = 0;
};

struct Event {
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

}  // namespace emulated
