// Device: codec pair in decode: what follows from the widths, and from the bytes of a pair to both levels.
//
// Pairs become channels by the strides between blocks of instructions that are needed anyway.
#pragma once

#include "pairs.h"

namespace lynx {

using AscendC::int4b_t;

// For the pairs of up to kDecodeLanes channels, from both streams (`full`) or the anchor alone.
template <bool full>
class PairDecoder {
 public:
  static constexpr int32_t kUnit = 4;                                   // of a table, fp32
  static constexpr int32_t kEntries = kUnit * gap_of(kFewestBits) + 8;  // of a table
  static_assert(kEntries <= kTable);
  static constexpr int32_t kRows = 6;

  // The table of fl(1 / N), in blocks of 8 so far apart that a gap is an offset.
  template <int32_t bits = kFewestBits>
  __aicore__ static inline void fill(const LocalTensor<float>& table) {
    constexpr int32_t gap = gap_of(bits);
    Duplicate(table[kUnit * gap], static_cast<float>(1.0 / (128 - gap)), 8);
    if constexpr (bits < kMostBits) fill<bits + 1>(table);
  }

  // `room` is [kRows][kDecodeLanes].
  __aicore__ inline PairDecoder(const LocalTensor<float>& room, int32_t lanes, int32_t quarter)
      : lanes_(lanes), pairs_(lanes / 2), quarter_(quarter) {
    const LocalTensor<half> at = room.ReinterpretCast<half>();
    up_ = at;
    power_ = at[kDecodeLanes / 2];
    scratch_ = at[kDecodeLanes];
    most_ = at[2 * kDecodeLanes];
    least_ = at[4 * kDecodeLanes];
    gap_ = at[5 * kDecodeLanes];
    low_ = at[6 * kDecodeLanes].ReinterpretCast<uint16_t>();
    high_ = low_[kDecodeLanes / 2];
    offset_ = room[4 * kDecodeLanes].ReinterpretCast<int32_t>();
    step_ = room[5 * kDecodeLanes];
  }

  // fl(1 / N) of each channel.
  __aicore__ inline LocalTensor<float> step() const { return step_; }

  // From nibbles, and the table that fill() made.
  __aicore__ inline void derive(const LocalTensor<uint8_t>& nibbles, const LocalTensor<float>& table) const {
    const LocalTensor<int16_t> width = scratch_.ReinterpretCast<int16_t>();
    Cast(power_, nibbles.ReinterpretCast<int4b_t>(), RoundMode::CAST_NONE, pairs_);
    Cast(width, power_, RoundMode::CAST_RINT, pairs_);
    // Whatever a payload says, no offset leaves the table.
    Maxs(width, width, (int16_t)kFewestBits, pairs_);
    Mins(width, width, (int16_t)kMostBits, pairs_);
    // Powers of two by their exponents.
    Muls(width, width, (int16_t)(1 << 10), pairs_);
    Adds(power_.ReinterpretCast<int16_t>(), width, (int16_t)(15 << 10), pairs_);
    Muls(width, width, (int16_t)-1, pairs_);
    Adds(up_.ReinterpretCast<int16_t>(), width, (int16_t)(23 << 10), pairs_);
    const uint8_t from = quarter_ / kBlock, to = 2 * from, row = pairs_ / kBlock;
    Adds(scratch_, power_, (half)-1.0f, pairs_, 2, UnaryRepeatParams{1, 1, row, 0});
    Cast(low_.ReinterpretCast<uint8_t>(), scratch_, RoundMode::CAST_RINT, lanes_);
    Not(high_, low_, pairs_);
    // 16 gaps of each channel: offsets into the table.
    const UnaryRepeatParams apart{1, 1, to, from};
    Muls(gap_, up_, (half)8.0f, quarter_, pairs_ / quarter_, apart);
    Muls(gap_[quarter_], power_, (half)8.0f, quarter_, pairs_ / quarter_, apart);
    Cast(offset_, gap_, RoundMode::CAST_RINT, lanes_);
    Gather(step_, table, offset_.ReinterpretCast<uint32_t>(), 0, lanes_);
    Muls(gap_, gap_, (half)-0.0625f, lanes_);
    Adds(most_, gap_, (half)128.0f, lanes_);
    if constexpr (full)
      Muls(least_, most_, (half)-1.0f, lanes_);
    else
      Adds(most_[lanes_], gap_, (half)128.0f, lanes_);
  }

