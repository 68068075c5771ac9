// Narrowing and widening of 16-bit floats.
#include "twin/types.h"

#include <algorithm>
#include <vector>

namespace twin {

uint16_t narrow(float value, int mantissa_bits, int min_exponent, int max_exponent, RoundMode mode) {
  const uint16_t sign = uint16_t(float_bits(value) >> 31 << 15);
  const uint16_t infinity = uint16_t((max_exponent - min_exponent + 2) << mantissa_bits);
  if (std::isnan(value)) return uint16_t(sign | infinity | 1u << (mantissa_bits - 1));
  if (std::isinf(value)) return sign | infinity;
  const double magnitude = std::fabs(double(value));
  if (magnitude == 0) return sign;
  const bool nearest = mode == RoundMode::CAST_NONE || mode == RoundMode::CAST_RINT;
  if (nearest &&
      magnitude >= float_from_bits(uint32_t(127 + min_exponent) << 23)) {  // the common case, in integers
    const uint32_t shift = 23 - mantissa_bits, wide = float_bits(value) & 0x7fffffff;
    const uint32_t rounded = (wide + (1u << (shift - 1)) - 1 + (wide >> shift & 1)) >> shift;
    return sign | uint16_t(std::min<uint32_t>(rounded - ((126 + min_exponent) << mantissa_bits), infinity));
  }
  const int exponent = std::max(std::ilogb(magnitude), min_exponent);
  const double steps = std::fabs(round_whole(std::ldexp(double(value), mantissa_bits - exponent), mode));
  // Steps of 2^(exponent - mantissa_bits): the hidden bit carries into the exponent by itself.
  const uint32_t bits = (uint32_t(exponent - min_exponent) << mantissa_bits) + uint32_t(steps);
  return sign | uint16_t(std::min<uint32_t>(bits, infinity));
}

float half_to_float(uint16_t bits) {
  static const std::vector<float> table = [] {
    std::vector<float> values(1 << 16);
    for (uint32_t i = 0; i < values.size(); ++i) {
      const int exponent = i >> 10 & 31, mantissa = i & 1023;
      const double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                               : exponent == 0 ? std::ldexp(mantissa, -24)
                                               : std::ldexp(1024 + mantissa, exponent - 25);
      values[i] = float(i >> 15 ? -magnitude : magnitude);
    }
    return values;
  }();
  return table[bits];
}

}  // namespace twin
