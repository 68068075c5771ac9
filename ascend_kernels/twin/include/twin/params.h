// Enumerations and parameter structs of the calls (docs/zh/api/SIMD-API/基础API/辅助数据结构 and 数据搬运).
#pragma once
#include <cstdint>

#include "twin/error.h"
#include "twin/types.h"

enum pipe_t { PIPE_S = 0, PIPE_V, PIPE_MTE2, PIPE_MTE3, PIPE_ALL };
enum event_t { EVENT_ID0 = 0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };

namespace AscendC {

using ::event_t;
using TEventID = int8_t;
enum class TPosition : uint8_t { GM, VECIN, VECOUT, VECCALC };
using QuePosition = TPosition;

// 核内同步能力概述.md, table 3: the pairs that a vector core has.
enum class HardEvent : uint8_t {
  MTE2_V,
  V_MTE2,
  V_MTE3,
  MTE3_V,
  MTE2_S,
  S_MTE2,
  V_S,
  S_V,
  MTE3_S,
  S_MTE3,
  MTE2_MTE3,
  MTE3_MTE2
};

}  // namespace AscendC

namespace twin {

// A field that the hardware holds in `bits` bits: real headers truncate, the twin refuses.
template <class Field>
Field field(int64_t value, const char* name) {
  require(value >= 0 && value <= int64_t(Field(-1)), "range", name, " = ", value, " is not in 0 .. ",
          int64_t(Field(-1)));
  return Field(value);
}

}  // namespace twin

namespace AscendC {

// 辅助数据结构/UnaryRepeatParams.md
struct UnaryRepeatParams {
  UnaryRepeatParams() = default;
  UnaryRepeatParams(int64_t dstBlk, int64_t srcBlk, int64_t dstRep, int64_t srcRep)
      : dstBlkStride(twin::field<uint16_t>(dstBlk, "dstBlkStride")),
        srcBlkStride(twin::field<uint16_t>(srcBlk, "srcBlkStride")),
        dstRepStride(twin::field<uint8_t>(dstRep, "dstRepStride")),
        srcRepStride(twin::field<uint8_t>(srcRep, "srcRepStride")) {}
  uint16_t dstBlkStride = 1, srcBlkStride = 1;
  uint8_t dstRepStride = 8, srcRepStride = 8;
};

// 辅助数据结构/BinaryRepeatParams.md
struct BinaryRepeatParams {
  BinaryRepeatParams() = default;
  BinaryRepeatParams(int64_t dstBlk, int64_t src0Blk, int64_t src1Blk, int64_t dstRep, int64_t src0Rep,
                     int64_t src1Rep)
      : dstBlkStride(twin::field<uint8_t>(dstBlk, "dstBlkStride")),
        src0BlkStride(twin::field<uint8_t>(src0Blk, "src0BlkStride")),
        src1BlkStride(twin::field<uint8_t>(src1Blk, "src1BlkStride")),
        dstRepStride(twin::field<uint8_t>(dstRep, "dstRepStride")),
        src0RepStride(twin::field<uint8_t>(src0Rep, "src0RepStride")),
        src1RepStride(twin::field<uint8_t>(src1Rep, "src1RepStride")) {}
  uint8_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1;
  uint8_t dstRepStride = 8, src0RepStride = 8, src1RepStride = 8;
};

// 数据搬运/DataCopy（GM与UB高维切分数据搬运）.md: everything in blocks of 32 bytes.
struct DataCopyParams {
  DataCopyParams() = default;
  DataCopyParams(int64_t count, int64_t len, int64_t src, int64_t dst)
      : blockCount(twin::field<uint16_t>(count, "blockCount")),
        blockLen(twin::field<uint16_t>(len, "blockLen")),
        srcStride(twin::field<uint16_t>(src, "srcStride")),
        dstStride(twin::field<uint16_t>(dst, "dstStride")) {}
  uint16_t blockCount = 1, blockLen = 0, srcStride = 0, dstStride = 0;
};

// 数据搬运/DataCopyPad（GMToUB非对齐数据搬运）.md: blockLen and the stride in GM in bytes, that in UB in
// blocks.
struct DataCopyExtParams {
  DataCopyExtParams() = default;
  DataCopyExtParams(int64_t count, int64_t len, int64_t src, int64_t dst, int64_t)
      : blockCount(twin::field<uint16_t>(count, "blockCount")),
        blockLen(twin::field<uint32_t>(len, "blockLen")),
        srcStride(twin::field<uint32_t>(src, "srcStride")),
        dstStride(twin::field<uint32_t>(dst, "dstStride")) {}
  uint16_t blockCount = 1;
  uint32_t blockLen = 0, srcStride = 0, dstStride = 0, rsv = 0;
};

template <class T>
struct DataCopyPadExtParams {
  DataCopyPadExtParams() = default;
  DataCopyPadExtParams(bool pad, int64_t left, int64_t right, T value)
      : isPad(pad),
        leftPadding(twin::field<uint8_t>(left, "leftPadding")),
        rightPadding(twin::field<uint8_t>(right, "rightPadding")),
        paddingValue(value) {}
  bool isPad = false;
  uint8_t leftPadding = 0, rightPadding = 0;
  T paddingValue = T(0);
};

}  // namespace AscendC
