// How a vector instruction walks its operands: repeats of 8 blocks, strides, masks
// (docs/zh/api/SIMD-API/基础API/Memory矢量计算/SIMD计算说明/高维切分.md, 连续计算.md, 掩码.md).
#pragma once
#include <concepts>
#include <initializer_list>

#include "twin/cost.h"
#include "twin/tensor.h"

namespace twin {

// repeatTime. The real calls take uint8_t: 256 would be 0 there.
struct Repeat {
  template <std::integral I>
  Repeat(I value) : times(field<uint8_t>(int64_t(value), "repeatTime")) {}
  uint32_t times;
};

// The lanes of a call: `repeats` times the first `each` of `per_repeat`, of the last repeat the first `last`.
struct Lanes {
  uint32_t repeats, per_repeat, each, last;
  uint32_t in(uint32_t repeat) const { return repeat + 1 == repeats ? last : each; }
};

// `bits`: of the widest operand, which a repeat's 256 bytes are counted in.
Lanes counted(int64_t count, uint32_t bits);
Lanes masked(uint64_t mask, Repeat repeat, uint32_t bits);

// One operand: where it is and how it moves on, in blocks of 32 bytes.
struct Operand {
  Handle handle;
  uint32_t bits, block_stride, repeat_stride;

  template <class T>
  uint32_t byte(uint32_t repeat, uint32_t lane) const {
    constexpr uint32_t per_block = 256 / kBits<T>;
    return handle.byte + (repeat * repeat_stride + lane / per_block * block_stride) * kBlock +
           lane % per_block * kBits<T> / 8;
  }
};

template <class T>
Operand strided(const AscendC::LocalTensor<T>& tensor, uint32_t block_stride, uint32_t repeat_stride) {
  return {tensor.handle(), kBits<T>, block_stride, repeat_stride};
}

template <class T>
Operand contiguous(const AscendC::LocalTensor<T>& tensor, const Lanes& lanes) {
  return strided(tensor, 1, lanes.per_repeat * kBits<T> / 256);
}

// Begins the instruction: alignment, bounds, overlap, and order against all other accesses. Destination
// first.
void begin_vector(const Lanes& lanes, std::initializer_list<Operand> operands);
// The same for operands of one plain run of bytes, which may touch no other operand.
void begin_run(const Handle& handle, uint64_t bytes, bool writes);
void require_apart(const Handle& a, uint64_t a_bytes, const Handle& b, uint64_t b_bytes);

template <class T>
auto load_lane(const Core& core, const Operand& from, uint32_t repeat, uint32_t lane) {
  const uint32_t byte = from.byte<T>(repeat, lane);
  if constexpr (std::is_same_v<T, AscendC::int4b_t>) {
    const uint8_t both = load<uint8_t>(core, byte);
    return int8_t(lane % 2 ? int8_t(both) >> 4 : int8_t(uint8_t(both << 4)) >> 4);
  } else {
    return load<T>(core, byte);
  }
}

template <class T, class V>
void store_lane(Core& core, const Operand& to, uint32_t repeat, uint32_t lane, V value) {
  const uint32_t byte = to.byte<T>(repeat, lane);
  if constexpr (std::is_same_v<T, AscendC::int4b_t>) {
    const uint8_t other = lane % 2 ? core.ub[byte] & 0x0f : 0;  // lanes come in order, and in pairs
    store<uint8_t>(core, byte, uint8_t(other | (value & 15) << (lane % 2 * 4)));
  } else {
    store<T>(core, byte, value);
  }
}

// dst[i] = f(src[i]...) in every lane.
template <class D, class... S, class F, class... From>
void elementwise(double cycles, const Lanes& lanes, const Operand& to, F f, const From&... from) {
  Core& self = core();
  if (lanes.repeats == 0) return;  // a no-op on A2
  begin_vector(lanes, {to, from...});
  for (uint32_t r = 0; r < lanes.repeats; ++r)
    for (uint32_t l = 0, n = lanes.in(r); l < n; ++l)
      store_lane<D>(self, to, r, l, f(load_lane<S>(self, from, r, l)...));
  self.end(lanes.repeats, 0, cost::kInstruction + lanes.repeats * cycles);
}

template <class T, class... Allowed>
void require_type() {
  require(kOneOf<T, Allowed...>, "type", type_name<T>(), " is not supported on A2");
}

}  // namespace twin
