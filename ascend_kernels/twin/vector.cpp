// Rules of vector instructions: what their operands may be.
#include "twin/vector.h"

#include <algorithm>

namespace twin {

namespace {

uint32_t blocks_of(const Operand& operand, uint32_t lanes) { return (lanes * operand.bits + 255) / 256; }

uint32_t block(const Operand& operand, uint32_t repeat, uint32_t index) {
  return operand.handle.byte / kBlock + repeat * operand.repeat_stride + index * operand.block_stride;
}

// 通用说明和约束.md, "通用地址重叠约束": within a repeat sources are the destination or apart from it, and no
// repeat reads what an earlier one wrote. (The exception for src1 with a repeat stride of 0 is not in the
// twin.)
void check_overlap(const Lanes& lanes, const Operand& to, const Operand& from) {
  thread_local std::vector<uint32_t> written(kUbBytes / kBlock);
  std::fill(written.begin(), written.end(), 0);
  for (uint32_t r = 0; r < lanes.repeats; ++r) {
    const uint32_t reads = blocks_of(from, lanes.in(r)), writes = blocks_of(to, lanes.in(r));
    for (uint32_t i = 0; i < reads; ++i) {
      const uint32_t source = block(from, r, i);
      require(!written[source], "overlap", "repeat ", r, " reads UB byte ", source * kBlock,
              ", which repeat ", written[source] - 1, " wrote");
      for (uint32_t j = 0; j < writes; ++j)
        require(block(to, r, j) != source || (i == j && to.bits == from.bits), "overlap",
                "source and destination overlap in part at UB byte ", source * kBlock);
    }
    for (uint32_t j = 0; j < writes; ++j) written[block(to, r, j)] = r + 1;
  }
}

struct Extent {
  uint32_t first, last;  // blocks
};

// Strides are not negative: the farthest block is of the last repeat, or of the one before, which may have
// more lanes.
Extent extent(const Lanes& lanes, const Operand& operand) {
  const uint32_t r = lanes.repeats - 1;
  const uint32_t last = block(operand, r, blocks_of(operand, lanes.last) - 1);
  const uint32_t before = r ? block(operand, r - 1, blocks_of(operand, lanes.each) - 1) : 0;
  return {block(operand, 0, 0), std::max(before, last)};
}

void check_place(const Operand& operand, const Extent& extent) {
  require(operand.handle.byte % kBlock == 0, "align", "UB byte ", operand.handle.byte,
          " is no multiple of 32");
  const uint32_t room = core().room(operand.handle);
  require((extent.last + 1) * kBlock <= operand.handle.byte + room, "bounds", "reaches UB byte ",
          (extent.last + 1) * kBlock, ", the buffer ends at ", operand.handle.byte + room);
}

}  // namespace

Lanes counted(int64_t count, uint32_t bits) {
  require(count >= 0 && count <= int64_t(kUbBytes) * 2, "range", "count = ", count);
  const uint32_t per_repeat = 2048 / bits, n = uint32_t(count);
  const uint32_t repeats = (n + per_repeat - 1) / per_repeat;
  return {repeats, per_repeat, per_repeat, repeats ? n - (repeats - 1) * per_repeat : 0};
}

Lanes masked(uint64_t mask, Repeat repeat, uint32_t bits) {
  const uint32_t per_repeat = 2048 / bits;
  require(mask >= 1 && mask <= per_repeat, "range", "mask = ", mask, " is not in 1 .. ", per_repeat);
  return {repeat.times, per_repeat, uint32_t(mask), uint32_t(mask)};
}

void begin_vector(const Lanes& lanes, std::initializer_list<Operand> operands) {
  Core& self = core();
  const Operand& to = *operands.begin();
  require(to.block_stride > 0, "range", "dstBlkStride = 0");  // 高维切分.md
  const Extent target = extent(lanes, to);
  check_place(to, target);
  for (const Operand* from = &to + 1; from != operands.end(); ++from) {
    const Extent source = extent(lanes, *from);
    check_place(*from, source);
    if (source.first <= target.last && target.first <= source.last) check_overlap(lanes, to, *from);
  }
  self.begin(PIPE_V);
  for (const Operand* operand = operands.end(); operand-- != &to;)
    for (uint32_t r = 0; r < lanes.repeats; ++r)
      for (uint32_t i = 0, n = blocks_of(*operand, lanes.in(r)); i < n; ++i)
        self.touch(block(*operand, r, i), operand == &to);
}

void begin_run(const Handle& handle, uint64_t bytes, bool writes) {
  Core& self = core();
  require(handle.byte % kBlock == 0, "align", "UB byte ", handle.byte, " is no multiple of 32");
  require(bytes <= self.room(handle), "bounds", bytes, " bytes, ", self.room(handle),
          " to the end of the buffer");
  self.touch_bytes(handle.byte, uint32_t(bytes), writes);
}

void require_apart(const Handle& a, uint64_t a_bytes, const Handle& b, uint64_t b_bytes) {
  require(a.byte + a_bytes <= b.byte || b.byte + b_bytes <= a.byte, "overlap",
          "operands overlap that must be apart, at UB bytes ", a.byte, " and ", b.byte);
}

}  // namespace twin
