// No blocks: the compiler vectorises the plain loops (coding.h) well enough for this instruction set.
#pragma once

#include "cpu/plain_coding.h"

namespace lynx::cpu {
namespace {

struct BlockEncoder {
  explicit BlockEncoder(const Cells*) {}

  void prepare(const Quantiser&, int64_t) {}

  template <typename T>
  int64_t run(const T*, uint8_t*, uint8_t*) const {
    return 0;
  }
};

struct BlockDecoder {
  BlockDecoder(const float*, bool) {}

  void prepare(const float*, const float*, int64_t) {}

  template <typename T>
  int64_t run(const uint8_t*, const uint8_t*, T*, bool) const {
    return 0;
  }
};

struct PairEncoder {
  void prepare(const Quantiser&, int64_t) {}

  template <typename T>
  int64_t run(const T*, uint8_t*) const {
    return 0;
  }
};

struct PairDecoder {
  void prepare(const float*, const float*, const float*, int64_t) {}

  template <typename T>
  int64_t run(const uint8_t*, T*, bool) const {
    return 0;
  }
};

}  // namespace
}  // namespace lynx::cpu
