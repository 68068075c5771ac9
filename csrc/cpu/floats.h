// The three element types and their exact conversions, in integer arithmetic so that every compiler agrees.
//
// Everything here is static: a translation unit built for AVX-512 must not lend its code to the others.
#pragma once

#include <cstdint>
#include <cstring>

namespace lynx::cpu {

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

static inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
static inline float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

static inline float widen(float x) { return x; }

static inline float widen(BFloat16 x) { return float_of(uint32_t{x.bits} << 16); }

static inline float widen(Half x) {
  // Shifted into fp32's fields the exponent is 112 too low, subnormals included; Inf and NaN need all its
  // bits.
  const uint32_t magnitude = (uint32_t{x.bits} & 0x7fffu) << 13;
  const uint32_t sign = (uint32_t{x.bits} & 0x8000u) << 16;
  const uint32_t rest = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return float_of((bits_of(float_of(magnitude) * 0x1p112f) | rest) | sign);
}

// Narrowing rounds half to even. Inf and NaN stay so, if they were widened from the same type.
static inline void narrow(float x, float* out) { *out = x; }

static inline void narrow(float x, BFloat16* out) {
  const uint32_t u = bits_of(x);
  out->bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline void narrow(float x, Half* out) {
  const uint32_t u = bits_of(x);
  const uint32_t magnitude = u & 0x7fffffffu;
  // Normal: rebias, then round the 13 bits that go. Subnormal: adding 0.5 leaves the result in the low bits.
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t half = magnitude < 0x47800000u ? finite : (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u);
  out->bits = static_cast<uint16_t>(((u >> 16) & 0x8000u) | half);
}

// FMAX; of fp32 a little less, for the rounding of a reconstruction's last two operations.
template <typename T>
static inline float largest() {
  if constexpr (__is_same(T, BFloat16)) return 0x1.fep127f;
  if constexpr (__is_same(T, Half)) return 65504.0f;
  return static_cast<float>(__FLT_MAX__ * (1 - 0x1p-20));
}

}  // namespace lynx::cpu
