// One simulated vector core: its UB, buffers, queues and flags, and the rules about them.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twin/memory.h"
#include "twin/params.h"

namespace twin {

// A place in UB that a LocalTensor names: which buffer, which of its allocations, at which byte.
struct Handle {
  int buffer = -1;
  uint32_t generation = 0;
  uint32_t byte = 0;
};

class Core {
 public:
  Core(std::string kernel, int index, int count, GlobalMemory& global);

  // TPipe, TQue, TBuf. Positions are those of AscendC::TPosition.
  int add_buffer(AscendC::TPosition position, uint32_t bytes);  // a TBuf's
  int add_queue(int producer, int consumer, AscendC::TPosition position, int depth, int64_t buffers,
                int64_t bytes);
  Handle buffer(int index) const;
  Handle alloc(int queue);
  void enqueue(int queue, const Handle& handle);
  Handle dequeue(int queue);
  void free(int queue, const Handle& handle);

  // SetFlag, WaitFlag, PipeBarrier
  void set_flag(int from, int to, int id);
  void wait_flag(int from, int to, int id);
  void barrier(int pipe);

  // The bytes from the handle's place to the end of its buffer; fails if it may not be used now.
  uint32_t room(const Handle& handle) const;
  AscendC::TPosition position(const Handle& handle) const;

  // One instruction: begin, accesses, end.
  void begin(int pipe) { pipe_ = pipe, number_ = pipes.issue(pipe); }
  void touch(uint32_t block, bool writes) { shadow_.access(block, pipe_, number_, writes, pipes); }
  void touch_bytes(uint32_t byte, uint32_t bytes, bool writes);
  void touch_global(const void* address, uint64_t bytes, bool writes);
  void end(uint32_t repeats, uint64_t bytes, double cycles) {
    pipes.retire(pipe_, call, repeats, bytes, cycles);
    call = "between calls";
  }

  void finish();  // at the end of the kernel: nothing may be left in a queue, allocated, or flagged

  const std::string kernel;
  const int index, count;
  const char* call = "kernel";  // the API call being run, for messages
  Pipes pipes;
  std::vector<uint8_t> ub, defined;  // contents, and whether each byte was ever written

 private:
  struct Buffer {
    enum class State { kFixed, kFree, kAllocated, kQueued };
    AscendC::TPosition position;
    uint32_t begin, bytes;
    State state = State::kFixed;
    uint32_t generation = 0;
    int queue = -1;
    std::optional<Clock> filled{}, freed{};  // what EnQue and FreeTensor pass on
  };
  struct Queue {
    int producer, consumer;  // pipes
    size_t depth;
    std::vector<int> buffers;
    std::deque<int> waiting{};
    size_t cursor = 0;
  };
  Buffer& owned(int queue, const Handle& handle, Buffer::State state);

  GlobalMemory& global_;
  UbShadow shadow_;
  std::vector<Buffer> buffers_;
  std::vector<Queue> queues_;
  std::map<std::pair<int, int>, int64_t> events_;              // TQue buffers by (producer, consumer)
  std::map<std::pair<int, int>, std::map<int, Clock>> flags_;  // set and not yet waited for
  uint32_t used_ = 0;
  int pipe_ = 0;
  uint32_t number_ = 0;
};

// The core that runs on this thread; fails outside a launch.
Core& core();
// Makes `next` that core (or none) and returns the one before.
Core* exchange_core(Core* next);

}  // namespace twin
