// Checks of accesses to UB and GM against those before.
#include "twin/memory.h"

#include <algorithm>

#include "twin/error.h"
#include "twin/params.h"

namespace twin {

void UbShadow::access(uint32_t index, int pipe, uint32_t number, bool writes, const Pipes& pipes) {
  Block& block = blocks_[index];
  if (block.writer >= 0 && !pipes.before(block.writer, block.written, pipe)) [[unlikely]]
    fail("order",
         text(kPipeNames[pipe], writes ? " writes" : " reads", " the block at UB byte ", index * kBlock,
              " without waiting for ", kPipeNames[block.writer], ", which wrote it"));
  if (!writes) {
    block.read[pipe] = number;
    return;
  }
  for (int reader = 0; reader < kPipes; ++reader)
    if (block.read[reader] && !pipes.before(reader, block.read[reader], pipe)) [[unlikely]]
      fail("order", text(kPipeNames[pipe], " writes the block at UB byte ", index * kBlock,
                         " without waiting for ", kPipeNames[reader], ", which reads it"));
  block.read = {};
  block.writer = pipe;
  block.written = number;
}

GlobalRange::GlobalRange(uintptr_t begin, uint64_t bytes)
    : begin_(begin), bytes_(bytes), writer_(bytes), reader_(bytes), written_(bytes), read_(bytes) {}

void GlobalRange::access(uint64_t offset, uint64_t bytes, int core, int pipe, uint32_t number, bool writes,
                         const Pipes& pipes) {
  const uint8_t self = uint8_t(core + 1);
  for (uint64_t i = offset; i < offset + bytes; ++i) {
    if (writer_[i] && writer_[i] != self)
      fail("cores", text("GM byte ", i, " of a buffer of ", bytes_, " was written by core ", writer_[i] - 1,
                         " in this launch"));
    if (writer_[i] && !pipes.before(PIPE_MTE3, written_[i], pipe))
      fail("order", text(kPipeNames[pipe], writes ? " writes" : " reads", " GM byte ", i, " of a buffer of ",
                         bytes_, " without waiting for MTE3, which wrote it"));
    if (writes) {
      if (reader_[i] && reader_[i] != self)
        fail("cores",
             text("GM byte ", i, " of a buffer of ", bytes_, " is read by another core in this launch"));
      if (read_[i] && !pipes.before(PIPE_MTE2, read_[i], pipe))
        fail("order", text("MTE3 writes GM byte ", i, " of a buffer of ", bytes_,
                           " without waiting for MTE2, which reads it"));
      writer_[i] = self;
      written_[i] = number;
    } else {
      reader_[i] = reader_[i] && reader_[i] != self ? 255 : self;
      if (pipe == PIPE_MTE2) read_[i] = number;
    }
  }
}

GlobalRange& GlobalMemory::find(uintptr_t address, uint64_t bytes) {
  const auto range =
      std::find_if(ranges_.begin(), ranges_.end(), [&](const auto& r) { return r.contains(address); });
  require(range != ranges_.end(), "bounds", "GM address ", address, " is in no buffer of this launch");
  const uint64_t offset = address - range->begin();
  require(bytes <= range->bytes() - offset, "bounds", "GM bytes ", offset, " .. ", offset + bytes,
          " of a buffer of ", range->bytes());
  return *range;
}

}  // namespace twin
