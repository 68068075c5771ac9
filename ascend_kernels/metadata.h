// Device: a chunk's centre and scale from its metadata, the arithmetic that encode and decode share
// (docs/frame.md).
//
// fp32, one rounding an operation: a product and a sum are two instructions, never a fused one.
#pragma once

#include "kernel_operator.h"
#include "tiling.h"

namespace lynx {

using AscendC::BinaryRepeatParams;
using AscendC::LocalTensor;
using AscendC::RoundMode;
using AscendC::UnaryRepeatParams;

// The largest finite value of a cache's type; and whether a scale can be so small that steps / scale
// overflows: fp16's are at least 2^-34, or 0.
template <typename T>
struct Element;
template <>
struct Element<bfloat16_t> {
  static constexpr float largest = 0x1.fep127f;
  static constexpr bool tiny_scales = true;
};
template <>
struct Element<half> {
  static constexpr float largest = 65504.0f;
  static constexpr bool tiny_scales = false;
};

constexpr float kMuUnit = static_cast<float>(1 / 127.5);
constexpr float kSigmaUnit = static_cast<float>(1 / 255.0);
constexpr float kGridSteps = 120.0f, kGridStep = static_cast<float>(1 / 120.0);
constexpr float kAlg1Steps = 112.0f, kAlg1Step = static_cast<float>(1 / 112.0);
constexpr int32_t kBlocks = kLanes / 8;  // 32-byte blocks of one row of kLanes fp32

// The page's range in `lanes` channels, and how it goes with metadata: `runs` times `groups` groups of kLanes
// values. Within a run the range steps by `stride` blocks: 0 where the groups are chunks of the same channels
// (one run), kBlocks where a run is one chunk's channels side by side.
struct Gamma {
  LocalTensor<float> low, high, half, mid, mu_unit, sigma_unit;
  int32_t lanes, runs, groups;
  uint8_t stride;

  static constexpr int32_t kParts = 6;

  // `parts` holds kParts rows of `most` channels.
  __aicore__ inline explicit Gamma(const LocalTensor<float>& parts, int32_t most) {
    low = parts;
    high = parts[most];
    half = parts[2 * most];
    mid = parts[3 * most];
    mu_unit = parts[4 * most];
    sigma_unit = parts[5 * most];
  }

  __aicore__ inline int32_t size() const { return runs * groups * kLanes; }

  // From low and high.
  __aicore__ inline void derive(bool alg1) const {
    Muls(half, high, 0.5f, lanes);
    Muls(mu_unit, low, 0.5f, lanes);
    Add(mid, half, mu_unit, lanes);
    Sub(half, half, mu_unit, lanes);
    Muls(mu_unit, half, alg1 ? 1.0f : kMuUnit, lanes);
    Muls(sigma_unit, half, alg1 ? 1.0f : kSigmaUnit, lanes);
  }

  __aicore__ inline BinaryRepeatParams each() const { return {1, 1, 1, kBlocks, kBlocks, stride}; }
};

// c of all metadata from mu (as fp32).
__aicore__ inline void centers(const LocalTensor<float>& c, const LocalTensor<float>& mu, const Gamma& gamma,
                               bool alg1) {
  Adds(c, mu, alg1 ? 0.0f : -127.5f, gamma.size());
  for (int32_t run = 0; run < gamma.runs; ++run) {
    const LocalTensor<float> part = c[run * gamma.groups * kLanes];
    Mul(part, part, gamma.mu_unit, kLanes, gamma.groups, gamma.each());
    Add(part, part, gamma.mid, kLanes, gamma.groups, gamma.each());
    Max(part, part, gamma.low, kLanes, gamma.groups, gamma.each());
    Min(part, part, gamma.high, kLanes, gamma.groups, gamma.each());
  }
}

// s / 2 of all metadata from sigma (as fp32), which it may replace; `room` is scratch. No centre lies beyond
// T's range, so that the room is never negative.
template <typename T>
__aicore__ inline void half_scales(const LocalTensor<float>& scale, const LocalTensor<float>& sigma,
                                   const LocalTensor<float>& c, const LocalTensor<float>& room,
                                   const Gamma& gamma) {
  const int32_t n = gamma.size();
  for (int32_t run = 0; run < gamma.runs; ++run) {
    const int32_t at = run * gamma.groups * kLanes;
    Mul(scale[at], sigma[at], gamma.sigma_unit, kLanes, gamma.groups, gamma.each());
  }
  Abs(room, c, n);
  Muls(room, room, -0.5f, n);
  Adds(room, room, 0.5f * Element<T>::largest, n);
  Min(scale, scale, room, n);
}

}  // namespace lynx
