// Encoding and decoding with AVX-512 F, BW, VL and DQ: 32 channels at a time, 16 bytes of nibbles in each
// stream.
//
// What is 16 bits wide or less (codes, cells, halves of table entries) is kept in the 32 words of one
// register, in order of channels; fp32 values are in two registers, the lower 16 channels and the upper.
#pragma once

#include <immintrin.h>

#include "cpu/plain_coding.h"

namespace lynx::cpu {
namespace {

constexpr int64_t kBlock = 32;

struct Floats {
  __m512 lo, hi;
};

// Word k of lane i holds first + step * i, then second + step * i, in turn if k is odd or even.
inline __m512i words(int first, int second, int step) {
  alignas(64) int16_t w[32];
  for (int i = 0; i < 16; ++i) {
    w[2 * i] = static_cast<int16_t>(first + step * i);
    w[2 * i + 1] = static_cast<int16_t>(second + step * i);
  }
  return _mm512_load_si512(w);
}

// The lower and the upper words of 32 double words.
inline __m512i low_words(__m512i lo, __m512i hi) { return _mm512_permutex2var_epi16(lo, words(0, 2, 4), hi); }
inline __m512i high_words(__m512i lo, __m512i hi) {
  return _mm512_permutex2var_epi16(lo, words(1, 3, 4), hi);
}

// fp32 values from their lower and upper words.
inline Floats join(__m512i low, __m512i high) {
  return {_mm512_castsi512_ps(_mm512_permutex2var_epi16(low, words(0, 32, 1), high)),
          _mm512_castsi512_ps(_mm512_permutex2var_epi16(low, words(16, 48, 1), high))};
}

inline Floats load(const BFloat16* x) { return join(_mm512_setzero_si512(), _mm512_loadu_si512(x)); }
inline Floats load(const Half* x) {
  const auto* half = reinterpret_cast<const __m256i*>(x);
  return {_mm512_cvtph_ps(_mm256_loadu_si256(half)), _mm512_cvtph_ps(_mm256_loadu_si256(half + 1))};
}
inline Floats load(const float* x) { return {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)}; }

template <bool stream>
inline void put(void* out, __m512i value) {
  if constexpr (stream)
    _mm512_stream_si512(static_cast<__m512i*>(out), value);
  else
    _mm512_storeu_si512(out, value);
}

// Half to even: a word is one larger if the word below it, plus its own last bit, exceeds half.
template <bool stream>
inline void store(Floats x, BFloat16* out) {
  const __m512i lo = _mm512_castps_si512(x.lo), hi = _mm512_castps_si512(x.hi);
  const __m512i high = high_words(lo, hi), low = low_words(lo, hi);
  // (high & 1) | 0x7ffe; avg(a, b) = (a + b + 1) / 2, whose top bit is the carry of low + 0x7fff + (high &
  // 1).
  const __m512i bias = _mm512_ternarylogic_epi32(high, _mm512_set1_epi16(1), _mm512_set1_epi16(0x7ffe), 0xea);
  put<stream>(out, _mm512_add_epi16(high, _mm512_srli_epi16(_mm512_avg_epu16(low, bias), 15)));
}
template <bool stream>
inline void store(Floats x, Half* out) {
  const __m256i lo = _mm512_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256i hi = _mm512_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  put<stream>(out, _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1));
}
template <bool stream>
inline void store(Floats x, float* out) {
  put<stream>(out, _mm512_castps_si512(x.lo));
  put<stream>(out + 16, _mm512_castps_si512(x.hi));
}

// 32 nibbles, each in the low four bits of its word; the other bits are not 0.
inline __m512i load_nibbles(const uint8_t* in) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
  return _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
}
inline void store_nibbles(uint8_t* out, __m512i nibbles) {
  const __m512i bytes =
      _mm512_ternarylogic_epi32(_mm512_set1_epi32(15), nibbles, _mm512_srli_epi32(nibbles, 12), 0xca);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(bytes));
}

// A table of N words, looked up with the low bits of 32 indices.
template <int N>
struct WordTable {
  __m512i part[N / 32];

  template <int first = 0, int count = N>
  __m512i at(__m512i index) const {
    if constexpr (count == 32)
      return _mm512_permutexvar_epi16(index, part[first]);
    else if constexpr (count == 64)
      return _mm512_permutex2var_epi16(part[first], index, part[first + 1]);
    else
      return _mm512_mask_mov_epi16(at<first, count / 2>(index),
                                   _mm512_test_epi16_mask(index, _mm512_set1_epi16(count / 2)),
                                   at<first + count / 64, count / 2>(index));
  }
};

// A table of N fp32 values, as the words they consist of.
template <int N>
struct FloatTable {
  WordTable<N> low, high;

