// Device: codec pair in encode: the widths of a page's pairs, and from the places of two channels to the
// bytes that they share.
//
// Channels become pairs by the strides between blocks of instructions that are needed anyway.
#pragma once

#include "pairs.h"

namespace lynx {

using AscendC::CMPMODE;
using AscendC::int4b_t;
using AscendC::SELMODE;

constexpr int32_t kPairs = kLanes / 2;  // of a tile
constexpr int32_t kPairRows = 8;        // rows of a tile that an instruction splits in a repeat

// The first channel of the pairs in block `block` of those of kLanes channels; their second is a quarter on.
__aicore__ inline int32_t first_channel(int32_t block, int32_t quarter) {
  return block * kBlock / quarter * 2 * quarter + block * kBlock % quarter;
}

// For the pairs of kLanes channels.
class PairEncoder {
 public:
  // `room` and `sums` are [kEncodeChunks][kLanes]; what is chosen stays in `room`. `mask` has a bit for each.
  __aicore__ inline PairEncoder(const LocalTensor<float>& room, const LocalTensor<float>& sums,
                                const LocalTensor<uint8_t>& mask, int32_t quarter)
      : room_(room), sums_(sums), mask_(mask), quarter_(quarter) {
    most_ = room[2 * kLanes].ReinterpretCast<int16_t>();
    least_ = most_[kRepeat];
    byte_ = least_[kRepeat];
    power_ = byte_[kRepeat];
    low_ = power_[kLanes];
  }

  // [kLanes], twice: N of each channel.
  __aicore__ inline LocalTensor<float> steps() const { return room_; }

  // Widths from sigma of `chunks` chunks, as whole numbers, and half the page's range; also as nibbles.
  __aicore__ inline void choose(const LocalTensor<float>& sigma, const LocalTensor<float>& half_range,
                                int32_t chunks, const LocalTensor<uint8_t>& nibbles) const {
    const LocalTensor<float> partner = room_[6 * kLanes], excess = room_[7 * kLanes],
                             votes = room_[9 * kLanes];  // the last two of two rows
    // Sums are exact in any order.
    const int32_t added = chunks / 2, kept = chunks - added;
    if (added) Add(sums_, sigma, sigma[kept * kLanes], added * kLanes);
    if (kept > added) Adds(sums_[added * kLanes], sigma[added * kLanes], 0.0f, kLanes);
    for (int32_t rows = kept; rows > 1; rows -= rows / 2)
      Add(sums_, sums_, sums_[(rows - rows / 2) * kLanes], rows / 2 * kLanes);
    Mul(sums_, sums_, half_range, kLanes);
    // A channel has a vote for each bit that it earns. Its partner loses what it wins.
    exchange(partner, sums_);
    Muls(excess, partner, kFifthBit, kLanes);
    Muls(excess[kLanes], partner, kSixthBit, kLanes);
    Sub(excess, sums_, excess, kLanes, 2, BinaryRepeatParams{1, 1, 1, kBlocks, 0, kBlocks});
    CompareScalar(mask_, excess, 0.0f, CMPMODE::GT, 2 * kLanes);
    Duplicate(votes, 1.0f, 2 * kLanes);
    Select(votes, mask_, votes, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 2 * kLanes);
    Add(votes, votes, votes[kLanes], kLanes);
    exchange(partner, votes);
    Sub(votes, votes, partner, kLanes);
    derive(votes, excess);
    const LocalTensor<half> narrow = partner.ReinterpretCast<half>(), firsts = narrow[kLanes];
    Cast(narrow, votes, RoundMode::CAST_RINT, kLanes);
    const uint8_t apart = 2 * kBlock / quarter_;
    Adds(firsts, narrow, (half)(float)kEvenBits, kPairs, 1, UnaryRepeatParams{1, apart, 8, 8});
    Cast(nibbles.ReinterpretCast<int4b_t>(), firsts, RoundMode::CAST_RINT, kPairs);
  }

