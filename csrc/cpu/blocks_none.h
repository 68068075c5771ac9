// No blocks: the compiler vectorises the plain loops (coding.h) well enough for this instruction set.
#pragma once

#include "cpu/plain_coding.h"

namespace lynx::cpu {
namespace {

struct BlockEncoder {
  explicit BlockEncoder(const Cells*) {}

  template <typename T>
  int64_t run(const T*, int64_t, const Quantiser&, uint8_t*, uint8_t*) const {
    return 0;
  }
};

struct BlockDecoder {
  BlockDecoder(const float*, bool) {}

  template <typename T>
  int64_t run(const uint8_t*, const uint8_t*, int64_t, const float*, const float*, T*, bool) const {
    return 0;
  }
};

}  // namespace
}  // namespace lynx::cpu
