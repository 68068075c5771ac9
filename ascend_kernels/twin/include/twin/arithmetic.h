// Arithmetic and bits on vectors (docs/zh/api/SIMD-API/基础API/Memory矢量计算/基础算术, 逻辑计算, 数据填充).
// Floats: one rounding per operation, subnormals kept; integers wrap. How A2 rounds Div and Ln is not
// documented: IEEE here.
#pragma once
#include "twin/vector.h"

namespace twin {

template <class T>
struct Arithmetic {
  static T add(T a, T b) { return wrap(wide(a) + wide(b)); }
  static T sub(T a, T b) { return wrap(wide(a) - wide(b)); }
  static T mul(T a, T b) { return wrap(wide(a) * wide(b)); }
  static T max(T a, T b) { return a < b || b != b ? b : a; }
  static T min(T a, T b) { return b < a || b != b ? b : a; }
  static T div(T a, T b) { return a / b; }
  static T both(T a, T b) { return T(a & b); }
  static T either(T a, T b) { return T(a | b); }
  static T shift_left(T a, T bits) { return T(uint64_t(a) << shift(bits)); }
  static T shift_right(T a, T bits) { return T(int64_t(a) >> shift(bits)); }  // signed types keep the sign

 private:
  using Wide = std::conditional_t<std::is_integral_v<T>, uint32_t, T>;
  static Wide wide(T value) { return Wide(value); }
  static T wrap(Wide value) { return T(value); }
  static int64_t shift(T bits) {  // ShiftLeft.md, ShiftRight.md
    require(int64_t(bits) >= 0 && int64_t(bits) <= int64_t(kBits<T>), "range", "shift by ", int64_t(bits));
    return int64_t(bits);
  }
};

template <class T, class F>
void unary(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, int64_t count, F f) {
  const Lanes lanes = counted(count, kBits<T>);
  elementwise<T, T>(cost::kVectorScalar, lanes, contiguous(dst, lanes), f, contiguous(src, lanes));
}

template <class T, class F>
void binary(double cycles, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
            const AscendC::LocalTensor<T>& src1, int64_t count, F f) {
  const Lanes lanes = counted(count, kBits<T>);
  elementwise<T, T, T>(cycles, lanes, contiguous(dst, lanes), f, contiguous(src0, lanes),
                       contiguous(src1, lanes));
}

template <class T, class F>
void unary(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, uint64_t mask,
           Repeat repeat, const AscendC::UnaryRepeatParams& p, F f) {
  elementwise<T, T>(cost::kVectorScalar, masked(mask, repeat, kBits<T>),
                    strided(dst, p.dstBlkStride, p.dstRepStride), f,
                    strided(src, p.srcBlkStride, p.srcRepStride));
}

template <class T, class F>
void binary(double cycles, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
            const AscendC::LocalTensor<T>& src1, uint64_t mask, Repeat repeat,
            const AscendC::BinaryRepeatParams& p, F f) {
  elementwise<T, T, T>(cycles, masked(mask, repeat, kBits<T>), strided(dst, p.dstBlkStride, p.dstRepStride),
                       f, strided(src0, p.src0BlkStride, p.src0RepStride),
                       strided(src1, p.src1BlkStride, p.src1RepStride));
}

}  // namespace twin

namespace AscendC {

// Both forms of a call, and the types that its page gives A2.
#define TWIN_BINARY(Name, function, cycles, ...)                                                \
  template <class T>                                                                            \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,  \
            int32_t count) {                                                                    \
    twin::core().call = #Name;                                                                  \
    twin::require_type<T, __VA_ARGS__>();                                                       \
    twin::binary(cycles, dst, src0, src1, count, twin::Arithmetic<T>::function);                \
  }                                                                                             \
  template <class T>                                                                            \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,  \
            uint64_t mask, twin::Repeat repeat, const BinaryRepeatParams& params) {             \
    twin::core().call = #Name;                                                                  \
    twin::require_type<T, __VA_ARGS__>();                                                       \
    twin::binary(cycles, dst, src0, src1, mask, repeat, params, twin::Arithmetic<T>::function); \
  }
