// Codec `pair` with AVX-512 F, BW, VL and DQ: between values and code bytes, in blocks of 32 channels.
#pragma once

#include "cpu/quantiser.h"
#include "cpu/registers_avx512.h"

namespace lynx::cpu {
namespace {

class PairEncoder {
 public:
  // Takes over the quantiser of the tile of n channels that `run` is called for.
  void prepare(const Quantiser& by, int64_t n) {
    blocks_ = by.regular ? n / kBlock : 0;
    for (int64_t i = 0; i < blocks_ * kBlock; i += kBlock) {
      store_split(load(by.center + i), center_ + i);
      store_split(load(by.inverse + i), inverse_ + i);
    }
  }

  // The code bytes of as many blocks as the tile holds; returns their elements.
  template <typename T>
  int64_t run(const T* x, uint8_t* code) const {
    for (int64_t i = 0; i < blocks_ * kBlock; i += kBlock) {
      const Floats v = load(x + i), c = load_split(center_ + i), r = load_split(inverse_ + i);
      const __m512i even = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_sub_ps(v.even, c.even), r.even));
      const __m512i odd = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_sub_ps(v.odd, c.odd), r.odd));
      const __m512i words = select(_mm512_set1_epi32(0xffff), even, _mm512_slli_epi32(odd, 16));
      const __m512i biased = _mm512_add_epi16(words, _mm512_set1_epi16(127));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(code + i), _mm512_cvtepi16_epi8(biased));
    }
    return blocks_ * kBlock;
  }

 private:
  int64_t blocks_ = 0;
  alignas(64) float center_[kTile], inverse_[kTile];  // of a block's even channels, then of its odd ones
};

class PairDecoder {
 public:
  ~PairDecoder() { _mm_sfence(); }  // streamed lines become visible before what follows

  // Takes over what the tile of n channels that `run` is called for is decoded with.
  void prepare(const float* center, const float* step, const float* steps, int64_t n) {
    blocks_ = n / kBlock;
    for (int64_t i = 0; i < blocks_ * kBlock; i += kBlock) {
      store_split(load(center + i), center_ + i);
      store_split(load(step + i), step_ + i);
      for (int64_t j = i; j < i + kBlock; ++j) {
        low_[j] = static_cast<int16_t>(127 - static_cast<int16_t>(steps[j]));
        high_[j] = static_cast<int16_t>(127 + static_cast<int16_t>(steps[j]));
      }
    }
  }

  // The values of as many blocks as the tile holds; returns their elements.
  template <typename T>
  int64_t run(const uint8_t* code, T* out, bool stream) const {
    if (!stream || reinterpret_cast<uintptr_t>(out) % 64)
      from<false>(code, out);
    else
      from<true>(code, out);
    return blocks_ * kBlock;
  }

 private:
  // A byte within the low bits of 2^23 is a float.
  template <bool stream, typename T>
  void from(const uint8_t* code, T* out) const {
    const __m512i exponent = _mm512_set1_epi32(0x4b000000);
    const __m512 bias = _mm512_set1_ps(0x1p23f + 127);
    for (int64_t i = 0; i < blocks_ * kBlock; i += kBlock) {
      const __m512i bytes =
          _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(code + i)));
      const __m512i words = _mm512_min_epi16(_mm512_max_epi16(bytes, _mm512_load_si512(low_ + i)),
                                             _mm512_load_si512(high_ + i));
      const __m512i even = select(_mm512_set1_epi32(0xffff), words, exponent);
      const __m512i odd = _mm512_or_si512(_mm512_srli_epi32(words, 16), exponent);
      const Floats c = load_split(center_ + i), d = load_split(step_ + i);
      const __m512 at_even = _mm512_sub_ps(_mm512_castsi512_ps(even), bias);
      const __m512 at_odd = _mm512_sub_ps(_mm512_castsi512_ps(odd), bias);
      store<stream>({_mm512_add_ps(c.even, _mm512_mul_ps(d.even, at_even)),
                     _mm512_add_ps(c.odd, _mm512_mul_ps(d.odd, at_odd))},
                    out + i);
    }
  }

  int64_t blocks_ = 0;
  alignas(64) float center_[kTile], step_[kTile];  // of a block's even channels, then of its odd ones
  alignas(64) int16_t low_[kTile], high_[kTile];   // the outermost code bytes
};

}  // namespace
}  // namespace lynx::cpu