  // Codes of `rows` rows of places; places are used up as far as the next multiple of kPairRows rows, and
  // codes written. index: room for 16 bits of each.
  __aicore__ inline void code(const LocalTensor<float>& places, const LocalTensor<int16_t>& index,
                              const LocalTensor<uint8_t>& anchor, const LocalTensor<uint8_t>& residual,
                              int32_t rows) const {
    const int32_t whole = (rows + kPairRows - 1) / kPairRows * kPairRows, n = whole * kLanes, m = n / 2;
    if (whole > rows) Duplicate(places[rows * kLanes], 0.0f, (whole - rows) * kLanes);
    Cast(index, places, RoundMode::CAST_RINT, n);  // saturates
    const BinaryRepeatParams down{1, 1, 1, 8, 8, 0};
    Max(index, index, least_, kRepeat, n / kRepeat, down);
    Min(index, index, most_, kRepeat, n / kRepeat, down);
    Adds(index, index, (int16_t)kPairBias, n);

    // Of the first channel's byte times 2^w the high byte is the anchor's share, the low one the residual's;
    // the second's share of the residual is its lowest w bits, in place.
    const LocalTensor<int16_t> first = places.ReinterpretCast<int16_t>(), fine = first[m], coarse = fine[m],
                               both = coarse[m];
    const BinaryRepeatParams gather{2, 4, 0, 16, 32, 0}, again{2, 4, 2, 16, 32, 16};
    for (int32_t block = 0; block < kPairs / kBlock; ++block) {
      const int32_t to = block * kBlock, a = first_channel(block, quarter_), b = a + quarter_;
      Mul(first[to], index[a], power_[b], kRepeat, whole / kPairRows, gather);
      And(fine[to], index[b], low_[b], kRepeat, whole / kPairRows, gather);
      Sub(coarse[to], index[b], fine[to], kRepeat, whole / kPairRows, again);
    }
    ShiftRight(both, first, (int16_t)8, m);
    Add(coarse, coarse, both, m);
    And(both, first, byte_, kRepeat, m / kRepeat, down);
    Add(both, both, fine, m);
    const LocalTensor<half> narrow = index.ReinterpretCast<half>();
    Cast(narrow, coarse, RoundMode::CAST_NONE, 2 * m);
    Cast(anchor, narrow, RoundMode::CAST_RINT, m);
    Cast(residual, narrow[m], RoundMode::CAST_RINT, m);
  }

 private:
  // Of each channel the value of its partner.
  __aicore__ inline void exchange(const LocalTensor<float>& dst, const LocalTensor<float>& src) const {
    const uint8_t pitch = quarter_ / 4;  // half a head, in blocks
    const UnaryRepeatParams heads{1, 1, pitch, pitch};
    Adds(dst, src[quarter_], 0.0f, quarter_, kPairs / quarter_, heads);
    Adds(dst[quarter_], src, 0.0f, quarter_, kPairs / quarter_, heads);
  }

  // What coding needs, from how many bits more than kEvenBits each channel has. scratch: two rows.
  __aicore__ inline void derive(const LocalTensor<float>& more, const LocalTensor<float>& scratch) const {
    const LocalTensor<int32_t> exponent = scratch.ReinterpretCast<int32_t>();
    const LocalTensor<float> part = scratch[kLanes];
    Cast(exponent, more, RoundMode::CAST_RINT, kLanes);
    Muls(exponent, exponent, -(1 << 23), kLanes);
    Adds(exponent, exponent, (127 - kEvenBits) << 23, kLanes);  // makes scratch 2 to minus its bits
    Muls(part, scratch, -128.0f, kLanes);
    Adds(steps(), part, 128.0f, kLanes, 2, UnaryRepeatParams{1, 1, kBlocks, 0});
    Cast(most_, steps(), RoundMode::CAST_RINT, kRepeat);
    Muls(least_, most_, (int16_t)-1, kRepeat);
    Muls(part, scratch, 256.0f, kLanes);
    Cast(power_, part, RoundMode::CAST_RINT, kLanes);
    Adds(low_, power_, (int16_t)-1, kLanes);
    Duplicate(byte_, (int16_t)255, kRepeat);
  }

  LocalTensor<float> room_, sums_;
  LocalTensor<uint8_t> mask_;
  LocalTensor<int16_t> most_, least_;  // N and -N of each channel, twice
  LocalTensor<int16_t> byte_;          // 255
  LocalTensor<int16_t> power_, low_;   // where a pair's second channel is: 2^w and 2^w - 1
  int32_t quarter_;
};

}  // namespace lynx