TWIN_BINARY(Add, add, twin::cost::kVectorVector, int16_t, half, int32_t, float)
TWIN_BINARY(Sub, sub, twin::cost::kVectorVector, int16_t, half, int32_t, float)
TWIN_BINARY(Mul, mul, twin::cost::kVectorVector, int16_t, half, int32_t, float)
TWIN_BINARY(Max, max, twin::cost::kVectorVector, int16_t, half, int32_t, float)
TWIN_BINARY(Min, min, twin::cost::kVectorVector, int16_t, half, int32_t, float)
TWIN_BINARY(Div, div, twin::cost::kDiv<T>, half, float)
TWIN_BINARY(And, both, twin::cost::kVectorVector, int16_t,
            uint16_t)  // And.md: 32 bits would need twice the count
TWIN_BINARY(Or, either, twin::cost::kVectorVector, int16_t, uint16_t)
#undef TWIN_BINARY

#define TWIN_SCALAR(Name, function, ...)                                                              \
  template <class T>                                                                                  \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar, int32_t count) {   \
    twin::core().call = #Name;                                                                        \
    twin::require_type<T, __VA_ARGS__>();                                                             \
    twin::unary(dst, src, count, [scalar](T x) { return twin::Arithmetic<T>::function(x, scalar); }); \
  }                                                                                                   \
  template <class T>                                                                                  \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar, uint64_t mask,     \
            twin::Repeat repeat, const UnaryRepeatParams& params) {                                   \
    twin::core().call = #Name;                                                                        \
    twin::require_type<T, __VA_ARGS__>();                                                             \
    twin::unary(dst, src, mask, repeat, params,                                                       \
                [scalar](T x) { return twin::Arithmetic<T>::function(x, scalar); });                  \
  }
TWIN_SCALAR(Adds, add, int16_t, half, int32_t, float)
TWIN_SCALAR(Muls, mul, int16_t, half, int32_t, float)
TWIN_SCALAR(Maxs, max, int16_t, half, int32_t, float)
TWIN_SCALAR(Mins, min, int16_t, half, int32_t, float)
TWIN_SCALAR(ShiftLeft, shift_left, int16_t, uint16_t, int32_t, uint32_t)
TWIN_SCALAR(ShiftRight, shift_right, int16_t, uint16_t, int32_t, uint32_t)
#undef TWIN_SCALAR

template <class T>
void Not(const LocalTensor<T>& dst, const LocalTensor<T>& src, int32_t count) {
  twin::core().call = "Not";
  twin::require_type<T, int16_t, uint16_t>();
  twin::unary(dst, src, count, [](T x) { return T(~x); });
}

template <class T>
void Abs(const LocalTensor<T>& dst, const LocalTensor<T>& src, int32_t count) {
  twin::core().call = "Abs";
  twin::require_type<T, half, float>();
  twin::unary(dst, src, count, [](T x) { return T(std::fabs(float(x))); });
}

template <class T>
void Ln(const LocalTensor<T>& dst, const LocalTensor<T>& src, int32_t count) {
  twin::core().call = "Ln";
  twin::require_type<T, half, float>();
  twin::unary(dst, src, count, [](T x) { return T(float(std::log(double(float(x))))); });
}

// Duplicate.md: no 8-bit types.
template <class T>
void Duplicate(const LocalTensor<T>& dst, const T& scalar, int32_t count) {
  twin::core().call = "Duplicate";
  twin::require_type<T, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>();
  const twin::Lanes lanes = twin::counted(count, twin::kBits<T>);
  twin::elementwise<T>(twin::cost::kVectorScalar, lanes, twin::contiguous(dst, lanes),
                       [&] { return scalar; });
}

}  // namespace AscendC