  // Levels of `rows` rows. bytes and halves are scratch: four bytes, and three times 16 bits, for a pair.
  __aicore__ inline void levels(const LocalTensor<half>& level, const LocalTensor<uint8_t>& anchor,
                                const LocalTensor<uint8_t>& residual, const LocalTensor<uint8_t>& bytes,
                                const LocalTensor<half>& halves, int32_t rows) const {
    const int32_t m = rows * pairs_;
    const LocalTensor<half> first = halves, second = halves[full ? 2 * m : m];
    mask(bytes, anchor, low_, rows);
    if constexpr (full) {
      mask(bytes[m], residual, high_, rows);
      mask(bytes[2 * m], anchor, high_, rows);
      mask(bytes[3 * m], residual, low_, rows);
      const LocalTensor<uint16_t> words = bytes[2 * m].ReinterpretCast<uint16_t>();
      Or(words, words, bytes[3 * m].ReinterpretCast<uint16_t>(), m / 2);
      Cast(halves, bytes, RoundMode::CAST_NONE, 3 * m);
      const LocalTensor<half> fine = halves[m];
      Muls(fine, fine, (half)0x1p-8f, m);
      Add(first, first, fine, m);
    } else {
      mask(bytes[m], anchor, high_, rows);
      Cast(halves, bytes, RoundMode::CAST_NONE, 2 * m);
    }
    const uint8_t pitch = pairs_ / kBlock;
    Mul(first, first, up_, pairs_, rows, BinaryRepeatParams{1, 1, 1, pitch, pitch, 0});
    // An anchor's bits stand for the middle of what they leave open: with the bias that is N less.
    spread(level, 0, first, rows);
    spread(level, quarter_, second, rows);
    if constexpr (full) clamp(level, rows);
  }

 private:
  // Of each pair's byte the bits that it has in `which`, two rows at a time.
  __aicore__ inline void mask(const LocalTensor<uint8_t>& dst, const LocalTensor<uint8_t>& src,
                              const LocalTensor<uint16_t>& which, int32_t rows) const {
    const uint8_t pitch = pairs_ / kBlock;
    const BinaryRepeatParams down{1, 1, 1, pitch, pitch, 0};
    const LocalTensor<uint16_t> to = dst.ReinterpretCast<uint16_t>(), from = src.ReinterpretCast<uint16_t>();
    And(to, from, which, pairs_, rows / 2, down);
    const int32_t last = (rows - 1) * pairs_ / 2;
    if (rows % 2) And(to[last], from[last], which, pairs_ / 2, 1, down);
  }

  // One channel of each pair to its place, which begins at `at`, less the bias or N; as many rows at a time
  // as a quarter has blocks.
  __aicore__ inline void spread(const LocalTensor<half>& level, int32_t at, const LocalTensor<half>& src,
                                int32_t rows) const {
    const int32_t blocks = quarter_ / kBlock, left = rows % blocks;
    for (int32_t i = 0; i < quarter_; i += kBlock) {
      spread_block(level[at + i], src[i], most_[at + i], pairs_, rows / blocks);
      if (left)
        spread_block(level[(rows - 1) * lanes_ + at + i], src[(rows - 1) * pairs_ + i], most_[at + i],
                     pairs_ / blocks, 1);
    }
  }

  __aicore__ inline void spread_block(const LocalTensor<half>& dst, const LocalTensor<half>& src,
                                      const LocalTensor<half>& most, int32_t count, int32_t repeats) const {
    const uint8_t apart = quarter_ / kBlock, twice = 2 * apart;
    const uint8_t from = pairs_ / kBlock * apart, to = 2 * from;
    if constexpr (full)
      Adds(dst, src, (half)(float)-kPairBias, count, repeats, UnaryRepeatParams{twice, apart, to, from});
    else
      Sub(dst, src, most, count, repeats, BinaryRepeatParams{twice, apart, twice, to, from, 0});
  }

  __aicore__ inline void clamp(const LocalTensor<half>& level, int32_t rows) const {
    const uint8_t pitch = lanes_ / kBlock;
    const BinaryRepeatParams down{1, 1, 1, pitch, pitch, 0};
    for (int32_t lane = 0; lane < lanes_; lane += kRepeat) {
      const int32_t count = lanes_ - lane < kRepeat ? lanes_ - lane : kRepeat;
      Max(level[lane], level[lane], least_[lane], count, rows, down);
      Min(level[lane], level[lane], most_[lane], count, rows, down);
    }
  }

  int32_t lanes_, pairs_, quarter_;
  LocalTensor<half> up_, power_;    // of each pair: 2^(8 - w), 2^w
  LocalTensor<half> most_, least_;  // of each channel: N, for the anchor alone twice; -N
  LocalTensor<half> gap_, scratch_;
  LocalTensor<uint16_t> low_, high_;  // bytes, twice: a pair's lowest w bits, and the others
  LocalTensor<int32_t> offset_;
  LocalTensor<float> step_;
};

}  // namespace lynx
