// The decode kernel: payloads of one layer's K or V into the paged cache, from the anchor alone or from both
// streams.
//
// A tile is up to kDecodeRows tokens of one chunk by up to kDecodeLanes channels, in the layout of payload
// and cache: [tokens][channels]. The loads of a core's next tile are issued before the current one is
// computed.
#include "kernel_operator.h"
#include "metadata.h"
#include "page.h"
#include "pair_decoder.h"
#include "tiling.h"

namespace lynx {

using AscendC::int4b_t;
using AscendC::TPosition;

template <typename T, bool full>
class Decode {
 public:
  static constexpr int32_t kElements = kDecodeRows * kDecodeLanes;  // computed at a time
  static constexpr int32_t kCodeBytes = kDecodeChunks * kElements / 2;
  static constexpr int32_t kLane = kDecodeLanes * 4;  // bytes of one fp32 a channel
  static constexpr int32_t kMetadata = kDecodeChunks * kDecodeLanes;
  static constexpr int32_t kWidths = kLane / 2;  // behind gamma of two bytes
  static constexpr int32_t kMu = 2 * kLane, kSigma = kMu + kDecodeChunks * kLane;
  static constexpr int32_t kMetadataBytes = 2 * kLane + 2 * kDecodeChunks * kLane;
  static constexpr int32_t kParameterBytes = Gamma::kParts * kLane + 3 * kDecodeChunks * kLane;
  static constexpr int32_t kBytes = 2 * (full ? 2 : 1) * kCodeBytes + 2 * kMetadataBytes + 2 * kElements * 2 +
                                    kElements * 4 + (full ? kElements * 2 : 0) + kElements * 4 +
                                    kParameterBytes + kTable * 4 + SinkCopy::kBytes;
  static_assert(kBytes <= kUbBytes, "UB");
  static_assert(PairDecoder<full>::kRows <= Gamma::kParts);

  __aicore__ inline Decode(const Tiling& tiling, AscendC::TPipe& pipe, GM_ADDR anchor, GM_ADDR residual,
                           GM_ADDR levels, GM_ADDR block_table, GM_ADDR cache)
      : t_(tiling) {
    anchor_.SetGlobalBuffer(anchor);
    residual_.SetGlobalBuffer(residual);
    levels_.SetGlobalBuffer(levels);
    block_table_.SetGlobalBuffer((__gm__ int32_t*)block_table);
    cache_.SetGlobalBuffer(cache);
    pipe.InitBuffer(anchor_codes_, 2, kCodeBytes);
    if constexpr (full) pipe.InitBuffer(residual_codes_, 2, kCodeBytes);
    pipe.InitBuffer(metadata_, 2, kMetadataBytes);
    pipe.InitBuffer(out_, 2, kElements * 2);
    pipe.InitBuffer(values_, kElements * 4);
    if constexpr (full) pipe.InitBuffer(fine_, kElements * 2);
    pipe.InitBuffer(offsets_, kElements * 4);
    pipe.InitBuffer(parameters_, kParameterBytes);
    pipe.InitBuffer(table_, 1, kTable * 4);
    sink_.init(pipe);
  }

  __aicore__ inline void run() {
    if (t_.sink_tokens > t_.start) sink_.template run<true>(t_, anchor_, cache_, block_table_);
    LocalTensor<float> table;
    if (t_.companded) table = load_table();
    if (t_.quarter) table = fill_table();
    Tile tile = next(AscendC::GetBlockIdx());
    if (tile.rows) load(tile);
    while (tile.rows) {
      const Tile following = next(tile.index + AscendC::GetBlockNum());
      if (following.rows) load(following);
      compute(tile, table);
      tile = following;
    }
    if (t_.companded || t_.quarter) table_.FreeTensor(table);
  }

 private:
  // Tokens row .. row + rows - 1 of a page, of `chunks` chunks, and channels lane .. lane + lanes - 1. No
  // rows: no tile is left.
  struct Tile {
    int32_t index, page, chunk, chunks, row, rows, lane, lanes;
  };

