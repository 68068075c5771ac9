// Vector clocks, timeline and counters of one core.
#include "twin/pipes.h"

#include <algorithm>

#include "twin/params.h"

namespace twin {

uint32_t Pipes::issue(int pipe) { return ++issued_[pipe]; }

void Pipes::retire(int pipe, const char* name, uint32_t repeats, uint64_t bytes, double cycles) {
  // The scalar unit issues everything: nothing starts before what it has waited for.
  const double start = std::max(clocks_[pipe].time, clocks_[PIPE_S].time);
  clocks_[pipe].time = start + cycles;
  events_.push_back({pipe, name, start, start + cycles, repeats, bytes});
  PipeTotals& total = totals_[pipe];
  total.instructions += 1;
  total.repeats += repeats;
  total.bytes += bytes;
  total.busy += cycles;
}

bool Pipes::before(int pipe, uint32_t number, int at) const {
  if (pipe == at && (pipe == PIPE_S || pipe == PIPE_V)) return true;
  return clocks_[at].complete[pipe] >= number;
}

Clock Pipes::snapshot(int pipe) const {
  Clock clock = clocks_[pipe];
  clock.complete[pipe] = issued_[pipe];
  return clock;
}

void Pipes::wait(int pipe, const Clock& flag) {
  for (int i = 0; i < kPipes; ++i)
    clocks_[pipe].complete[i] = std::max(clocks_[pipe].complete[i], flag.complete[i]);
  clocks_[pipe].time = std::max(clocks_[pipe].time, flag.time);
}

void Pipes::barrier_all() {
  std::array<Clock, kPipes> all;
  for (int i = 0; i < kPipes; ++i) all[i] = snapshot(i);
  for (int i = 0; i < kPipes; ++i)
    for (const Clock& clock : all) wait(i, clock);
}

}  // namespace twin
