// DataCopy and DataCopyPad between GM and UB (docs/zh/api/SIMD-API/基础API/Memory矢量计算/数据搬运).
#pragma once
#include "twin/tensor.h"

namespace twin {

// One DMA: `count` runs of `bytes`, with gaps in bytes behind each run in GM and, in UB, behind the run and
// its padding.
struct Dma {
  uint64_t count, bytes, gm_gap, ub_gap;
  uint64_t left = 0, right = 0;  // padding, bytes
};

void check_dma_place(const Handle& handle, bool padded, bool to_ub);
void dma_to_ub(const Handle& handle, const uint8_t* source, const Dma& dma, const void* padding,
               uint32_t element);
void dma_to_gm(uint8_t* destination, const Handle& handle, const Dma& dma);

template <class T>
void check_gm_aligned(const T* address) {
  require(reinterpret_cast<uintptr_t>(address) % sizeof(T) == 0, "align",
          "a GM address that is no multiple of ", sizeof(T));
}

// DataCopy（GM与UB连续数据搬运）.md: a length that is no multiple of 32 bytes would be rounded down.
template <class T>
Dma whole(uint32_t count) {
  require(uint64_t(count) * sizeof(T) % kBlock == 0, "align", uint64_t(count) * sizeof(T),
          " bytes are no multiple of 32");
  return {1, uint64_t(count) * sizeof(T), 0, 0};
}

// DataCopy（GM与UB高维切分数据搬运）.md, DataCopyPad: blockCount <= 4095, blockLen <= 2097151 and whole
// elements.
Dma runs(uint64_t count, uint64_t bytes, uint64_t gm_gap, uint64_t ub_gap, uint64_t element);

}  // namespace twin

namespace AscendC {

template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, uint32_t count) {
  twin::core().call = "DataCopy";
  twin::check_dma_place(dst.handle(), false, true);
  twin::check_gm_aligned(src.data());
  twin::dma_to_ub(dst.handle(), reinterpret_cast<uint8_t*>(src.data()), twin::whole<T>(count), nullptr,
                  sizeof(T));
}

template <class T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count) {
  twin::core().call = "DataCopy";
  twin::check_dma_place(src.handle(), false, false);
  twin::check_gm_aligned(dst.data());
  twin::dma_to_gm(reinterpret_cast<uint8_t*>(dst.data()), src.handle(), twin::whole<T>(count));
}

template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& p) {
  twin::core().call = "DataCopy";
  twin::check_dma_place(dst.handle(), false, true);
  twin::check_gm_aligned(src.data());
  const auto dma = twin::runs(p.blockCount, p.blockLen * 32, p.srcStride * 32, p.dstStride * 32, 1);
  twin::dma_to_ub(dst.handle(), reinterpret_cast<uint8_t*>(src.data()), dma, nullptr, sizeof(T));
}

template <class T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p) {
  twin::core().call = "DataCopy";
  twin::check_dma_place(src.handle(), false, false);
  twin::check_gm_aligned(dst.data());
  const auto dma = twin::runs(p.blockCount, p.blockLen * 32, p.dstStride * 32, p.srcStride * 32, 1);
  twin::dma_to_gm(reinterpret_cast<uint8_t*>(dst.data()), src.handle(), dma);
}

template <class T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& p,
                 const DataCopyPadExtParams<T>& pad) {
  twin::core().call = "DataCopyPad";
  twin::check_dma_place(dst.handle(), true, true);
  auto dma = twin::runs(p.blockCount, p.blockLen, p.srcStride, uint64_t(p.dstStride) * 32, sizeof(T));
  dma.left = pad.leftPadding * sizeof(T);
  dma.right = pad.rightPadding * sizeof(T);
  twin::dma_to_ub(dst.handle(), reinterpret_cast<uint8_t*>(src.data()), dma,
                  pad.isPad ? &pad.paddingValue : nullptr, sizeof(T));
}

template <class T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& p) {
  twin::core().call = "DataCopyPad";
  twin::check_dma_place(src.handle(), true, false);
  const auto dma = twin::runs(p.blockCount, p.blockLen, p.dstStride, uint64_t(p.srcStride) * 32, sizeof(T));
  twin::dma_to_gm(reinterpret_cast<uint8_t*>(dst.data()), src.handle(), dma);
}

}  // namespace AscendC