  // The first tile from `index` on, in steps of the number of cores, that has anything to decode.
  __aicore__ inline Tile next(int32_t index) const {
    for (; index < t_.tiles; index += AscendC::GetBlockNum()) {
      const int32_t slice = index % t_.slices, segment = index / t_.slices % t_.segments;
      Tile tile;
      tile.index = index;
      tile.page = index / t_.slices / t_.segments;
      const Page page(t_, tile.page);
      const int32_t chunk = segment / t_.chunk_segments * t_.tile_chunks;
      const int32_t begin = chunk * t_.chunk + segment % t_.chunk_segments * kDecodeRows;
      int32_t end = smaller(page.tokens, (chunk + t_.tile_chunks) * t_.chunk);
      if (t_.chunk_segments > 1) end = smaller(end, begin + kDecodeRows);
      tile.row = larger(begin, larger(page.sink_rows, t_.first - page.first_token));
      tile.rows = end - tile.row;
      tile.chunk = tile.row / t_.chunk;
      tile.chunks = (end - 1) / t_.chunk - tile.chunk + 1;
      tile.lane = slice * t_.lanes;
      tile.lanes = smaller(t_.lanes, t_.channels - tile.lane);
      if (tile.rows > 0) return tile;
    }
    return {};
  }

  // A compander's levels, so permuted that entry 16 * (r + 8) + a + 8 is that of the nibbles r and a, signed:
  // bit 3 of either is flipped. Without a residual 16 entries, for r = 0, stand at the start.
  __aicore__ inline LocalTensor<float> load_table() {
    LocalTensor<uint8_t> raw = table_.template AllocTensor<uint8_t>();
    constexpr int32_t kHalf = 8 * 4, kRow = 16 * 4, kMiddle = 8 * kRow;  // bytes
    const DataCopyExtParams shape{full ? 8 : 1, kHalf, kRow - kHalf, (kRow - kHalf) / 32, 0};
    const DataCopyPadExtParams<uint8_t> pad{false, 0, 0, 0};
    for (int32_t r = 0; r < (full ? 2 : 1); ++r)
      for (int32_t a = 0; a < 2; ++a)
        DataCopyPad(raw[(full ? 1 - r : 0) * kMiddle + (1 - a) * kHalf], levels_[r * kMiddle + a * kHalf],
                    shape, pad);
    table_.EnQue(raw);
    return table_.template DeQue<float>();
  }

  // Codec pair: the steps of the widths there are.
  __aicore__ inline LocalTensor<float> fill_table() {
    LocalTensor<float> table = table_.template AllocTensor<float>();
    table_.EnQue(table);
    table = table_.template DeQue<float>();
    PairDecoder<full>::fill(table);
    return table;
  }

  __aicore__ inline void load(const Tile& tile) {
    const Page page(t_, tile.page);
    GlobalTensor<uint8_t> payload = anchor_[tile.page * t_.anchor_stride];
    const int64_t codes = (static_cast<int64_t>(tile.row - page.sink_rows) * t_.channels + tile.lane) / 2;
    LocalTensor<uint8_t> anchor = anchor_codes_.template AllocTensor<uint8_t>();
    load_rows(anchor, payload[page.codes + codes], tile.rows, tile.lanes / 2, t_.channels / 2);
    anchor_codes_.EnQue(anchor);
    if constexpr (full) {
      LocalTensor<uint8_t> residual = residual_codes_.template AllocTensor<uint8_t>();
      load_rows(residual, residual_[tile.page * t_.residual_stride + codes], tile.rows, tile.lanes / 2,
                t_.channels / 2);
      residual_codes_.EnQue(residual);
    }
    const int32_t wide = t_.alg1 ? 4 : 2, scalar = t_.alg1 ? 4 : 1;
    const int64_t lane = static_cast<int64_t>(tile.chunk) * t_.channels + tile.lane;
    LocalTensor<uint8_t> metadata = metadata_.template AllocTensor<uint8_t>();
    load_rows(metadata, payload[tile.lane * wide], 1, tile.lanes * wide, tile.lanes * wide);
    load_rows(metadata[kLane], payload[page.gamma_max + tile.lane * wide], 1, tile.lanes * wide,
              tile.lanes * wide);
    load_rows(metadata[kMu], payload[page.mu + lane * scalar], tile.chunks, tile.lanes * scalar,
              t_.channels * scalar);
    load_rows(metadata[kSigma], payload[page.sigma + lane * scalar], tile.chunks, tile.lanes * scalar,
              t_.channels * scalar);
    if (t_.quarter)
      load_rows(metadata[kWidths], payload[page.widths + tile.lane / 4], 1, tile.lanes / 4, tile.lanes / 4);
    metadata_.EnQue(metadata);
  }

