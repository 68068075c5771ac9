// Coding with codec `pair` (docs/frame.md): plain loops, over what the instruction set's own PairEncoder and
// PairDecoder leave.
#pragma once

#include <type_traits>

#include "cpu/quantiser.h"

namespace lynx::cpu {
namespace {

// A tile's widths as what splitting and joining need: in 16 bits a product with 2^k, its bytes or-ed, is a
// rotation by k.
struct Turns {
  uint16_t up[kTile / 2], down[kTile / 2];  // 2^width and 2^(8 - width)
  uint8_t fill[kTile / 2];                  // a residual byte in the middle of what it may say

  Turns(const uint8_t* width, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t w = width[i];
      up[i] = static_cast<uint16_t>(1u << w);
      down[i] = static_cast<uint16_t>(1u << (8 - w));
      fill[i] = static_cast<uint8_t>(((up[i] - 1) >> 1) | (((down[i] - 1) >> 1) << w));
    }
  }
};

inline uint8_t turned(uint8_t code, uint16_t power) {
  const auto product = static_cast<uint16_t>(code * power);
  return static_cast<uint8_t>(product | (product >> 8));
}

// The code bytes of `n` pairs of one half head, first channels then second, into a byte of each stream.
inline void split(const uint8_t* __restrict code, int64_t n, const uint16_t* __restrict up,
                  uint8_t* __restrict anchor, uint8_t* __restrict residual) {
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t first = turned(code[i], up[i]), second = code[n + i];
    const auto low = static_cast<uint8_t>(up[i] - 1);
    anchor[i] = static_cast<uint8_t>((first & low) | (second & ~low));
    residual[i] = static_cast<uint8_t>((first & ~low) | (second & low));
  }
}

inline void join(const uint8_t* __restrict anchor, const uint8_t* __restrict residual, int64_t n,
                 const uint16_t* __restrict up, const uint16_t* __restrict down, uint8_t* __restrict code) {
  for (int64_t i = 0; i < n; ++i) {
    const auto low = static_cast<uint8_t>(up[i] - 1);
    code[i] = turned(static_cast<uint8_t>((anchor[i] & low) | (residual[i] & ~low)), down[i]);
    code[n + i] = static_cast<uint8_t>((residual[i] & low) | (anchor[i] & ~low));
  }
}

// Calls visit(i, n) for the half heads of a row of n channels, with n = 2 * quarter; as a constant for the
// usual heads, so that the loops inside become a few instructions.
template <typename Visit>
inline void each_half(int64_t channels, int64_t quarter, const Visit& visit) {
  const auto every = [&](auto q) {
    for (int64_t i = 0; i < channels; i += 2 * q) visit(i, q);
  };
  if (quarter == 16)
    every(std::integral_constant<int64_t, 16>{});
  else if (quarter == 32)
    every(std::integral_constant<int64_t, 32>{});
  else
    every(quarter);
}

// Whole half heads.
inline int64_t pair_tile(int64_t quarter) { return kTile / (2 * quarter) * (2 * quarter); }

// Code bytes of a row's channels from `begin` on.
template <typename T>
inline void pair_codes(const T* __restrict row, int64_t begin, int64_t n, const Quantiser& by,
                       const float* __restrict steps, uint8_t* __restrict code) {
  for (int64_t i = begin; i < n; ++i) {
    const float v = ((widen(row[i]) - by.center[i]) * by.lift[i]) * by.inverse[i];
    const float z = by.inverse[i] == 0.0f ? 0.0f : v;  // Inf * 0 when the centre is the type's largest
    code[i] = static_cast<uint8_t>(bits_of(at_most(at_least(z, -steps[i]), steps[i]) + kRound) + 127);
  }
}

template <typename T>
void encode_pairs(Rows<const T> x, Scales scales, Pairs pairs, Nibbles<uint8_t> out) {
  const int64_t tile = pair_tile(pairs.quarter);
  PairEncoder blocks;
  for (int64_t j = 0; j < x.n; j += tile) {
    const int64_t n = smaller(tile, x.n - j);
    const Quantiser by(scales.from(j), n, largest<T>());
    const Turns turns(pairs.width + j / 2, n / 2);
    blocks.prepare(by, n);
    for (int64_t r = 0; r < x.count; ++r) {
      const T* row = x.rows[r] + x.offset + j;
      uint8_t code[kTile];
      pair_codes(row, blocks.run(row, code), n, by, scales.steps + j, code);
      const int64_t at = (out.first + r * out.stride + j) / 2;
      each_half(n, pairs.quarter, [&](int64_t i, auto q) {
        split(code + i, q, turns.up + i / 2, out.anchor + at + i / 2, out.residual + at + i / 2);
      });
    }
  }
}

// Values of a row's channels from `begin` on; bytes that were not written by an encoder may lie beyond a
// channel's steps.
template <typename T>
inline void pair_values(const uint8_t* __restrict code, int64_t begin, int64_t n,
                        const float* __restrict center, const float* __restrict step,
                        const float* __restrict steps, T* __restrict row) {
  for (int64_t i = begin; i < n; ++i) {
    const float level = at_most(at_least(static_cast<float>(code[i] - 127), -steps[i]), steps[i]);
    narrow(center[i] + step[i] * level, row + i);
  }
}

template <typename T>
void decode_pairs(Rows<T> out, Scales scales, Pairs pairs, Nibbles<const uint8_t> codes, bool stream) {
  const int64_t tile = pair_tile(pairs.quarter);
  PairDecoder blocks;
  for (int64_t j = 0; j < out.n; j += tile) {
    const int64_t n = smaller(tile, out.n - j);
    const Turns turns(pairs.width + j / 2, n / 2);
    alignas(64) float step[kTile];
    level_steps(scales.from(j), n, step);
    const float *center = scales.center + j, *steps = scales.steps + j;
    blocks.prepare(center, step, steps, n);
    for (int64_t r = 0; r < out.count; ++r) {
      const int64_t at = (codes.first + r * codes.stride + j) / 2;
      const uint8_t* residual = codes.residual ? codes.residual + at : turns.fill;
      uint8_t code[kTile];
      each_half(n, pairs.quarter, [&](int64_t i, auto q) {
        join(codes.anchor + at + i / 2, residual + i / 2, q, turns.up + i / 2, turns.down + i / 2, code + i);
      });
      T* row = out.rows[r] + out.offset + j;
      pair_values(code, blocks.run(code, row, stream), n, center, step, steps, row);
    }
  }
}

}  // namespace
}  // namespace lynx::cpu
