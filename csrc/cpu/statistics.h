// The kernels that measure: ranges, means, metadata and scales, as plain loops over channels that the
// compiler vectorises.
//
// Comparisons are written so that a NaN takes the second operand; see docs/ops.md for the arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/kernels.h"

namespace lynx::cpu {
namespace {

constexpr int64_t kTile = 1024;  // channels at a time; even, so that a tile moves no nibble to another half
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

// Sum of the rows first, first + stride, ... of m (a power of two): the tree of row halves pairs i with i +
// m/2, hence even with odd multiples of the stride. row(r) is row r of the tile; `sum` has room for a tile a
// level.
template <typename T, typename Row>
void tree_sum(const Row& row, int64_t n, int64_t first, int64_t stride, int64_t m, float* __restrict sum) {
  const auto scaled = [](T x) { return widen(x) * 0x1p-10f; };
  const T* const a = row(first);
  if (stride == m) {
    for (int64_t i = 0; i < n; ++i) sum[i] = scaled(a[i]);
  } else if (4 * stride == m) {  // four leaves at once save passes over the sums
    const T *const b = row(first + stride), *const c = row(first + 2 * stride),
                   *const d = row(first + 3 * stride);
    for (int64_t i = 0; i < n; ++i) sum[i] = (scaled(a[i]) + scaled(c[i])) + (scaled(b[i]) + scaled(d[i]));
  } else {
    float* __restrict odd = sum + kTile;
    tree_sum<T>(row, n, first, 2 * stride, m, sum);
    tree_sum<T>(row, n, first + stride, 2 * stride, m, odd);
    for (int64_t i = 0; i < n; ++i) sum[i] = sum[i] + odd[i];
  }
}

template <typename T>
void mean(Rows<const T> x, float* out) {
  constexpr int64_t kLevels = 9;  // chunk <= 1024
  static const T zeros[kTile] = {};
  float sums[kLevels * kTile];
  int64_t m = 1;
  while (m < x.count) m *= 2;
  const float count = static_cast<float>(x.count);
  for (int64_t j = 0; j < x.n; j += kTile) {
    const int64_t n = smaller(kTile, x.n - j);
    const auto row = [&](int64_t r) { return r < x.count ? x.rows[r] + x.offset + j : zeros; };
    tree_sum<T>(row, n, 0, 1, m, sums);
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

}  // namespace
}  // namespace lynx::cpu