  __aicore__ inline void compute(const Tile& tile, const LocalTensor<float>& table) {
    LocalTensor<float> parameters = parameters_.template Get<float>();
    LocalTensor<float> center = parameters[Gamma::kParts * kDecodeLanes], step = center[kMetadata];
    derive(tile, parameters, table, center, step);
    LocalTensor<uint8_t> anchor = anchor_codes_.template DeQue<uint8_t>(), residual;
    if constexpr (full) residual = residual_codes_.template DeQue<uint8_t>();
    for (int32_t row = tile.row; row < tile.row + tile.rows;) {
      const int32_t chunk = row / t_.chunk, end = smaller(tile.row + tile.rows, (chunk + 1) * t_.chunk);
      const int32_t rows = end - row, codes = (row - tile.row) * tile.lanes / 2;
      const int32_t at = (chunk - tile.chunk) * tile.lanes;
      LocalTensor<T> out = out_.template AllocTensor<T>();
      LocalTensor<half> coarse = out.template ReinterpretCast<half>(), fine;  // until out is written
      if (t_.quarter) {
        LocalTensor<uint8_t> bytes;
        if constexpr (full) bytes = residual[codes];
        PairDecoder<full>(parameters, tile.lanes, t_.quarter)
            .levels(coarse, anchor[codes], bytes, values_.template Get<uint8_t>(),
                    offsets_.template Get<half>(), rows);
      } else {
        if constexpr (full) fine = unpack(fine_.template Get<half>(), residual[codes], rows * tile.lanes);
        unpack(coarse, anchor[codes], rows * tile.lanes);
      }
      reconstruct(out, coarse, fine, table, center[at], step[at], rows, tile.lanes);
      out_.EnQue(out);
      store(tile, row, rows);
      row = end;
    }
    anchor_codes_.FreeTensor(anchor);
    if constexpr (full) residual_codes_.FreeTensor(residual);
  }

  __aicore__ inline LocalTensor<half> unpack(const LocalTensor<half>& nibbles,
                                             const LocalTensor<uint8_t>& codes, int32_t n) {
    Cast(nibbles, codes.template ReinterpretCast<int4b_t>(), RoundMode::CAST_NONE, n);
    return nibbles;
  }

  // Centre and step of every chunk and channel of the tile. For the linear grid the step is that of 16
  // indices. What pairs have besides replaces gamma.
  __aicore__ inline void derive(const Tile& tile, const LocalTensor<float>& parameters,
                                const LocalTensor<float>& table, const LocalTensor<float>& center,
                                const LocalTensor<float>& step) {
    Gamma gamma(parameters, kDecodeLanes);
    gamma.lanes = tile.lanes;
    gamma.runs = tile.chunks;
    gamma.groups = tile.lanes / kLanes;
    gamma.stride = kBlocks;
    const int32_t n = gamma.size();
    LocalTensor<float> scratch = step[kMetadata];
    LocalTensor<uint8_t> metadata = metadata_.template DeQue<uint8_t>();
    LocalTensor<uint8_t> mu = metadata[kMu], sigma = metadata[kSigma];
    if (t_.alg1) {
      Adds(gamma.low, metadata.template ReinterpretCast<float>(), 0.0f, tile.lanes);
      Adds(gamma.high, metadata[kLane].template ReinterpretCast<float>(), 0.0f, tile.lanes);
      gamma.derive(true);
      centers(center, mu.template ReinterpretCast<float>(), gamma, true);
      half_scales<T>(step, sigma.template ReinterpretCast<float>(), center, scratch, gamma);
    } else {
      LocalTensor<half> narrow = values_.template Get<half>();
      Cast(gamma.low, metadata.template ReinterpretCast<T>(), RoundMode::CAST_NONE, tile.lanes);
      Cast(gamma.high, metadata[kLane].template ReinterpretCast<T>(), RoundMode::CAST_NONE, tile.lanes);
      gamma.derive(false);
      Cast(narrow, mu, RoundMode::CAST_NONE, n);
      Cast(scratch, narrow, RoundMode::CAST_NONE, n);
      centers(center, scratch, gamma, false);
      Cast(narrow, sigma, RoundMode::CAST_NONE, n);
      Cast(step, narrow, RoundMode::CAST_NONE, n);
      half_scales<T>(step, step, center, scratch, gamma);
    }
    Muls(step, step, 2.0f, n);
    if (t_.quarter) {
      const PairDecoder<full> pairs(parameters, tile.lanes, t_.quarter);
      pairs.derive(metadata[kWidths], table);
      for (int32_t at = 0; at < n; at += tile.lanes) Mul(step[at], step[at], pairs.step(), tile.lanes);
    } else {
      Muls(step, step, t_.alg1 ? kAlg1Step : kGridStep, n);
      if (!t_.companded) Muls(step, step, 16.0f, n);
    }
    metadata_.FreeTensor(metadata);
  }