  void fill(const float* values) {
    for (int i = 0; i < N / 32; ++i) {
      const Floats x = load(values + 32 * i);
      low.part[i] = low_words(_mm512_castps_si512(x.lo), _mm512_castps_si512(x.hi));
      high.part[i] = high_words(_mm512_castps_si512(x.lo), _mm512_castps_si512(x.hi));
    }
  }
  Floats at(__m512i index) const { return join(low.at(index), high.at(index)); }
};

class BlockEncoder {
 public:
  explicit BlockEncoder(const Cells* cells) : cells_(cells) {
    if (!cells) return;
    for (int i = 0; i < Cells::kCells / 32; ++i) entry_.part[i] = _mm512_load_si512(cells->entry + 32 * i);
    next_.fill(cells->next);
  }

  // Encodes as many blocks as n holds; returns their elements.
  template <typename T>
  int64_t run(const T* x, int64_t n, const Quantiser& by, uint8_t* anchor, uint8_t* residual) const {
    if (by.lifted) return 0;
    if (!cells_) return linear(x, n, by, anchor, residual);
    return cells_->gain == 0.0f ? companded<false>(x, n, by, anchor, residual)
                                : companded<true>(x, n, by, anchor, residual);
  }

 private:
  template <typename T>
  static Floats quantity(const T* x, const float* center, const float* inverse) {
    const Floats v = load(x), c = load(center), r = load(inverse);
    return {_mm512_mul_ps(_mm512_sub_ps(v.lo, c.lo), r.lo), _mm512_mul_ps(_mm512_sub_ps(v.hi, c.hi), r.hi)};
  }

  // quantiser.h's grid_code and alg1_code.
  static void store_grid(__m512i q, uint8_t* anchor, uint8_t* residual) {
    store_nibbles(anchor, _mm512_srli_epi16(_mm512_sub_epi16(q, _mm512_set1_epi16(1)), 4));
    store_nibbles(residual, _mm512_sub_epi16(_mm512_set1_epi16(8), q));
  }
  static void store_alg1(__m512i magnitude, __mmask32 negative, uint8_t* anchor, uint8_t* residual) {
    const __m512i coarse = _mm512_srli_epi16(_mm512_add_epi16(magnitude, _mm512_set1_epi16(7)), 4);
    store_nibbles(anchor, _mm512_mask_sub_epi16(coarse, negative, _mm512_set1_epi16(-1), coarse));
    store_nibbles(residual, _mm512_sub_epi16(_mm512_setzero_si512(), magnitude));
  }

  template <typename T>
  static int64_t linear(const T* x, int64_t n, const Quantiser& by, uint8_t* anchor, uint8_t* residual) {
    const auto rounded = [](__m512 z) {
      const __m512 clamped = _mm512_min_ps(_mm512_max_ps(z, _mm512_set1_ps(-120.0f)), _mm512_set1_ps(120.0f));
      return _mm512_castps_si512(_mm512_add_ps(clamped, _mm512_set1_ps(kRound)));
    };
    int64_t i = 0;
    for (; i + kBlock <= n; i += kBlock) {
      const Floats z = quantity(x + i, by.center + i, by.inverse + i);
      store_grid(low_words(rounded(z.lo), rounded(z.hi)), anchor + i / 2, residual + i / 2);
    }
    return i;
  }

