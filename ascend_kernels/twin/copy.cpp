// DMA between GM and UB: limits, hazards, bytes, cycles.
#include "twin/copy.h"

#include "twin/cost.h"

namespace twin {

namespace {

constexpr uint64_t kMaxRuns = 4095,
                   kMaxRunBytes = 2097151;  // DataCopyPad（GMToUB非对齐数据搬运）.md, table 5

uint64_t padded(const Dma& dma) {
  const uint64_t bytes = dma.left + dma.bytes + dma.right;
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

// The last run's padding counts: it is written too.
void check_ub(const Handle& handle, const Dma& dma) {
  require(handle.byte % kBlock == 0, "align", "UB byte ", handle.byte, " is no multiple of 32");
  const uint64_t needed = dma.count * padded(dma) + (dma.count - 1) * dma.ub_gap;
  const uint64_t room = core().room(handle);
  require(needed <= room, "bounds", needed, " bytes of UB, ", room, " to the end of the buffer");
}

void end_dma(const Dma& dma) {
  const uint64_t bytes = dma.count * dma.bytes;
  core().end(uint32_t(dma.count), bytes, double(bytes) / cost::kDmaBytesPerCycle);
}

}  // namespace

Dma runs(uint64_t count, uint64_t bytes, uint64_t gm_gap, uint64_t ub_gap, uint64_t element) {
  require(count <= kMaxRuns, "range", "blockCount = ", count, " is more than ", kMaxRuns);
  require(bytes <= kMaxRunBytes, "range", "blockLen = ", bytes, " bytes is more than ", kMaxRunBytes);
  require(bytes % element == 0, "align", "blockLen = ", bytes, " bytes is no multiple of the element's ",
          element);
  return {count, bytes, gm_gap, ub_gap};
}

// DataCopy: GM -> VECIN, VECOUT -> GM; DataCopyPad: GM -> VECIN or VECOUT and back (their pages, "数据通路").
// VECCALC is for the vector unit.
void check_dma_place(const Handle& handle, bool padded, bool to_ub) {
  using AscendC::TPosition;
  core().room(handle);
  const TPosition position = core().position(handle);
  const bool fits =
      padded ? position != TPosition::VECCALC : position == (to_ub ? TPosition::VECIN : TPosition::VECOUT);
  require(fits, "position", to_ub ? "GM -> " : "",
          position == TPosition::VECIN    ? "VECIN"
          : position == TPosition::VECOUT ? "VECOUT"
                                          : "VECCALC",
          to_ub ? "" : " -> GM", " is no way of this call");
}

void dma_to_ub(const Handle& handle, const uint8_t* source, const Dma& dma, const void* padding,
               uint32_t element) {
  Core& self = core();
  if (dma.count == 0 || dma.bytes == 0) return;  // a no-op
  require(dma.left <= kBlock && dma.right <= kBlock, "range", "padding of more than 32 bytes");
  check_ub(handle, dma);
  self.begin(PIPE_MTE2);
  uint32_t at = handle.byte;
  for (uint64_t run = 0; run < dma.count; ++run) {
    const uint8_t* from = source + run * (dma.bytes + dma.gm_gap);
    const uint32_t whole = uint32_t(padded(dma)), body = at + uint32_t(dma.left);
    self.touch_global(from, dma.bytes, false);
    self.touch_bytes(at, whole, true);
    // Table 4: padding is paddingValue, or random; without any, the first element fills the last block.
    const void* filler = padding ? padding : dma.left + dma.right == 0 ? from : nullptr;
    std::fill_n(self.defined.begin() + at, whole, filler != nullptr);
    if (filler)
      for (uint32_t i = 0; i < whole; ++i) self.ub[at + i] = static_cast<const uint8_t*>(filler)[i % element];
    std::memcpy(&self.ub[body], from, dma.bytes);
    std::fill_n(self.defined.begin() + body, dma.bytes, 1);
    at += whole + uint32_t(dma.ub_gap);
  }
  end_dma(dma);
}

void dma_to_gm(uint8_t* destination, const Handle& handle, const Dma& dma) {
  Core& self = core();
  if (dma.count == 0 || dma.bytes == 0) return;
  check_ub(handle, dma);
  self.begin(PIPE_MTE3);
  uint32_t at = handle.byte;
  for (uint64_t run = 0; run < dma.count; ++run) {
    uint8_t* to = destination + run * (dma.bytes + dma.gm_gap);
    self.touch_bytes(at, uint32_t(dma.bytes), false);
    self.touch_global(to, dma.bytes, true);
    for (uint64_t i = 0; i < dma.bytes; ++i)
      require(self.defined[at + i], "undefined", "copies UB byte ", at + i, ", which nothing has written");
    std::memcpy(to, &self.ub[at], dma.bytes);
    at += uint32_t(padded(dma) + dma.ub_gap);
  }
  end_dma(dma);
}

}  // namespace twin