  // The values of `rows` rows of one chunk from nibbles, with pairs from levels; coarse may be out's own
  // memory.
  __aicore__ inline void reconstruct(const LocalTensor<T>& out, const LocalTensor<half>& coarse,
                                     const LocalTensor<half>& fine, const LocalTensor<float>& table,
                                     const LocalTensor<float>& center, const LocalTensor<float>& step,
                                     int32_t rows, int32_t lanes) {
    const int32_t n = rows * lanes;
    LocalTensor<float> values = values_.template Get<float>();
    if (t_.companded)
      companded_levels(values, coarse, fine, table, n);
    else if (t_.quarter)
      Cast(values, coarse, RoundMode::CAST_NONE, n);
    else
      linear_levels(values, coarse, fine, n);
    const uint8_t pitch = lanes / 8;
    const BinaryRepeatParams down{1, 1, 1, pitch, pitch, 0};
    for (int32_t lane = 0; lane < lanes; lane += kLanes) {
      Mul(values[lane], values[lane], step[lane], kLanes, rows, down);
      Add(values[lane], values[lane], center[lane], kLanes, rows, down);
    }
    Cast(out, values, RoundMode::CAST_RINT, n);
  }

  // (I - 120) / 16 = a + 1/2 - r / 16, exact in half.
  __aicore__ inline void linear_levels(const LocalTensor<float>& values, const LocalTensor<half>& coarse,
                                       const LocalTensor<half>& fine, int32_t n) {
    Adds(coarse, coarse, (half)0.5f, n);
    if constexpr (full) {
      Muls(fine, fine, (half)0.0625f, n);
      Sub(coarse, coarse, fine, n);
      Maxs(coarse, coarse, (half)-7.5f, n);
      Mins(coarse, coarse, (half)7.5f, n);
    }
    Cast(values, coarse, RoundMode::CAST_NONE, n);
  }

  // Byte offsets 4 * (16 * (r + 8) + a + 8) into the table, exact in half as well.
  __aicore__ inline void companded_levels(const LocalTensor<float>& values, const LocalTensor<half>& coarse,
                                          const LocalTensor<half>& fine, const LocalTensor<float>& table,
                                          int32_t n) {
    Muls(coarse, coarse, (half)4.0f, n);
    if constexpr (full) {
      Muls(fine, fine, (half)64.0f, n);
      Add(coarse, coarse, fine, n);
      Adds(coarse, coarse, (half)544.0f, n);
    } else {
      Adds(coarse, coarse, (half)32.0f, n);
    }
    LocalTensor<int32_t> bytes = offsets_.template Get<int32_t>();
    Cast(bytes, coarse, RoundMode::CAST_RINT, n);
    Gather(values, table, bytes.template ReinterpretCast<uint32_t>(), 0, n);
  }

  __aicore__ inline void store(const Tile& tile, int32_t row, int32_t rows) {
    LocalTensor<uint8_t> out = out_.template DeQue<uint8_t>();
    const int32_t token = t_.start + tile.page * t_.page + row;
    store_tokens(t_, out, cache_, block_table_, token, rows, tile.lane, tile.lanes);
    out_.FreeTensor(out);
  }

  const Tiling& t_;
  AscendC::TQue<TPosition::VECIN, 2> anchor_codes_, residual_codes_, metadata_;
  AscendC::TQue<TPosition::VECIN, 1> table_;
  AscendC::TQue<TPosition::VECOUT, 2> out_;
  AscendC::TBuf<TPosition::VECCALC> values_, fine_, offsets_, parameters_;
  SinkCopy sink_;
  GlobalTensor<uint8_t> anchor_, residual_, levels_, cache_;
  GlobalTensor<int32_t> block_table_;
};

template <typename T>
__aicore__ inline void decode(const Tiling& t, GM_ADDR anchor, GM_ADDR residual, GM_ADDR levels,
                              GM_ADDR block_table, GM_ADDR cache) {
  AscendC::TPipe pipe;
  if (t.residual)
    Decode<T, true>(t, pipe, anchor, residual, levels, block_table, cache).run();
  else
    Decode<T, false>(t, pipe, anchor, residual, levels, block_table, cache).run();
}

}  // namespace lynx

extern "C" __global__ __aicore__ void lynx_decode_bf16(GM_ADDR anchor, GM_ADDR residual, GM_ADDR levels,
                                                       GM_ADDR block_table, GM_ADDR cache, LynxTiling t) {
  lynx::decode<bfloat16_t>(t, anchor, residual, levels, block_table, cache);
}

extern "C" __global__ __aicore__ void lynx_decode_fp16(GM_ADDR anchor, GM_ADDR residual, GM_ADDR levels,
                                                       GM_ADDR block_table, GM_ADDR cache, LynxTiling t) {
  lynx::decode<half>(t, anchor, residual, levels, block_table, cache);
}
