// Device: what encode measures of a page in kLanes channels: ranges, means, and the metadata that follows
// from them.
//
// One lane is one channel and rows are tokens or chunks, so that every reduction is elementwise, down the
// rows.
#pragma once

#include "metadata.h"

namespace lynx {

using AscendC::CMPMODE;
using AscendC::SELMODE;

enum class Extreme { kMin, kMax };

// Two scratch buffers to reduce in by turns: an instruction must not write part of what it reads.
struct Scratch {
  LocalTensor<float> first, second;

  __aicore__ inline void swap() {
    LocalTensor<float> previous = first;
    first = second;
    second = previous;
  }
};

// `rows` times: row i of dst from row i of a and of b, which step by `stride` blocks.
template <Extreme extreme>
__aicore__ inline void merge(const LocalTensor<float>& dst, const LocalTensor<float>& a,
                             const LocalTensor<float>& b, int32_t rows, uint8_t stride) {
  const BinaryRepeatParams step{1, 1, 1, kBlocks, stride, stride};
  if constexpr (extreme == Extreme::kMax)
    Max(dst, a, b, kLanes, rows, step);
  else
    Min(dst, a, b, kLanes, rows, step);
}

// The extreme of every `chunk` (a power of two) rows: rows / chunk rows. Neighbours are merged, so that one
// instruction serves all chunks. first: room for rows / 2 rows, second: for rows / 4.
template <Extreme extreme>
__aicore__ inline void chunk_extremes(const LocalTensor<float>& dst, LocalTensor<float> src, int32_t rows,
                                      int32_t chunk, Scratch scratch) {
  for (; chunk > 1; chunk /= 2) {
    rows /= 2;
    LocalTensor<float> to = chunk == 2 ? dst : scratch.first;
    merge<extreme>(to, src, src[kLanes], rows, 2 * kBlocks);
    src = to;
    scratch.swap();
  }
}

// The extreme of `rows` rows: one row. An odd one out is merged twice, which changes nothing.
template <Extreme extreme>
__aicore__ inline void extreme_of(const LocalTensor<float>& dst, LocalTensor<float> src, int32_t rows,
                                  Scratch scratch) {
  if (rows == 1) Adds(dst, src, 0.0f, kLanes);
  while (rows > 1) {
    const int32_t left = (rows + 1) / 2;
    LocalTensor<float> to = left == 1 ? dst : scratch.first;
    merge<extreme>(to, src, src[(rows - left) * kLanes], left, kBlocks);
    src = to;
    rows = left;
    scratch.swap();
  }
}

// Means of every `chunk` rows of x, the last of which holds `rows` in all; x is used up. The fixed tree of
// row halves; zero rows up to `chunk` add nothing to the sums of a tree of fewer.
__aicore__ inline void chunk_means(const LocalTensor<float>& dst, const LocalTensor<float>& x, int32_t rows,
                                   int32_t chunk, const LocalTensor<float>& count) {
  Muls(x, x, 0x1p-10f, rows * kLanes);
  const int32_t chunks = (rows + chunk - 1) / chunk, missing = chunks * chunk - rows;
  if (missing) Duplicate(x[rows * kLanes], 0.0f, missing * kLanes);
  for (int32_t i = 0; i < chunks; ++i) {
    const LocalTensor<float> sum = x[i * chunk * kLanes];
    for (int32_t half = chunk / 2; half > 0; half /= 2) Add(sum, sum, sum[half * kLanes], half * kLanes);
    const int32_t left = rows - i * chunk;
    Duplicate(count, static_cast<float>(left < chunk ? left : chunk), kLanes);
    Div(dst[i * kLanes], sum, count, kLanes);
  }
  Muls(dst, dst, 1024.0f, chunks * kLanes);
  Adds(dst, dst, 0.0f, chunks * kLanes);
}

// Statistics of a page's chunks in kLanes channels, each [kEncodeChunks][kLanes].
struct Chunks {
  static constexpr int32_t kParts = 8;
  static constexpr int32_t kSize = kEncodeChunks * kLanes;

