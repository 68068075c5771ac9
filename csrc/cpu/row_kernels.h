// The kernels themselves, once for every instruction set: plain loops over channels that the compiler
// vectorises.
//
// Each *_<isa>.cpp includes this file with its own compiler flags and takes `row_kernels(name)`. No function
// here has external linkage and none calls a library template, so that code built for one instruction set
// stays in its file. Comparisons are written so that a NaN takes the second operand; see docs/ops.md for the
// arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/kernels.h"

namespace lynx::cpu {
namespace {

constexpr int64_t kTile = 256;  // channels at a time; even, so that a tile moves no nibble to another half
constexpr float kRound =
    0x1.8p23f;  // added to |v| < 2^22 rounds v half to even; the low bits are then the integer

inline float at_least(float x, float bound) { return x > bound ? x : bound; }
inline float at_most(float x, float bound) { return x < bound ? x : bound; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Integers that order as the elements do, so that neither NaN (beyond Inf) nor -0.0 < +0.0 is lost in a
// minimum.
inline int16_t ordinal(uint16_t bits) {
  const int16_t s = static_cast<int16_t>(bits);
  return static_cast<int16_t>(s ^ ((s >> 15) & 0x7fff));
}
inline int32_t ordinal(uint32_t bits) {
  const int32_t s = static_cast<int32_t>(bits);
  return s ^ ((s >> 31) & 0x7fffffff);
}
inline auto ordinal(BFloat16 x) { return ordinal(x.bits); }
inline auto ordinal(Half x) { return ordinal(x.bits); }
inline auto ordinal(float x) { return ordinal(bits_of(x)); }

// The map is its own inverse.
template <typename T>
inline T element(int32_t order) {
  if constexpr (sizeof(T) == 4)
    return float_of(static_cast<uint32_t>(ordinal(static_cast<uint32_t>(order))));
  else
    return T{static_cast<uint16_t>(ordinal(static_cast<uint16_t>(order)))};
}

// Never inlined: GCC would jam two rows of the caller's loop together and then not vectorise them.
template <typename T, typename Ordinal>
__attribute__((noinline)) void extend(const T* __restrict row, int64_t n, Ordinal* __restrict least,
                                      Ordinal* __restrict most) {
  for (int64_t i = 0; i < n; ++i) {
    const Ordinal v = ordinal(row[i]);
    least[i] = v < least[i] ? v : least[i];
    most[i] = v > most[i] ? v : most[i];
  }
}

template <typename T>
void range(Rows<const T> x, float* lo, float* hi) {
  using Ordinal = decltype(ordinal(T{}));
  constexpr int64_t kWide = 2048;  // the first to touch the rows: long runs let the processor prefetch
  for (int64_t j = 0; j < x.n; j += kWide) {
    const int64_t n = smaller(kWide, x.n - j);
    Ordinal least[kWide], most[kWide];
    const T* first = x.rows[0] + x.offset + j;
    for (int64_t i = 0; i < n; ++i) least[i] = most[i] = ordinal(first[i]);
    for (int64_t r = 1; r < x.count; ++r) extend(x.rows[r] + x.offset + j, n, least, most);
    for (int64_t i = 0; i < n; ++i) {
      lo[j + i] = widen(element<T>(least[i])) + 0.0f;
      hi[j + i] = widen(element<T>(most[i])) + 0.0f;
    }
  }
}

// Sum of the rows first, first + stride, ... of m (a power of two; those past the end are zero): the tree of
// row halves pairs i with i + m/2, hence even with odd multiples of the stride. `sum` has room for one tile a
// level.
template <typename T>
void tree_sum(const Rows<const T>& x, int64_t j, int64_t n, int64_t first, int64_t stride, int64_t m,
              float* sum) {
  if (stride == m) {
    const T* row = first < x.count ? x.rows[first] + x.offset + j : nullptr;
    for (int64_t i = 0; i < n; ++i) sum[i] = row ? widen(row[i]) * 0x1p-10f : 0.0f;
    return;
  }
  float* odd = sum + kTile;
  tree_sum(x, j, n, first, 2 * stride, m, sum);
  tree_sum(x, j, n, first + stride, 2 * stride, m, odd);
  for (int64_t i = 0; i < n; ++i) sum[i] = sum[i] + odd[i];
}

template <typename T>
void mean(Rows<const T> x, float* out) {
  constexpr int64_t kLevels = 12;  // chunk <= 1024
  float sums[kLevels * kTile];
  int64_t m = 1;
  while (m < x.count) m *= 2;
  const float count = static_cast<float>(x.count);
  for (int64_t j = 0; j < x.n; j += kTile) {
    const int64_t n = smaller(kTile, x.n - j);
    tree_sum(x, j, n, 0, 1, m, sums);
    for (int64_t i = 0; i < n; ++i) out[j + i] = (sums[i] / count) * 1024.0f + 0.0f;
  }
}

inline float center_of(float g0, float g1, float mu, bool fp32_metadata) {
  const float half = 0.5f * g1 - 0.5f * g0;
  const float mid = 0.5f * g1 + 0.5f * g0;
  const float offset = fp32_metadata ? mu * half : (mu - 127.5f) * (half * static_cast<float>(1 / 127.5));
  return at_most(at_least(mid + offset, g0), g1);
}

// x / half, 0 where half is 0; by a mask, since the compiler would branch around the division.
inline float over(float x, float half) {
  const uint32_t mask = -uint32_t{half != 0.0f};
  return float_of(bits_of(x / half) & mask);
}

inline float rounded(float v) { return (v + kRound) - kRound; }

// What one chunk is centred on: the mean, within rounding, or the middle of its range.
inline void middle_of(Range chunk, const float* mean, int64_t n, float* __restrict out) {
  if (mean)
    for (int64_t i = 0; i < n; ++i) out[i] = at_most(at_least(mean[i], chunk.lo[i]), chunk.hi[i]);
  else
    for (int64_t i = 0; i < n; ++i) out[i] = 0.5f * chunk.hi[i] + 0.5f * chunk.lo[i];
}

template <bool fp32_metadata>
void metadata_of(Range gamma, Range chunk, const float* middle, int64_t n, float* __restrict mu,
                 float* __restrict sigma) {
  for (int64_t i = 0; i < n; ++i) {
    const float g0 = gamma.lo[i], g1 = gamma.hi[i], lo = chunk.lo[i], hi = chunk.hi[i];
    const float half = 0.5f * g1 - 0.5f * g0;
    const float mid = 0.5f * g1 + 0.5f * g0;
    const float t = over(middle[i] - mid, half);
    const float m = fp32_metadata ? at_most(at_least(t, -1.0f), 1.0f)
                                  : rounded(at_most(at_least(t * 127.5f + 127.5f, 0.0f), 255.0f));
    const float c = center_of(g0, g1, m, fp32_metadata);
    const float u = over(at_least(0.5f * hi - 0.5f * c, 0.5f * c - 0.5f * lo), half) + 0.0f;
    // uint8: rounded up, so that the scale still covers every element of the chunk.
    const float v = at_most(u * 255.0f, 255.0f);
    const float nearest = rounded(v);
    mu[i] = m;
    sigma[i] = fp32_metadata ? at_most(u, 1.0f) : nearest + (nearest < v ? 1.0f : 0.0f);
  }
}

void metadata(Range gamma, Range chunk, const float* mean, bool fp32_metadata, int64_t n, float* mu,
              float* sigma) {
  float middle[kTile];
  for (int64_t j = 0; j < n; j += kTile) {
    const int64_t width = smaller(kTile, n - j);
    middle_of(chunk.from(j), mean ? mean + j : nullptr, width, middle);
    if (fp32_metadata)
      metadata_of<true>(gamma.from(j), chunk.from(j), middle, width, mu + j, sigma + j);
    else
      metadata_of<false>(gamma.from(j), chunk.from(j), middle, width, mu + j, sigma + j);
  }
}

void scales(Range gamma, const float* mu, const float* sigma, bool fp32_metadata, float largest, int64_t n,
            float* center, float* scale) {
  const float unit = fp32_metadata ? 1.0f : static_cast<float>(1 / 255.0);
  for (int64_t i = 0; i < n; ++i) {
    const float half = 0.5f * gamma.hi[i] - 0.5f * gamma.lo[i];
    const float c = center_of(gamma.lo[i], gamma.hi[i], mu[i], fp32_metadata);
    // No reconstruction may exceed the largest finite value.
    const float room = 0.5f * largest - 0.5f * __builtin_fabsf(c);
    center[i] = c;
    scale[i] = 2.0f * at_least(at_most(sigma[i] * (half * unit), room), 0.0f);
  }
}

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

// Linear grid: q = I - 120 = clamp(rne(z)), A - 8 = (q - 1) >> 4, R = 16 * (A - 8) + 8 - q; modulo 16, R = 8
// - q.
inline uint8_t linear_code(float z) {
  const float rounded_z = at_most(at_least(z, -120.0f), 120.0f) + kRound;
  const uint8_t q = static_cast<uint8_t>(bits_of(rounded_z));
  return static_cast<uint8_t>(((8 - q) << 4) | (static_cast<uint8_t>(q - 1) >> 4));
}

// I - 120 = 16 * (A - 8) + 8 - R, clamped; with no residual R = 0.
inline float linear_level(uint8_t code) {
  const int16_t coarse = static_cast<int8_t>(code << 4);
  const int16_t fine = static_cast<int16_t>(static_cast<int8_t>(code) >> 4);
  const int16_t level = static_cast<int16_t>(coarse + 8 - fine);
  return static_cast<float>(level > 120 ? 120 : (level < -120 ? -120 : level));
}

// The number of thresholds <= z by halving, in 8 steps of all channels: a comparison adds the step or
// nothing.
inline void table_codes(const float* z, int64_t n, const Tables& tables, uint8_t* __restrict code) {
  const float* __restrict thresholds = tables.thresholds;
  int32_t below[kTile] = {};
  for (int32_t step = 128; step; step /= 2)
    for (int64_t i = 0; i < n; ++i)
      below[i] += step * int32_t{thresholds[below[i] + step - 1] <= z[i]};  // no branch
  for (int64_t i = 0; i < n; ++i) code[i] = tables.codes[below[i]];
}

template <typename T>
void encode(Rows<const T> x, Scales scales, const Tables& tables, Nibbles<uint8_t> out) {
  for (int64_t j = 0; j < x.n; j += kTile) {
    const int64_t n = smaller(kTile, x.n - j);
    float lift[kTile], inverse[kTile], z[kTile];
    uint8_t code[kTile];
    const float* center = scales.center + j;
    for (int64_t i = 0; i < n; ++i) {
      const float s = scales.scale[j + i];
      lift[i] = s < 0x1p-60f ? 0x1p64f : 1.0f;  // keeps steps / s finite
      const float r = scales.steps / (s * lift[i]);
      inverse[i] = s == 0.0f ? 0.0f : r;
    }
    for (int64_t r = 0; r < x.count; ++r) {
      const T* row = x.rows[r] + x.offset + j;
      for (int64_t i = 0; i < n; ++i) {
        const float v = ((widen(row[i]) - center[i]) * lift[i]) * inverse[i];
        z[i] = inverse[i] == 0.0f ? 0.0f : v;  // Inf * 0 when the centre is the type's largest
      }
      if (tables.codes)
        table_codes(z, n, tables, code);
      else
        for (int64_t i = 0; i < n; ++i) code[i] = linear_code(z[i]);
      pack(code, n, out.first + r * out.stride + j, out);
    }
  }
}

template <typename T>
void decode(Rows<T> out, Scales scales, const Tables& tables, Nibbles<const uint8_t> codes) {
  const float unit = static_cast<float>(1.0 / static_cast<double>(scales.steps));
  for (int64_t j = 0; j < out.n; j += kTile) {
    const int64_t n = smaller(kTile, out.n - j);
    float step[kTile], level[kTile];
    uint8_t code[kTile], fine[kTile];
    const float* center = scales.center + j;
    for (int64_t i = 0; i < n; ++i) step[i] = scales.scale[j + i] * unit;
    for (int64_t r = 0; r < out.count; ++r) {
      const int64_t at = codes.first + r * codes.stride + j;
      unpack(codes.anchor, n, at, code);
      if (codes.residual) {
        unpack(codes.residual, n, at, fine);
        for (int64_t i = 0; i < n; ++i) code[i] = static_cast<uint8_t>(code[i] | (fine[i] << 4));
      }
      if (tables.levels)
        for (int64_t i = 0; i < n; ++i) level[i] = tables.levels[code[i]];
      else
        for (int64_t i = 0; i < n; ++i) level[i] = linear_level(code[i]);
      T* row = out.rows[r] + out.offset + j;
      for (int64_t i = 0; i < n; ++i) narrow(center[i] + step[i] * level[i], row + i);
    }
  }
}

template <typename T>
constexpr TypedKernels<T> typed_kernels{range<T>, mean<T>, encode<T>, decode<T>};

constexpr Kernels row_kernels(const char* isa) {
  return {isa, typed_kernels<BFloat16>, typed_kernels<Half>, typed_kernels<float>, metadata, scales};
}

}  // namespace
}  // namespace lynx::cpu
