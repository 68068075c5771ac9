// 32 channels in AVX-512 registers (F, BW, VL, DQ): fp32 values, words, and tables looked up by words.
//
// fp32 values are kept as even and odd channels: both halves of a double word, of bf16 or of 16-bit codes,
// then become values without a shuffle, and so do the two nibbles of a byte. Words are kept in order of
// channels.
#pragma once

#include <immintrin.h>

#include "cpu/floats.h"

namespace lynx::cpu {
namespace {

constexpr int64_t kBlock = 32;

struct Floats {
  __m512 even, odd;
};

// a where the mask's bits are set, b elsewhere.
inline __m512i select(__m512i mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

// Word k is word first + k of one register if k is even, first + k - 1 of another if it is odd.
inline __m512i words(int first) {
  alignas(64) int16_t w[32];
  for (int i = 0; i < 32; ++i) w[i] = static_cast<int16_t>(first + i / 2 * 2 + i % 2 * 32);
  return _mm512_load_si512(w);
}

// The lower and the upper words of two registers of double words, in turn.
inline __m512i low_words(__m512i even, __m512i odd) { return _mm512_permutex2var_epi16(even, words(0), odd); }
inline __m512i high_words(__m512i even, __m512i odd) {
  return _mm512_permutex2var_epi16(even, words(1), odd);
}
inline __m512i low_words(Floats x) {
  return low_words(_mm512_castps_si512(x.even), _mm512_castps_si512(x.odd));
}
inline __m512i high_words(Floats x) {
  return high_words(_mm512_castps_si512(x.even), _mm512_castps_si512(x.odd));
}

// fp32 values from their lower and upper words.
inline Floats join(__m512i low, __m512i high) {
  return {_mm512_castsi512_ps(low_words(low, high)), _mm512_castsi512_ps(high_words(low, high))};
}

// Values in order of channels to even and odd, and back.
inline Floats split(__m512 lo, __m512 hi) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(lo, even, hi), _mm512_permutex2var_ps(lo, odd, hi)};
}
inline __m512 lower(Floats x) {
  const __m512i turns = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutex2var_ps(x.even, turns, x.odd);
}
inline __m512 upper(Floats x) {
  const __m512i turns = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  return _mm512_permutex2var_ps(x.even, turns, x.odd);
}

inline Floats load(const BFloat16* x) {
  const __m512i words = _mm512_loadu_si512(x);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}
inline Floats load(const Half* x) {
  const auto* half = reinterpret_cast<const __m256i*>(x);
  return split(_mm512_cvtph_ps(_mm256_loadu_si256(half)), _mm512_cvtph_ps(_mm256_loadu_si256(half + 1)));
}
inline Floats load(const float* x) { return split(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)); }

// fp32 values that lie in memory as even and odd channels already.
inline Floats load_split(const float* x) { return {_mm512_load_ps(x), _mm512_load_ps(x + 16)}; }
inline void store_split(Floats x, float* out) {
  _mm512_store_ps(out, x.even);
  _mm512_store_ps(out + 16, x.odd);
}

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
  const __m512i high = high_words(x), low = low_words(x);
  // (high & 1) | 0x7ffe; avg(a, b) = (a + b + 1) / 2, whose top bit is the carry of low + 0x7fff + (high &
  // 1).
  const __m512i bias = _mm512_ternarylogic_epi32(high, _mm512_set1_epi16(1), _mm512_set1_epi16(0x7ffe), 0xea);
  put<stream>(out, _mm512_add_epi16(high, _mm512_srli_epi16(_mm512_avg_epu16(low, bias), 15)));
}
template <bool stream>
inline void store(Floats x, Half* out) {
  const __m256i lo = _mm512_cvtps_ph(lower(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256i hi = _mm512_cvtps_ph(upper(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  put<stream>(out, _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1));
}
template <bool stream>
inline void store(Floats x, float* out) {
  put<stream>(out, _mm512_castps_si512(lower(x)));
  put<stream>(out + 16, _mm512_castps_si512(upper(x)));
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
      low.part[i] = low_words(load(values + 32 * i));
      high.part[i] = high_words(load(values + 32 * i));
    }
  }
  Floats at(__m512i index) const { return join(low.at(index), high.at(index)); }
};

}  // namespace
}  // namespace lynx::cpu
