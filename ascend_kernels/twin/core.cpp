// Buffers, queues and flags of a core. Pages cited are under docs/zh/api/SIMD-API/基础API.
#include "twin/core.h"

#include <algorithm>

namespace twin {

namespace {
thread_local Core* current = nullptr;

constexpr int64_t kMaxBuffers = 64;  // 资源管理/TPipe/InitBuffer.md
constexpr int64_t kQueueEvents = 8;  // 资源管理/TQue/TQue简介.md: event ids, so TQue buffers, of one position
constexpr int64_t kLastFlag = 5;     // NPU架构版本2201.md: 6 and 7 are the system's
}  // namespace

Core& core() {
  if (!current) throw TwinError("Ascend C called outside a launch");
  return *current;
}

Core* exchange_core(Core* next) { return std::exchange(current, next); }

void fail(const char* rule, const std::string& detail) {
  const std::string where =
      current ? text(current->kernel, ", core ", current->index, ", ", current->call, ": ") : "";
  throw TwinError(text(where, rule, ": ", detail));
}

Core::Core(std::string name, int core_index, int cores, GlobalMemory& global)
    : kernel(std::move(name)),
      index(core_index),
      count(cores),
      ub(kUbBytes),
      defined(kUbBytes),
      global_(global) {}

int Core::add_buffer(AscendC::TPosition position, uint32_t bytes) {
  call = "InitBuffer";
  require(bytes > 0, "range", "a buffer of 0 bytes");
  bytes = (bytes + kBlock - 1) / kBlock * kBlock;  // InitBuffer.md: rounded up to 32 bytes
  require(bytes <= kUbBytes - used_, "capacity", bytes, " bytes asked for, ", kUbBytes - used_, " of ",
          kUbBytes, " bytes of UB left");
  require(int64_t(buffers_.size()) < kMaxBuffers, "capacity", "more than ", kMaxBuffers, " buffers");
  buffers_.push_back({position, used_, bytes});
  used_ += bytes;
  return int(buffers_.size()) - 1;
}

int Core::add_queue(int producer, int consumer, AscendC::TPosition position, int depth, int64_t buffers,
                    int64_t bytes) {
  call = "InitBuffer";
  require(buffers > 0 && bytes > 0, "range", "a queue of ", buffers, " buffers of ", bytes, " bytes");
  int64_t& events = events_[{producer, consumer}];
  events += buffers;
  require(events <= kQueueEvents, "events", events, " TQue buffers between ", kPipeNames[producer], " and ",
          kPipeNames[consumer], ", there are ", kQueueEvents, " events");
  Queue queue{producer, consumer, size_t(depth), {}};
  for (int64_t i = 0; i < buffers; ++i) {
    const int id = add_buffer(position, uint32_t(std::min<int64_t>(bytes, UINT32_MAX - kBlock)));
    buffers_[id].state = Buffer::State::kFree;
    buffers_[id].queue = int(queues_.size());
    queue.buffers.push_back(id);
  }
  queues_.push_back(queue);
  return int(queues_.size()) - 1;
}

Handle Core::buffer(int id) const {
  require(id >= 0, "use", "TBuf used before TPipe::InitBuffer");
  return {id, buffers_[id].generation, buffers_[id].begin};
}

// AllocTensor.md: contents are random; none free hangs the core. Buffers are taken in turn.
Handle Core::alloc(int id) {
  call = "AllocTensor";
  require(id >= 0, "queue", "TQue used before TPipe::InitBuffer");
  Queue& queue = queues_[id];
  Buffer& buffer = buffers_[queue.buffers[queue.cursor]];
  require(buffer.state == Buffer::State::kFree, "queue", "none of the queue's ", queue.buffers.size(),
          " buffers is free");
  if (buffer.freed) pipes.wait(queue.producer, *buffer.freed);
  buffer.freed.reset();
  buffer.state = Buffer::State::kAllocated;
  std::fill_n(defined.begin() + buffer.begin, buffer.bytes, 0);
  const int taken = queue.buffers[queue.cursor];
  queue.cursor = (queue.cursor + 1) % queue.buffers.size();
  return {taken, ++buffer.generation, buffer.begin};
}

Core::Buffer& Core::owned(int queue, const Handle& handle, Buffer::State state) {
  require(queue >= 0, "queue", "TQue used before TPipe::InitBuffer");
  require(handle.buffer >= 0, "queue", "an empty LocalTensor");
  Buffer& buffer = buffers_[handle.buffer];
  require(buffer.queue == queue, "queue", "the tensor is not of this queue");
  require(handle.generation == buffer.generation && buffer.state == state, "queue",
          buffer.state == Buffer::State::kQueued ? "the tensor is in the queue" : "the tensor was freed");
  require(handle.byte == buffer.begin, "queue", "not the tensor that AllocTensor gave, but a part of it");
  return buffer;
}

void Core::enqueue(int id, const Handle& handle) {
  call = "EnQue";
  Buffer& buffer = owned(id, handle, Buffer::State::kAllocated);
  Queue& queue = queues_[id];
  require(queue.waiting.size() < queue.depth, "queue", "more than depth = ", queue.depth,
          " tensors in the queue");  // TQue简介.md, "depth"
  require(!buffer.filled, "queue", "the tensor was in the queue before");
  buffer.filled = pipes.snapshot(queue.producer);
  buffer.state = Buffer::State::kQueued;
  queue.waiting.push_back(handle.buffer);
}

Handle Core::dequeue(int id) {
  call = "DeQue";
  require(id >= 0, "queue", "TQue used before TPipe::InitBuffer");
  Queue& queue = queues_[id];
  require(!queue.waiting.empty(), "queue", "the queue is empty");  // DeQue.md
  const int taken = queue.waiting.front();
  queue.waiting.pop_front();
  Buffer& buffer = buffers_[taken];
  pipes.wait(queue.consumer, *buffer.filled);
  buffer.state = Buffer::State::kAllocated;
  return {taken, buffer.generation, buffer.begin};
}

void Core::free(int id, const Handle& handle) {
  call = "FreeTensor";
  Buffer& buffer = owned(id, handle, Buffer::State::kAllocated);
  buffer.freed = pipes.snapshot(queues_[id].consumer);
  buffer.filled.reset();
  buffer.state = Buffer::State::kFree;
}

// 同步控制/核内同步/SetFlag-WaitFlag(ISASI).md
void Core::set_flag(int from, int to, int id) {
  call = "SetFlag";
  require(id >= 0 && id <= kLastFlag, "flag", "event id ", id, " is not in 0 .. ", kLastFlag);
  require(!events_.contains({from, to}) && !events_.contains({to, from}), "flag", "queues between ",
          kPipeNames[from], " and ", kPipeNames[to], " take event ids themselves: ", id, " may be theirs");
  const bool fresh = flags_[{from, to}].emplace(id, pipes.snapshot(from)).second;
  require(fresh, "flag", "event ", id, " is set already and was not waited for");
}

void Core::wait_flag(int from, int to, int id) {
  call = "WaitFlag";
  auto& flags = flags_[{from, to}];
  const auto flag = flags.find(id);
  require(flag != flags.end(), "flag", "nobody has set event ", id, ": the core would hang");
  pipes.wait(to, flag->second);
  flags.erase(flag);
}

void Core::barrier(int pipe) {
  call = "PipeBarrier";
  require(pipe != PIPE_S, "flag", "PIPE_S has no barrier");  // PipeBarrier(ISASI).md
  if (pipe == PIPE_ALL)
    pipes.barrier_all();
  else
    pipes.barrier(pipe);
}

uint32_t Core::room(const Handle& handle) const {
  require(handle.buffer >= 0, "use", "an empty LocalTensor");
  const Buffer& buffer = buffers_[handle.buffer];
  const bool held = buffer.state == Buffer::State::kFixed || buffer.state == Buffer::State::kAllocated;
  require(held && handle.generation == buffer.generation, "use",
          buffer.state == Buffer::State::kQueued ? "the tensor is in a queue" : "the tensor was freed");
  return buffer.begin + buffer.bytes - handle.byte;
}

AscendC::TPosition Core::position(const Handle& handle) const { return buffers_[handle.buffer].position; }

void Core::touch_bytes(uint32_t byte, uint32_t bytes, bool writes) {
  for (uint32_t block = byte / kBlock; block * kBlock < byte + bytes; ++block) touch(block, writes);
}

void Core::touch_global(const void* pointer, uint64_t bytes, bool writes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  GlobalRange& range = global_.find(address, bytes);
  range.access(address - range.begin(), bytes, index, pipe_, number_, writes, pipes);
}

void Core::finish() {
  call = "end of kernel";
  for (const Buffer& buffer : buffers_) {
    require(buffer.state != Buffer::State::kQueued, "leak", "a tensor was left in a queue");
    require(buffer.state != Buffer::State::kAllocated, "leak", "a tensor of a queue was not freed");
  }
  for (const auto& [pipes_of, flags] : flags_)
    require(flags.empty(), "leak", "an event from ", kPipeNames[pipes_of.first], " to ",
            kPipeNames[pipes_of.second], " was set and not waited for");
}

}  // namespace twin
