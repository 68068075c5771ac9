// Coding one row of a tile with plain loops: all of it, or the channels that an instruction set's blocks
// leave.
#pragma once

#include "cpu/quantiser.h"

namespace lynx::cpu {
namespace {

// Splits code bytes ((residual << 4) | anchor) into the two nibble streams, from nibble `at` on.
inline void pack(const uint8_t* code, int64_t n, int64_t at, const Nibbles<uint8_t>& out) {
  uint8_t* anchor = out.anchor + at / 2;
  uint8_t* residual = out.residual + at / 2;
  if (at % 2 && n) {
    *anchor++ |= static_cast<uint8_t>(code[0] << 4);
    *residual++ |= static_cast<uint8_t>(code[0] & 0xf0);
    ++code, --n;
  }
  for (int64_t i = 0; i < n / 2; ++i) {
    const uint8_t even = code[2 * i], odd = code[2 * i + 1];
    anchor[i] = static_cast<uint8_t>((even & 15) | (odd << 4));
    residual[i] = static_cast<uint8_t>((even >> 4) | (odd & 0xf0));
  }
  if (n % 2) {
    anchor[n / 2] |= code[n - 1] & 15;
    residual[n / 2] |= static_cast<uint8_t>(code[n - 1] >> 4);
  }
}

// One stream's nibbles from nibble `at` on, one a byte.
inline void unpack(const uint8_t* stream, int64_t n, int64_t at, uint8_t* out) {
  stream += at / 2;
  if (at % 2 && n) {
    *out++ = *stream++ >> 4;
    --n;
  }
  for (int64_t i = 0; i < n / 2; ++i) {
    out[2 * i] = stream[i] & 15;
    out[2 * i + 1] = stream[i] >> 4;
  }
  if (n % 2) out[n - 1] = stream[n / 2] & 15;
}

// The number of thresholds that z has passed, away from 0: those at most z, or less than a negative z's
// magnitude.
inline void companded_codes(const float* z, int64_t n, const Cells& cells, uint8_t* __restrict code) {
  uint32_t magnitude[kTile];
  int32_t at[kTile];
  uint8_t passed[kTile], negative[kTile];
  for (int64_t i = 0; i < n; ++i) {
    negative[i] = z[i] < 0.0f;
    magnitude[i] =
        (bits_of(z[i]) & 0x7fffffffu) - uint32_t{z[i] < 0.0f};  // less than m is at most the float before m
    at[i] = position(cells, magnitude[i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int32_t below = cells.entry[at[i] >> Cells::kBits] >> Cells::kBits;
    passed[i] = static_cast<uint8_t>(below + (cells.next[below] <= float_of(magnitude[i])));
  }
  if (cells.sign_magnitude)
    for (int64_t i = 0; i < n; ++i) code[i] = alg1_code(passed[i], negative[i]);
  else
    for (int64_t i = 0; i < n; ++i)
      code[i] = grid_code(static_cast<uint8_t>((passed[i] ^ -negative[i]) + negative[i]));
}

template <typename T>
void encode_rest(const T* row, int64_t begin, int64_t n, const Quantiser& by, const Cells* cells, int64_t at,
                 const Nibbles<uint8_t>& out) {
  float z[kTile];
  uint8_t code[kTile];
  for (int64_t i = begin; i < n; ++i) {
    const float v = ((widen(row[i]) - by.center[i]) * by.lift[i]) * by.inverse[i];
    z[i] = by.inverse[i] == 0.0f ? 0.0f : v;  // Inf * 0 when the centre is the type's largest
  }
  if (cells)
    companded_codes(z + begin, n - begin, *cells, code + begin);
  else
    for (int64_t i = begin; i < n; ++i) code[i] = linear_code(z[i]);
  pack(code + begin, n - begin, at + begin, out);
}

template <typename T>
void decode_rest(Nibbles<const uint8_t> codes, int64_t at, int64_t begin, int64_t n, const float* center,
                 const float* step, const float* levels, T* row) {
  float level[kTile];
  uint8_t code[kTile], fine[kTile];
  unpack(codes.anchor, n - begin, at + begin, code + begin);
  if (codes.residual) {
    unpack(codes.residual, n - begin, at + begin, fine + begin);
    for (int64_t i = begin; i < n; ++i) code[i] = static_cast<uint8_t>(code[i] | (fine[i] << 4));
  }
  if (levels)
    for (int64_t i = begin; i < n; ++i) level[i] = levels[code[i]];
  else
    for (int64_t i = begin; i < n; ++i) level[i] = linear_level(code[i]);
  for (int64_t i = begin; i < n; ++i) narrow(center[i] + step[i] * level[i], row + i);
}

}  // namespace
}  // namespace lynx::cpu
