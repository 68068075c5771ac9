// What the coding kernels share: a tile's quantiser, and the code of an index in either codec.
#pragma once

#include "cpu/statistics.h"

namespace lynx::cpu {
namespace {

// Grid: A - 8 = (q - 1) >> 4, R = 16 * (A - 8) + 8 - q for q = I - 120; modulo 16, R = 8 - q.
inline uint8_t grid_code(uint8_t q) {
  return static_cast<uint8_t>(((8 - q) << 4) | (static_cast<uint8_t>(q - 1) >> 4));
}

// alg1: V = (M + 7) >> 4, R = 16 * V - M; a negative sign codes V as -V - 1.
inline uint8_t alg1_code(uint8_t magnitude, uint8_t negative) {
  return static_cast<uint8_t>((-magnitude << 4) | ((((magnitude + 7) >> 4) ^ -negative) & 15));
}

// The linear grid needs no thresholds: q = clamp(rne(z)).
inline uint8_t linear_code(float z) {
  return grid_code(static_cast<uint8_t>(bits_of(at_most(at_least(z, -120.0f), 120.0f) + kRound)));
}

// I - 120 = 16 * (A - 8) + 8 - R, clamped; with no residual R = 0.
constexpr float linear_level(uint8_t code) {
  const auto coarse = static_cast<int16_t>(static_cast<int8_t>(code << 4));
  const auto fine = static_cast<int16_t>(static_cast<int8_t>(code) >> 4);
  const auto level = static_cast<int16_t>(coarse + 8 - fine);
  return static_cast<float>(level > 120 ? 120 : (level < -120 ? -120 : level));
}

// What a level of each channel is worth, d.
inline void level_steps(Scales scales, int64_t n, float* __restrict step) {
  for (int64_t i = 0; i < n; ++i) step[i] = scales.scale[i] * scales.unit[i];
}

// What quantising one tile needs of each channel: z = ((x - center) * lift) * inverse, and 0 where inverse is
// 0.
struct Quantiser {
  const float* center;
  float lift[kTile], inverse[kTile];
  // Every lift is 1, every inverse positive, and with uint8 metadata |z| at most steps, within its rounding:
  // a scale covers its chunk. False where one is tiny, or may have been cut to keep reconstructions finite.
  bool regular;

  Quantiser(Scales scales, int64_t n, float largest) : center(scales.center) {
    uint32_t irregular = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float s = scales.scale[i];
      lift[i] = s < 0x1p-60f ? 0x1p64f : 1.0f;  // keeps steps / s finite
      inverse[i] = over(scales.steps[i], s * lift[i]);
      irregular |= uint32_t{s < 0x1p-60f} | uint32_t{__builtin_fabsf(center[i]) + s > 0.99f * largest};
    }
    regular = !irregular;
  }
};

}  // namespace
}  // namespace lynx::cpu
