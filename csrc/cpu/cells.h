// Where a companded quantiser's thresholds lie: how many are below any z, by one look-up in 256 cells.
//
// A position is a monotone function of |z|: |z| itself, scaled, or, for a strong compander with parameter a,
// whose thresholds are evenly spaced in log(1 + a|z|/N), the bit pattern of 1 + gain * |z|, which is a
// logarithm up to a factor of two in slope. A cell is 512 neighbouring positions and holds one threshold at
// most. Every step from z to its position is monotone, so a threshold at a lower position is below z and one
// at a higher position above it, whatever is rounded; only z at the very position of a threshold must be
// compared with it.
#pragma once

#include <cstdint>
#include <optional>

#include "cpu/floats.h"

namespace lynx::cpu {

struct Cells {
  static constexpr int kCells = 256;
  static constexpr int kBits = 9;  // of a position within its cell
  static constexpr int32_t kWithin = (1 << kBits) - 1;
  static constexpr int kMost = 126;  // thresholds on one side

  float limit;          // positions of larger |z| are those of limit
  float gain, density;  // gain 0: positions are linear in |z|
  bool sign_magnitude;  // alg1's codes (-0 and +0 apart), otherwise grid's
  // (passed << 9) + 511 - position, of the cell's threshold within the cell (511 if there is none) and the
  // thresholds in lower cells. Adding the position of |z| within the cell makes the upper bits the number
  // passed, unless the lower come out as 511.
  alignas(64) uint16_t entry[kCells];
  alignas(64) float next[128];  // number passed -> the next threshold; NaN behind the last
};

// The position of |z|, given as its bits: 0 .. 512 * 256 - 1, for Inf and NaN too.
static inline int32_t position(const Cells& cells, uint32_t magnitude) {
  const float z = float_of(magnitude) < cells.limit ? float_of(magnitude) : cells.limit;
  if (cells.gain == 0.0f) return static_cast<int32_t>(z * cells.density);
  const auto log = static_cast<int32_t>(bits_of(1.0f + cells.gain * z) - 0x3f800000u);
  return static_cast<int32_t>(static_cast<float>(log) * cells.density);
}

// The cells of `n` sorted thresholds, mirrored about 0: grid's 2 * steps, or alg1's with 0 in the middle.
// Nothing if they are not mirrored, are more than kMost on a side, or cannot be given a cell each.
std::optional<Cells> make_cells(const float* thresholds, int64_t n);

}  // namespace lynx::cpu
