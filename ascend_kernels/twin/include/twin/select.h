// CompareScalar, Select, Gather (docs/zh/api/SIMD-API/基础API/Memory矢量计算/比较与选择,
// 离散与聚合/Gather.md).
#pragma once
#include "twin/vector.h"

namespace AscendC {

enum class CMPMODE : uint8_t { LT = 0, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR = 0, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };

}  // namespace AscendC

namespace twin {

template <class T>
bool compare(T a, T b, AscendC::CMPMODE mode) {
  switch (mode) {
    case AscendC::CMPMODE::LT:
      return a < b;
    case AscendC::CMPMODE::GT:
      return b < a;
    case AscendC::CMPMODE::EQ:
      return a == b;
    case AscendC::CMPMODE::LE:
      return a < b || a == b;
    case AscendC::CMPMODE::GE:
      return b < a || a == b;
    default:
      return !(a == b);
  }
}

}  // namespace twin

namespace AscendC {

// Compares.md: one bit an element, the first in the lowest; the operand's bytes must be a multiple of 256.
template <class T>
void CompareScalar(const LocalTensor<uint8_t>& dst, const LocalTensor<T>& src, T scalar, CMPMODE mode,
                   uint32_t count) {
  twin::Core& core = twin::core();
  core.call = "CompareScalar";
  twin::require_type<T, half, float>();
  const uint64_t bytes = uint64_t(count) * sizeof(T);
  twin::require(bytes % 256 == 0, "align", count, " elements are no multiple of 256 bytes");
  if (count == 0) return;
  const twin::Lanes lanes = twin::counted(count, twin::kBits<T>);
  twin::require_apart(dst.handle(), count / 8, src.handle(), bytes);
  core.begin(PIPE_V);
  twin::begin_run(src.handle(), bytes, false);
  twin::begin_run(dst.handle(), count / 8, true);
  for (uint32_t byte = 0; byte < count / 8; ++byte) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      const T value = twin::load<T>(core, src.handle().byte + (byte * 8 + i) * uint32_t(sizeof(T)));
      bits |= uint32_t(twin::compare(value, scalar, mode)) << i;
    }
    twin::store<uint8_t>(core, dst.handle().byte + byte, uint8_t(bits));
  }
  core.end(lanes.repeats, 0, twin::cost::kInstruction + lanes.repeats * twin::cost::kVectorScalar);
}

// Select.md, mode 1: src where the bit is 1, else the scalar.
template <class T>
void Select(const LocalTensor<T>& dst, const LocalTensor<uint8_t>& mask, const LocalTensor<T>& src, T scalar,
            SELMODE mode, uint32_t count) {
  twin::Core& core = twin::core();
  core.call = "Select";
  twin::require_type<T, half, float>();
  twin::require(mode == SELMODE::VSEL_TENSOR_SCALAR_MODE, "range",
                "a scalar goes with VSEL_TENSOR_SCALAR_MODE");
  if (count == 0) return;
  const twin::Lanes lanes = twin::counted(count, twin::kBits<T>);
  const uint32_t mask_bytes = (count + 7) / 8;
  twin::require_apart(dst.handle(), uint64_t(count) * sizeof(T), mask.handle(), mask_bytes);
  const twin::Operand to = twin::contiguous(dst, lanes), from = twin::contiguous(src, lanes);
  twin::begin_vector(lanes, {to, from});
  twin::begin_run(mask.handle(), mask_bytes, false);
  for (uint32_t r = 0, i = 0; r < lanes.repeats; ++r)
    for (uint32_t l = 0; l < lanes.in(r); ++l, ++i) {
      const bool taken = twin::load<uint8_t>(core, mask.handle().byte + i / 8) >> (i % 8) & 1;
      twin::store_lane<T>(core, to, r, l, taken ? twin::load_lane<T>(core, from, r, l) : scalar);
    }
  core.end(lanes.repeats, 0, twin::cost::kInstruction + lanes.repeats * twin::cost::kVectorScalar);
}

// Gather.md: dst[i] = the element of src at byte base + offsets[i]; offsets are multiples of the element's
// size.
template <class T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& offsets,
            uint32_t base, uint32_t count) {
  twin::Core& core = twin::core();
  core.call = "Gather";
  twin::require_type<T, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>();
  if (count == 0) return;
  const uint64_t bytes = uint64_t(count) * sizeof(T), room = core.room(src.handle());
  twin::require_apart(dst.handle(), bytes, offsets.handle(), uint64_t(count) * 4);
  core.begin(PIPE_V);
  twin::begin_run(src.handle(), 0, false);
  twin::begin_run(offsets.handle(), uint64_t(count) * 4, false);
  twin::begin_run(dst.handle(), bytes, true);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t at = uint64_t(base) + twin::load<uint32_t>(core, offsets.handle().byte + i * 4);
    twin::require(at % sizeof(T) == 0, "align", "offset ", at, " is no multiple of the element's size");
    twin::require(at + sizeof(T) <= room, "bounds", "offset ", at, " is behind the buffer of src");
    const uint32_t byte = src.handle().byte + uint32_t(at);
    twin::require(byte + sizeof(T) <= dst.handle().byte || byte >= dst.handle().byte + bytes, "overlap",
                  "src and dst are one memory");
    core.touch_bytes(byte, sizeof(T), false);
    twin::store<T>(core, dst.handle().byte + i * uint32_t(sizeof(T)), twin::load<T>(core, byte));
  }
  const uint32_t repeats = (count + 127) / 128;
  core.end(repeats, 0, twin::cost::kInstruction + repeats * twin::cost::kGather);
}

}  // namespace AscendC
