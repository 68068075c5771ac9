// Element types and rounding (docs/zh/api/SIMD-API/基础API/数据结构/precision_conversion.md,
// 内置数据类型.md).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace AscendC {

// Memory矢量计算/类型转换/Cast.md, "RoundMode". NONE is RINT where precision is lost.
enum class RoundMode { CAST_NONE = 0, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD };

}  // namespace AscendC

namespace twin {

using AscendC::RoundMode;

// `value` rounded to a whole number.
inline double round_whole(double value, RoundMode mode) {
  switch (mode) {
    case RoundMode::CAST_FLOOR:
      return std::floor(value);
    case RoundMode::CAST_CEIL:
      return std::ceil(value);
    case RoundMode::CAST_ROUND:
      return std::round(value);
    case RoundMode::CAST_TRUNC:
      return std::trunc(value);
    case RoundMode::CAST_ODD: {
      const double down = std::floor(value);
      return down == value ? value : std::fmod(down, 2) == 0 ? down + 1 : down;
    }
    default:
      return std::nearbyint(value);
  }
}

// Bits of `value` in a binary format of 16 bits; overflow gives infinity, as IEEE 754 has it for RINT.
uint16_t narrow(float value, int mantissa_bits, int min_exponent, int max_exponent, RoundMode mode);
float half_to_float(uint16_t bits);

inline uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t to_half(float value, RoundMode mode = RoundMode::CAST_RINT) {
  return narrow(value, 10, -14, 15, mode);
}

inline uint16_t to_bfloat16(float value, RoundMode mode = RoundMode::CAST_RINT) {
  return narrow(value, 7, -126, 127, mode);
}

}  // namespace twin

// Sums, differences and products of two halves are exact enough in float that rounding twice is rounding
// once.
struct half {
  uint16_t bits;
  half() = default;
  half(float value) : bits(twin::to_half(value)) {}
  explicit operator float() const { return twin::half_to_float(bits); }
  friend half operator+(half a, half b) { return float(a) + float(b); }
  friend half operator-(half a, half b) { return float(a) - float(b); }
  friend half operator*(half a, half b) { return float(a) * float(b); }
  friend half operator/(half a, half b) { return float(a) / float(b); }
  friend bool operator<(half a, half b) { return float(a) < float(b); }
  friend bool operator==(half a, half b) { return float(a) == float(b); }
};

// No arithmetic: A2's vector unit has none for it.
struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  explicit bfloat16_t(float value) : bits(twin::to_bfloat16(value)) {}
  explicit operator float() const { return twin::float_from_bits(uint32_t(bits) << 16); }
};

namespace AscendC {

// Two to a byte, the even element in the low nibble: assumed, to be checked on hardware.
struct int4b_t {};

}  // namespace AscendC

namespace twin {

template <class T>
constexpr uint32_t kBits = std::is_same_v<T, AscendC::int4b_t> ? 4 : sizeof(T) * 8;

template <class T, class... Allowed>
constexpr bool kOneOf = (std::is_same_v<T, Allowed> || ...);

template <class T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, AscendC::int4b_t>) return "int4b_t";
  if constexpr (std::is_same_v<T, half>) return "half";
  if constexpr (std::is_same_v<T, bfloat16_t>) return "bfloat16_t";
  if constexpr (std::is_same_v<T, float>) return "float";
  if constexpr (std::is_same_v<T, int8_t>) return "int8_t";
  if constexpr (std::is_same_v<T, uint8_t>) return "uint8_t";
  if constexpr (std::is_same_v<T, int16_t>) return "int16_t";
  if constexpr (std::is_same_v<T, uint16_t>) return "uint16_t";
  if constexpr (std::is_same_v<T, int32_t>) return "int32_t";
  if constexpr (std::is_same_v<T, uint32_t>) return "uint32_t";
  return "another type";
}

}  // namespace twin
