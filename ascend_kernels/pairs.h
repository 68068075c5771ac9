// Device: what both kernels know of codec pair, in which two channels share a byte of each stream
// (lynx_ascend/codec/pairs.py).
#pragma once

#include "metadata.h"

namespace lynx {

// Bits of a channel in the anchor; its partner has the rest of 8.
constexpr int32_t kFewestBits = 2, kEvenBits = 4, kMostBits = 6;
// How many times its partner's scale a channel's must exceed for a fifth and for a sixth bit: pairs.py's.
constexpr float kFifthBit = 1.5f, kSixthBit = 6.0f;
constexpr int32_t kPairBias = 127;  // of a code byte: the index from the chunk's centre, plus this
constexpr int32_t kBlock = 16;      // 16-bit lanes of a block; a quarter of a head is one or two
constexpr int32_t kRepeat = 128;    // and of a repeat

// A channel with `bits` bits in the anchor has N = 128 - gap steps from a chunk's centre to its edge.
__aicore__ constexpr int32_t gap_of(int32_t bits) { return 128 >> bits; }

}  // namespace lynx
