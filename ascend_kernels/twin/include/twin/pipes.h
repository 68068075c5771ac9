// The pipes of one core: what has happened before what (vector clocks), when (cost model), and how much
// (counters).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace twin {

constexpr int kPipes = 4;  // PIPE_S, PIPE_V, PIPE_MTE2, PIPE_MTE3
constexpr const char* kPipeNames[kPipes] = {"S", "V", "MTE2", "MTE3"};

// How many instructions of each pipe are known to be complete, and from when.
struct Clock {
  std::array<uint32_t, kPipes> complete{};
  double time = 0;
};

struct Event {
  int pipe;
  const char* name;
  double start, end;  // cycles
  uint32_t repeats;
  uint64_t bytes;
};

struct PipeTotals {
  uint64_t instructions = 0, repeats = 0, bytes = 0;
  double busy = 0;  // cycles
};

class Pipes {
 public:
  // Starts the next instruction of a pipe; returns its number, from 1.
  uint32_t issue(int pipe);
  // Ends it: it ran for `cycles` from the moment that its pipe and the scalar unit were free.
  void retire(int pipe, const char* name, uint32_t repeats, uint64_t bytes, double cycles);

  // Whether instruction `number` of `pipe` is complete when the current one of `at` starts. Within S and V
  // instructions complete in order (the compiler inserts the V-V barriers: 核内同步/关键特性说明.md, table
  // 3); those of MTE2 and MTE3 do not without PipeBarrier (数据搬运/DataCopy（GM与UB连续数据搬运）.md).
  bool before(int pipe, uint32_t number, int at) const;

  Clock snapshot(int pipe) const;          // what SetFlag on `pipe` passes on
  void wait(int pipe, const Clock& flag);  // what WaitFlag on `pipe` takes over
  void barrier(int pipe) { wait(pipe, snapshot(pipe)); }
  void barrier_all();

  const std::vector<Event>& events() const { return events_; }
  const std::array<PipeTotals, kPipes>& totals() const { return totals_; }

 private:
  std::array<uint32_t, kPipes> issued_{};
  std::array<Clock, kPipes> clocks_{};
  std::array<PipeTotals, kPipes> totals_{};
  std::vector<Event> events_;
};

}  // namespace twin