  template <bool curved, typename T>
  int64_t companded(const T* x, int64_t n, const Quantiser& by, uint8_t* anchor, uint8_t* residual) const {
    const Cells& cells = *cells_;
    const WordTable<Cells::kCells> entries =
        entry_;  // a copy, for registers: the stores might change the member
    const __m512 limit = _mm512_set1_ps(cells.limit), gain = _mm512_set1_ps(cells.gain);
    const __m512 density = _mm512_set1_ps(cells.density);
    const auto position = [&](__m512 z) {                  // as in cells.h
      const __m512 m = _mm512_range_ps(z, limit, 0b1010);  // the smaller magnitude, without its sign
      if constexpr (!curved) return _mm512_cvttps_epi32(_mm512_mul_ps(m, density));
      const __m512i w = _mm512_castps_si512(_mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_mul_ps(gain, m)));
      const __m512 log = _mm512_cvtepi32_ps(_mm512_sub_epi32(w, _mm512_set1_epi32(0x3f800000)));
      return _mm512_cvttps_epi32(_mm512_mul_ps(log, density));
    };
    const __m512i within = _mm512_set1_epi16(Cells::kWithin);
    int64_t i = 0;
    for (; i + kBlock <= n; i += kBlock) {
      const Floats z = quantity(x + i, by.center + i, by.inverse + i);
      const __m512i lo = position(z.lo), hi = position(z.hi);
      const __m512i cell =
          low_words(_mm512_srli_epi32(lo, Cells::kBits), _mm512_srli_epi32(hi, Cells::kBits));
      const __m512i entry = entries.at(cell);
      const __m512i sum = _mm512_add_epi16(entry, _mm512_and_si512(low_words(lo, hi), within));
      __m512i passed = _mm512_srli_epi16(sum, Cells::kBits);
      if (_mm512_cmpeq_epi16_mask(_mm512_and_si512(sum, within), within)) [[unlikely]]
        passed = compared(z, _mm512_srli_epi16(entry, Cells::kBits));
      const __mmask32 negative = _mm512_kunpackw(_mm512_cmp_ps_mask(z.hi, _mm512_setzero_ps(), _CMP_LT_OQ),
                                                 _mm512_cmp_ps_mask(z.lo, _mm512_setzero_ps(), _CMP_LT_OQ));
      if (cells.sign_magnitude)
        store_alg1(passed, negative, anchor + i / 2, residual + i / 2);
      else
        store_grid(_mm512_mask_sub_epi16(passed, negative, _mm512_setzero_si512(), passed), anchor + i / 2,
                   residual + i / 2);
    }
    return i;
  }

  // The number of thresholds passed, from that in lower cells and a comparison with the next.
  __m512i compared(Floats z, __m512i below) const {
    const Floats next = next_.at(below);
    const auto reached = [](__m512 v, __m512 threshold) {
      const __mmask16 negative = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_LT_OQ);
      const __m512i m = _mm512_castps_si512(_mm512_abs_ps(v));
      const __m512 bound = _mm512_castsi512_ps(_mm512_mask_sub_epi32(m, negative, m, _mm512_set1_epi32(1)));
      return _mm512_cmp_ps_mask(threshold, bound, _CMP_LE_OQ);
    };
    const __mmask32 more = _mm512_kunpackw(reached(z.hi, next.hi), reached(z.lo, next.lo));
    return _mm512_mask_add_epi16(below, more, below, _mm512_set1_epi16(1));
  }

  const Cells* cells_;
  WordTable<Cells::kCells> entry_;
  FloatTable<128> next_;
};

class BlockDecoder {
 public:
  BlockDecoder(const float* levels, bool residual) {
    float values[256];
    for (int i = 0; i < 256; ++i) {
      const int code = residual ? i : i % 16;
      values[i] = levels ? levels[code] : linear_level(static_cast<uint8_t>(code));
    }
    anchor_levels_.fill(values);
    levels_.fill(values);
  }

  ~BlockDecoder() { _mm_sfence(); }  // streamed lines become visible before what follows

  // Decodes as many blocks as n holds; returns their elements.
  template <typename T>
  int64_t run(const uint8_t* anchor, const uint8_t* residual, int64_t n, const float* center,
              const float* step, T* out, bool stream) const {
    if (!stream || reinterpret_cast<uintptr_t>(out) % 64)
      return each<false>(anchor, residual, n, center, step, out);
    return each<true>(anchor, residual, n, center, step, out);
  }

 private:
  template <bool stream, typename T>
  int64_t each(const uint8_t* anchor, const uint8_t* residual, int64_t n, const float* center,
               const float* step, T* out) const {
    // Copies, which the compiler can keep in registers: the stores might change the members.
    const FloatTable<32> anchor_levels = anchor_levels_;
    const FloatTable<256> levels = levels_;
    int64_t i = 0;
    if (residual)
      for (; i + kBlock <= n; i += kBlock) {
        const __m512i coarse = load_nibbles(anchor + i / 2), fine = load_nibbles(residual + i / 2);
        const __m512i code =
            _mm512_ternarylogic_epi32(_mm512_set1_epi16(15), coarse, _mm512_slli_epi16(fine, 4), 0xca);
        store<stream>(scaled(levels.at(code), center + i, step + i), out + i);
      }
    else
      for (; i + kBlock <= n; i += kBlock)
        store<stream>(scaled(anchor_levels.at(load_nibbles(anchor + i / 2)), center + i, step + i), out + i);
    return i;
  }

  static Floats scaled(Floats level, const float* center, const float* step) {
    const Floats c = load(center), d = load(step);
    return {_mm512_add_ps(c.lo, _mm512_mul_ps(d.lo, level.lo)),
            _mm512_add_ps(c.hi, _mm512_mul_ps(d.hi, level.hi))};
  }

  FloatTable<32> anchor_levels_;  // of nibbles, twice
  FloatTable<256> levels_;        // of code bytes
};

}  // namespace
}  // namespace lynx::cpu
