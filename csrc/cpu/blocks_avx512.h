// Encoding and decoding with AVX-512 F, BW, VL and DQ, in blocks of 32 channels, 16 bytes of nibbles in each
// stream.
#pragma once

#include "cpu/pair_blocks_avx512.h"
#include "cpu/plain_coding.h"
#include "cpu/registers_avx512.h"

namespace lynx::cpu {
namespace {

class BlockEncoder {
 public:
  explicit BlockEncoder(const Cells* cells) : cells_(cells) {
    if (!cells) return;
    for (int i = 0; i < Cells::kCells / 32; ++i) entry_.part[i] = _mm512_load_si512(cells->entry + 32 * i);
    next_.fill(cells->next);
  }

  // Takes over the quantiser of the tile of n channels that `run` is called for.
  void prepare(const Quantiser& by, int64_t n) {
    blocks_ = by.regular ? n / kBlock : 0;
    for (int64_t i = 0; i < blocks_ * kBlock; i += kBlock) {
      const Floats inverse = load(by.inverse + i);
      store_split(load(by.center + i), center_ + i);
      store_split(cells_ ? inverse : negative(inverse), inverse_ + i);
    }
  }

  // Encodes as many blocks as the tile holds; returns their elements.
  template <typename T>
  int64_t run(const T* x, uint8_t* anchor, uint8_t* residual) const {
    if (!cells_)
      each(anchor, residual, 0xf8,
           [&](int64_t i, int64_t j) { return linear(quantity(x, i), quantity(x, j)); });
    else if (cells_->gain == 0.0f)
      companded<false>(x, anchor, residual);
    else
      companded<true>(x, anchor, residual);
    return blocks_ * kBlock;
  }

 private:
  static Floats negative(Floats x) {
    return {_mm512_sub_ps(_mm512_setzero_ps(), x.even), _mm512_sub_ps(_mm512_setzero_ps(), x.odd)};
  }

  template <typename T>
  Floats quantity(const T* x, int64_t i) const {
    const Floats v = load(x + i), c = load_split(center_ + i), r = load_split(inverse_ + i);
    return {_mm512_mul_ps(_mm512_sub_ps(v.even, c.even), r.even),
            _mm512_mul_ps(_mm512_sub_ps(v.odd, c.odd), r.odd)};
  }