  LocalTensor<float> low, high, middle, mu, sigma, center, lift, inverse;
  LocalTensor<float> divisor;    // [kLanes]: the page's half range, or 1 where that is 0
  LocalTensor<uint8_t> mask;     // a bit for each of kSize
  LocalTensor<int16_t> rounded;  // [kSize]
  LocalTensor<half> narrow;      // [kSize]

  // From low, high and, if `mean`, middle: mu and sigma, for grid as whole numbers
  // and as bytes as well, and the centres.
  __aicore__ inline void derive_metadata(const Gamma& gamma, bool alg1, bool mean,
                                         const LocalTensor<uint8_t>& mu_bytes,
                                         const LocalTensor<uint8_t>& sigma_bytes) const {
    const int32_t n = gamma.size();
    if (mean) {
      Max(middle, middle, low, n);
      Min(middle, middle, high, n);
    } else {
      Muls(middle, high, 0.5f, n);
      Muls(mu, low, 0.5f, n);
      Add(middle, middle, mu, n);
    }
    // Where a channel's range is 0, so are the numerators below: then a divisor of 1 gives the 0 wanted.
    CompareScalar(mask, gamma.half, 0.0f, CMPMODE::NE, kLanes);
    Select(divisor, mask, gamma.half, 1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, kLanes);

    Sub(mu, middle, gamma.mid, kLanes, gamma.groups, gamma.each());
    Div(mu, mu, divisor, kLanes, gamma.groups, over());
    if (alg1) {
      Maxs(mu, mu, -1.0f, n);
      Mins(mu, mu, 1.0f, n);
    } else {
      Muls(mu, mu, 127.5f, n);
      Adds(mu, mu, 127.5f, n);  // out of 0 .. 255 by a rounding at most
      round(mu, mu_bytes, RoundMode::CAST_RINT, n);
    }
    centers(center, mu, gamma, alg1);

    Muls(middle, center, 0.5f, n);
    Muls(sigma, high, 0.5f, n);
    Sub(sigma, sigma, middle, n);
    Muls(lift, low, 0.5f, n);
    Sub(lift, middle, lift, n);
    Max(sigma, sigma, lift, n);
    Div(sigma, sigma, divisor, kLanes, gamma.groups, over());
    if (alg1) {
      Adds(sigma, sigma, 0.0f, n);  // no -0.0
      Mins(sigma, sigma, 1.0f, n);
    } else {
      Muls(sigma, sigma, 255.0f, n);
      Mins(sigma, sigma, 255.0f, n);
      round(sigma, sigma_bytes, RoundMode::CAST_CEIL, n);
    }
  }

  // From sigma: lift, and in low half of each scale times its lift; high is used up.
  template <typename T>
  __aicore__ inline void derive_lift(const Gamma& gamma) const {
    const int32_t n = gamma.size();
    const LocalTensor<float> scale = low;
    half_scales<T>(scale, sigma, center, high, gamma);
    if constexpr (Element<T>::tiny_scales) {
      CompareScalar(mask, scale, 0x1p-61f, CMPMODE::LT, n);
      Duplicate(lift, 0x1p64f, n);
      Select(lift, mask, lift, 1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
      Mul(scale, scale, lift, n);
    }
    CompareScalar(mask, scale, 0.0f, CMPMODE::NE, n);
  }

  // From half the number of steps between a chunk's centre and its edge, in inverse: the inverse, so that an
  // element's place is ((x - center) * lift) * inverse, in steps. It is 0 where the scale is.
  __aicore__ inline void derive_inverse(const Gamma& gamma) const {
    const int32_t n = gamma.size();
    Div(inverse, inverse, low, n);
    Select(inverse, mask, inverse, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
  }

 private:
  __aicore__ inline BinaryRepeatParams over() const { return {1, 1, 1, kBlocks, kBlocks, 0}; }

  // Rounds x, and writes it as bytes as well.
  __aicore__ inline void round(const LocalTensor<float>& x, const LocalTensor<uint8_t>& bytes, RoundMode mode,
                               int32_t n) const {
    Cast(rounded, x, mode, n);
    Cast(narrow, rounded, RoundMode::CAST_NONE, n);
    Cast(bytes, narrow, RoundMode::CAST_RINT, n);
    Cast(x, narrow, RoundMode::CAST_NONE, n);
  }
};

}  // namespace lynx
