// Cast (docs/zh/api/SIMD-API/基础API/Memory矢量计算/类型转换/Cast.md, precision_conversion.md).
#pragma once
#include <limits>

#include "twin/vector.h"

namespace twin {

// The table of A2, as far as the twin has it. Not there: int16 -> int8 and uint8 (compiles in real headers,
// and is wrong), half <-> bfloat16_t.
template <class D, class S>
constexpr bool cast_supported(RoundMode mode) {
  using AscendC::int4b_t;
  const bool none = mode == RoundMode::CAST_NONE, odd = mode == RoundMode::CAST_ODD;
  const bool rounds = !none && !odd;
  if constexpr (std::is_same_v<D, half> && kOneOf<S, int4b_t, int8_t, uint8_t>) return none;
  if constexpr (std::is_same_v<D, float> && kOneOf<S, half, bfloat16_t, int16_t>) return none;
  if constexpr (std::is_same_v<D, int16_t> && std::is_same_v<S, int32_t>) return none;
  if constexpr (std::is_same_v<D, half> && std::is_same_v<S, int16_t>) return rounds || none;
  if constexpr (std::is_same_v<S, half> && kOneOf<D, int4b_t, int8_t, uint8_t>) return rounds || none;
  if constexpr (std::is_same_v<S, half> && kOneOf<D, int16_t, int32_t>) return rounds;
  if constexpr (std::is_same_v<S, bfloat16_t> && std::is_same_v<D, int32_t>) return rounds;
  if constexpr (std::is_same_v<S, float> && kOneOf<D, int16_t, int32_t, bfloat16_t, float>) return rounds;
  if constexpr (std::is_same_v<S, float> && std::is_same_v<D, half>) return true;
  return false;
}

// Whole numbers saturate; NaN gives 0. A finite value too large for a float type depends on a control
// register: error.
template <class D, class S>
auto convert(S source, RoundMode mode) {
  double value;
  if constexpr (std::is_integral_v<S>)
    value = source;
  else
    value = float(source);
  if constexpr (std::is_same_v<D, half> || std::is_same_v<D, bfloat16_t>) {
    D result;
    result.bits = std::is_same_v<D, half> ? to_half(float(value), mode) : to_bfloat16(float(value), mode);
    require(std::isinf(value) || !std::isinf(float(result)), "range", value, " is too large for ",
            type_name<D>());
    return result;
  } else if constexpr (std::is_same_v<D, float>) {
    return float(std::is_same_v<S, float> ? round_whole(value, mode) : value);
  } else {
    using Int = std::conditional_t<std::is_same_v<D, AscendC::int4b_t>, int8_t, D>;
    constexpr bool four = std::is_same_v<D, AscendC::int4b_t>;
    constexpr double low = four ? -8 : double(std::numeric_limits<Int>::min());
    constexpr double high = four ? 7 : double(std::numeric_limits<Int>::max());
    // half -> uint8_t: a negative input is an error in the documentation too.
    require(!(std::is_unsigned_v<Int> && value < 0), "range", "negative ", value, " to ", type_name<D>());
    return std::isnan(value) ? Int(0) : Int(std::clamp(round_whole(value, mode), low, high));
  }
}

}  // namespace twin

namespace AscendC {

template <class D, class S>
void Cast(const LocalTensor<D>& dst, const LocalTensor<S>& src, const RoundMode& mode, uint32_t count) {
  twin::core().call = "Cast";
  twin::require(twin::cast_supported<D, S>(mode), "cast", twin::type_name<S>(), " -> ", twin::type_name<D>(),
                " with round mode ", int(mode), " is not in A2's table");
  constexpr uint32_t widest = std::max(twin::kBits<D>, twin::kBits<S>);
  constexpr bool nibbles = std::is_same_v<D, int4b_t> || std::is_same_v<S, int4b_t>;
  twin::require(!nibbles || count % 2 == 0, "range", "int4b_t with an odd count, ", count);
  const twin::Lanes lanes = twin::counted(count, widest);
  twin::elementwise<D, S>(
      twin::cost::kVectorScalar, lanes, twin::contiguous(dst, lanes),
      [mode](auto value) { return twin::convert<D>(value, mode); }, twin::contiguous(src, lanes));
}

}  // namespace AscendC