  // Writes both streams' nibbles, two blocks at a time. codes(i, j) gives the bytes (A << 4 | R) ^ flip of
  // the blocks i and j: in each quarter of the register 8 of i, then 8 of j.
  template <typename Codes>
  void each(uint8_t* anchor, uint8_t* residual, int flip, const Codes& codes) const {
    const __m512i flips = _mm512_set1_epi8(static_cast<char>(flip));
    const __m512i quarters = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512i streams =
        _mm512_broadcast_i32x4(_mm_set_epi8(14, 12, 10, 8, 6, 4, 2, 0, 15, 13, 11, 9, 7, 5, 3, 1));
    const auto nibbles = [&](int64_t i, int64_t j) {
      const __m512i pairs =
          _mm512_xor_si512(codes(i, j), flips);  // words, from the top: A R of odd, A R of even
      const __m512i inner =
          select(_mm512_set1_epi16(0x0f00), _mm512_slli_epi16(pairs, 4), _mm512_srli_epi16(pairs, 4));
      const __m512i bytes = select(_mm512_set1_epi16(static_cast<short>(0xf00f)), pairs, inner);  // A A R R
      return _mm512_permutexvar_epi32(quarters, _mm512_shuffle_epi8(bytes, streams));
    };
    const int64_t n = blocks_ * kBlock;
    int64_t i = 0;
    for (; i + 2 * kBlock <= n; i += 2 * kBlock) {
      const __m512i both = nibbles(i, i + kBlock);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(anchor + i / 2), _mm512_castsi512_si256(both));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(residual + i / 2), _mm512_extracti64x4_epi64(both, 1));
    }
    if (i < n) {
      const __m512i both = nibbles(i, i);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(anchor + i / 2), _mm512_castsi512_si128(both));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(residual + i / 2), _mm512_extracti64x2_epi64(both, 2));
    }
  }

  // Of -z, rounded: -q, which is q - 1 with all bits flipped. (A << 4 | R) is (q - 1) ^ 7.
  static __m512i linear(Floats a, Floats b) {
    const __m512i even = _mm512_packs_epi32(_mm512_cvtps_epi32(a.even), _mm512_cvtps_epi32(b.even));
    const __m512i odd = _mm512_packs_epi32(_mm512_cvtps_epi32(a.odd), _mm512_cvtps_epi32(b.odd));
    return select(_mm512_set1_epi16(0xff), even, _mm512_slli_epi16(odd, 8));
  }

  template <bool curved, typename T>
  void companded(const T* x, uint8_t* anchor, uint8_t* residual) const {
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
    // The number of thresholds that |z| has passed.
    const auto passed = [&](Floats z) {
      const __m512i even = position(z.even), odd = position(z.odd);
      const __m512i cell =
          low_words(_mm512_srli_epi32(even, Cells::kBits), _mm512_srli_epi32(odd, Cells::kBits));
      const __m512i entry = entries.at(cell);
      const __m512i sum = _mm512_add_epi16(entry, _mm512_and_si512(low_words(even, odd), within));
      if (_mm512_cmpeq_epi16_mask(_mm512_and_si512(sum, within), within)) [[unlikely]]
        return compared(z, _mm512_srli_epi16(entry, Cells::kBits));
      return _mm512_srli_epi16(sum, Cells::kBits);
    };
    const auto signs = [](Floats z) { return _mm512_srai_epi16(high_words(z), 15); };
    if (cells.sign_magnitude) {
      // V = t >> 4 and R = 7 - t modulo 16 for t = M + 7; a negative sign flips V.
      const auto codes = [&](int64_t i) {
        const Floats z = quantity(x, i);
        const __m512 zero = _mm512_setzero_ps();  // added, it takes the sign from -0.0
        const __m512i negative = signs({_mm512_add_ps(z.even, zero), _mm512_add_ps(z.odd, zero)});
        const __m512i t = _mm512_add_epi16(passed(z), _mm512_set1_epi16(7));
        return _mm512_ternarylogic_epi32(t, negative, _mm512_set1_epi16(static_cast<short>(0xfff0)), 0x78);
      };
      each(anchor, residual, 7, [&](int64_t i, int64_t j) { return _mm512_packs_epi16(codes(i), codes(j)); });
    } else {
      const auto codes = [&](int64_t i) {  // q - 1
        const Floats z = quantity(x, i);
        const __m512i positive = _mm512_xor_si512(signs(z), _mm512_set1_epi16(-1));
        return _mm512_add_epi16(_mm512_ternarylogic_epi32(passed(z), positive, positive, 0xc3), positive);
      };
      each(anchor, residual, 7, [&](int64_t i, int64_t j) { return _mm512_packs_epi16(codes(i), codes(j)); });
    }
  }

  // The number of thresholds passed, from that in lower cells and a comparison with the next.
  __m512i compared(Floats z, __m512i below) const {
    const Floats next = next_.at(below);
    const auto reached = [](__m512 v, __m512 threshold) {  // -1 or 0
      const __mmask16 negative = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_LT_OQ);
      const __m512i m = _mm512_castps_si512(_mm512_abs_ps(v));
      const __m512 bound = _mm512_castsi512_ps(_mm512_mask_sub_epi32(m, negative, m, _mm512_set1_epi32(1)));
      return _mm512_movm_epi32(_mm512_cmp_ps_mask(threshold, bound, _CMP_LE_OQ));
    };
    return _mm512_sub_epi16(below, low_words(reached(z.even, next.even), reached(z.odd, next.odd)));
  }

  const Cells* cells_;
  WordTable<Cells::kCells> entry_;
  FloatTable<128> next_;
  int64_t blocks_ = 0;
  alignas(64) float center_[kTile], inverse_[kTile];  // of a block's even channels, then of its odd ones
};

class BlockDecoder {
 public:
  BlockDecoder(const float* levels, bool residual) : linear_(!levels) {
    float values[256];
    for (int i = 0; i < 256; ++i) {
      const int code = residual ? (i & 15) << 4 | i >> 4 : i % 16;
      values[i] = levels ? levels[code] : linear_level(static_cast<uint8_t>(code));
    }
    anchor_levels_ = _mm512_loadu_ps(values);
    levels_.fill(values);
  }

