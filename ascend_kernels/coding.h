// Device: from an element's place in its chunk, in quantiser steps, to the nibbles of both streams.
#pragma once

#include "kernel_operator.h"
#include "tiling.h"

namespace lynx {

using AscendC::int4b_t;
using AscendC::LocalTensor;
using AscendC::RoundMode;

// Grid, from p = 120 - I in half: with f = floor(p / 16), A - 8 = -f - 1 and R = p - 16 * f - 8. p is used
// up; f is scratch.
__aicore__ inline void split_grid(const LocalTensor<half>& p, const LocalTensor<half>& f,
                                  const LocalTensor<uint8_t>& anchor, const LocalTensor<uint8_t>& residual,
                                  int32_t n) {
  const LocalTensor<int4b_t> coarse = anchor.ReinterpretCast<int4b_t>();
  Muls(f, p, (half)0.0625f, n);
  Cast(coarse, f, RoundMode::CAST_FLOOR, n);
  Cast(f, coarse, RoundMode::CAST_NONE, n);
  Muls(f, f, (half)16.0f, n);
  Sub(p, p, f, n);
  Adds(p, p, (half)-8.0f, n);
  Cast(residual.ReinterpretCast<int4b_t>(), p, RoundMode::CAST_RINT, n);
  const LocalTensor<uint16_t> words = anchor.ReinterpretCast<uint16_t>();  // -f - 1 is the complement of f
  Not(words, words, n / 4);
}

// alg1, from the magnitude M and sign = 1 or -1, in half: V = floor((M + 7) / 16), R = 16 * V - M, and V or
// -V - 1. All three are used up.
__aicore__ inline void split_alg1(const LocalTensor<half>& m, const LocalTensor<half>& sign,
                                  const LocalTensor<half>& v, const LocalTensor<uint8_t>& anchor,
                                  const LocalTensor<uint8_t>& residual, int32_t n) {
  const LocalTensor<int4b_t> coarse = anchor.ReinterpretCast<int4b_t>();
  Adds(v, m, (half)7.0f, n);
  Muls(v, v, (half)0.0625f, n);
  Cast(coarse, v, RoundMode::CAST_FLOOR, n);
  Cast(v, coarse, RoundMode::CAST_NONE, n);
  Muls(v, v, (half)16.0f, n);
  Sub(m, v, m, n);
  Cast(residual.ReinterpretCast<int4b_t>(), m, RoundMode::CAST_RINT, n);
  Muls(v, v, (half)0.0625f, n);
  Adds(v, v, (half)0.5f, n);  // V + 1/2, mirrored by the sign, less 1/2
  Mul(v, v, sign, n);
  Adds(v, v, (half)-0.5f, n);
  Cast(coarse, v, RoundMode::CAST_RINT, n);
}

// The linear grid's p = 120 - I from places of the other sign: rounded half to even and clamped.
__aicore__ inline void linear_index(const LocalTensor<half>& p, const LocalTensor<float>& place,
                                    const LocalTensor<int16_t>& rounded, int32_t n) {
  Cast(rounded, place, RoundMode::CAST_RINT, n);  // saturates
  Maxs(rounded, rounded, (int16_t)-120, n);
  Mins(rounded, rounded, (int16_t)120, n);
  Cast(p, rounded, RoundMode::CAST_NONE, n);
}

// A compander's positive thresholds in UB, with a bound that all and one that none has passed on either side.
// The thresholds begin on a block.
class Thresholds {
 public:
  static constexpr int32_t kBytes = (8 + 120 + 8) * 4;

  // `local` holds the thresholds of the whole table (docs/ops.md) that are above 0, from its second block on.
  __aicore__ inline Thresholds(const LocalTensor<float>& local, int32_t steps)
      : table_(local), steps_(steps) {
    Duplicate(table_, -1.0f, 8);
    Duplicate(table_[8 + steps_], 0x1p127f, 8);
  }

  // The number of thresholds passed by n places z, away from 0: those at most z, or, for a negative z, less
  // than its magnitude. `passed` receives the number, `place` -1 where z is negative and 0 elsewhere;
  // magnitude, offset and level are scratch.
  __aicore__ inline void count(const LocalTensor<int32_t>& passed, const LocalTensor<float>& place,
                               const LocalTensor<float>& magnitude, const LocalTensor<int32_t>& offset,
                               const LocalTensor<float>& level, float gain, float log_scale,
                               int32_t n) const {
    const LocalTensor<int32_t> negative = place.ReinterpretCast<int32_t>();
    const LocalTensor<int32_t> bits = magnitude.ReinterpretCast<int32_t>();
    const LocalTensor<float> guess = passed.ReinterpretCast<float>();
    Adds(place, place, 0.0f, n);  // no -0.0
    Abs(magnitude, place, n);
    Mins(magnitude, magnitude, 0x1p100f, n);
    Muls(guess, magnitude, gain, n);
    Adds(guess, guess, 1.0f, n);
    Ln(guess, guess, n);
    Muls(guess, guess, log_scale, n);
    Mins(guess, guess, static_cast<float>(steps_), n);
    Cast(offset, guess, RoundMode::CAST_RINT, n);  // right but for one
    Adds(passed, offset, 1, n);
    ShiftLeft(offset, offset, 2, n);
    // Less than a magnitude is at most the float before it.
    ShiftRight(negative, negative, 31, n);
    Add(bits, bits, negative, n);
    Maxs(bits, bits, 0, n);
    correct(passed, magnitude, offset, level, 7 * 4, n);
    correct(passed, magnitude, offset, level, 8 * 4, n);
  }

 private:
  // One less where the magnitude is below the table's entry.
  __aicore__ inline void correct(const LocalTensor<int32_t>& passed, const LocalTensor<float>& magnitude,
                                 const LocalTensor<int32_t>& offset, const LocalTensor<float>& level,
                                 uint32_t base, int32_t n) const {
    const LocalTensor<int32_t> below = level.ReinterpretCast<int32_t>();
    Gather(level, table_, offset.ReinterpretCast<uint32_t>(), base, n);
    Sub(level, magnitude, level, n);
    ShiftRight(below, below, 31, n);
    Add(passed, passed, below, n);
  }

  LocalTensor<float> table_;
  int32_t steps_;
};

}  // namespace lynx