  ~BlockDecoder() { _mm_sfence(); }  // streamed lines become visible before what follows

  // Takes over the centres and steps of the tile of n channels that `run` is called for.
  void prepare(const float* center, const float* step, int64_t n) {
    blocks_ = n / kBlock;
    for (int64_t i = 0; i < blocks_ * kBlock; i += kBlock) {
      store_split(load(center + i), center_ + i);
      store_split(load(step + i), step_ + i);
    }
  }

  // Decodes as many blocks as the tile holds; returns their elements.
  template <typename T>
  int64_t run(const uint8_t* anchor, const uint8_t* residual, T* out, bool stream) const {
    if (!stream || reinterpret_cast<uintptr_t>(out) % 64)
      from<false>(anchor, residual, out);
    else
      from<true>(anchor, residual, out);
    return blocks_ * kBlock;
  }

 private:
  // Never inlined: among the caller's registers the tables would not fit.
  template <bool stream, typename T>
  __attribute__((noinline)) void from(const uint8_t* anchor, const uint8_t* residual, T* out) const {
    // A << 4 | R, one a word.
    const auto codes = [&](int64_t at) {
      return _mm512_or_si512(_mm512_slli_epi16(nibbles(anchor + at), 4), nibbles(residual + at));
    };
    // Copies of the tables, which the compiler can keep in registers: the stores might change the members.
    if (!residual) {
      const __m512 levels = anchor_levels_;
      each<stream>(out, [&](int64_t at) -> Floats {
        const __m512i pairs = bytes(anchor + at);
        return {_mm512_permutexvar_ps(pairs, levels),
                _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), levels)};
      });
    } else if (linear_) {
      each<stream>(out, [&](int64_t at) { return linear(codes(at)); });
    } else {
      const FloatTable<256> levels = levels_;
      each<stream>(out, [&](int64_t at) { return levels.at(codes(at)); });
    }
  }

  template <bool stream, typename T, typename Levels>
  void each(T* out, const Levels& levels) const {
    for (int64_t i = 0; i < blocks_ * kBlock; i += kBlock) {
      const Floats v = levels(i / 2), c = load_split(center_ + i), d = load_split(step_ + i);
      store<stream>({_mm512_add_ps(c.even, _mm512_mul_ps(d.even, v.even)),
                     _mm512_add_ps(c.odd, _mm512_mul_ps(d.odd, v.odd))},
                    out + i);
    }
  }

  // 16 bytes, one a double word; their nibbles, one a word.
  static __m512i bytes(const uint8_t* in) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
  }
  static __m512i nibbles(const uint8_t* in) {
    const __m512i pairs = bytes(in);
    return _mm512_ternarylogic_epi32(pairs, _mm512_slli_epi32(pairs, 12), _mm512_set1_epi16(15), 0xa8);
  }

  // quantiser.h's linear_level. The code with some bits flipped is level + 127; in the low bits of 2^23 it is
  // a float.
  static Floats linear(__m512i codes) {
    const __m512i level = _mm512_xor_si512(codes, _mm512_set1_epi16(0x87));
    const __m512i clamped =
        _mm512_min_epi16(_mm512_max_epi16(level, _mm512_set1_epi16(7)), _mm512_set1_epi16(247));
    const __m512i exponent = _mm512_set1_epi32(0x4b000000);
    const __m512i even = select(_mm512_set1_epi32(0xffff), clamped, exponent);
    const __m512i odd = _mm512_or_si512(_mm512_srli_epi32(clamped, 16), exponent);
    const __m512 bias = _mm512_set1_ps(0x1p23f + 127);
    return {_mm512_sub_ps(_mm512_castsi512_ps(even), bias), _mm512_sub_ps(_mm512_castsi512_ps(odd), bias)};
  }

  bool linear_;
  __m512 anchor_levels_;    // of A
  FloatTable<256> levels_;  // of A << 4 | R
  int64_t blocks_ = 0;
  alignas(64) float center_[kTile], step_[kTile];  // of a block's even channels, then of its odd ones
};

}  // namespace
}  // namespace lynx::cpu
