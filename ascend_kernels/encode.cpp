// The encode kernel: pages of one layer's K or V from the paged cache into the payloads of both streams.
//
// A tile is a whole page by kLanes channels, which stays in UB for both passes: one measures it, one codes
// it. Each pass takes kGroup tokens at a time. The load of a core's next tile is issued before the current
// one is computed.
#include "coding.h"
#include "kernel_operator.h"
#include "page.h"
#include "pair_encoder.h"
#include "statistics.h"
#include "tiling.h"

namespace lynx {

using AscendC::TPosition;

template <typename T, bool companded>
class Encode {
 public:
  static constexpr int32_t kGroup = companded ? 64 : 128;
  static constexpr int32_t kElements = kGroup * kLanes;
  static constexpr int32_t kPart = kElements / 2;  // what a compander takes at a time
  static constexpr int32_t kCodeBytes = kElements / 2;
  static constexpr int32_t kPageBytes = kEncodePage * kLanes * 2;
  static constexpr int32_t kRow = kLanes * 4;
  static constexpr int32_t kMetadataBytes = 2 * kRow + 2 * Chunks::kSize * 4;
  static constexpr int32_t kStatisticsBytes = (Gamma::kParts + 1) * kRow + Chunks::kParts * Chunks::kSize * 4;
  static constexpr int32_t kBytes = 2 * kPageBytes + kElements * 4 + kElements * 2 + 2 * 2 * kCodeBytes +
                                    2 * kMetadataBytes + kStatisticsBytes + Chunks::kSize / 8 +
                                    SinkCopy::kBytes + (companded ? 4 * kPart * 4 + Thresholds::kBytes : 0);
  static_assert(kBytes <= kUbBytes, "UB");
  static_assert(kGroup % kEncodeMaxChunk == 0);

  __aicore__ inline Encode(const Tiling& tiling, AscendC::TPipe& pipe, GM_ADDR cache, GM_ADDR block_table,
                           GM_ADDR thresholds, GM_ADDR anchor, GM_ADDR residual)
      : t_(tiling) {
    thresholds_.SetGlobalBuffer(thresholds);
    cache_.SetGlobalBuffer(cache);
    block_table_.SetGlobalBuffer((__gm__ int32_t*)block_table);
    anchor_.SetGlobalBuffer(anchor);
    residual_.SetGlobalBuffer(residual);
    pipe.InitBuffer(pages_, 2, kPageBytes);
    pipe.InitBuffer(anchor_codes_, 2, kCodeBytes);
    pipe.InitBuffer(residual_codes_, 2, kCodeBytes);
    pipe.InitBuffer(metadata_, 2, kMetadataBytes);
    pipe.InitBuffer(values_, kElements * 4);
    pipe.InitBuffer(scratch_, kElements * 2);
    pipe.InitBuffer(statistics_, kStatisticsBytes);
    pipe.InitBuffer(mask_, Chunks::kSize / 8);
    if constexpr (companded) {
      pipe.InitBuffer(places_, 4 * kPart * 4);
      pipe.InitBuffer(table_, 1, Thresholds::kBytes);
    }
    sink_.init(pipe);

    LocalTensor<float> at = statistics_.template Get<float>();
    parameters_ = at;
    LocalTensor<float>* parts[] = {&chunks_.low,   &chunks_.high,   &chunks_.middle, &chunks_.mu,
                                   &chunks_.sigma, &chunks_.center, &chunks_.lift,   &chunks_.inverse};
    chunks_.divisor = at[Gamma::kParts * kLanes];
    for (int32_t i = 0; i < Chunks::kParts; ++i)
      *parts[i] = at[(Gamma::kParts + 1) * kLanes + i * Chunks::kSize];
    chunks_.mask = mask_.template Get<uint8_t>();
    chunks_.rounded = scratch_.template Get<int16_t>();
    chunks_.narrow = scratch_.template Get<half>()[Chunks::kSize];
  }

  __aicore__ inline void run() {
    if (t_.sink_tokens > t_.start) sink_.template run<false>(t_, anchor_, cache_, block_table_);
    LocalTensor<float> table;
    if constexpr (companded) table = load_table();
    int32_t index = AscendC::GetBlockIdx();
    if (index < t_.tiles) load(index);
    for (; index < t_.tiles; index += AscendC::GetBlockNum()) {
      const int32_t following = index + AscendC::GetBlockNum();
      if (following < t_.tiles) load(following);
      encode(index, table);
    }
    if constexpr (companded) table_.FreeTensor(table);
  }

 private:
  __aicore__ inline void load(int32_t index) {
    const Page page(t_, index / t_.slices);
    LocalTensor<uint8_t> x = pages_.template AllocTensor<uint8_t>();
    load_tokens(t_, x, cache_, block_table_, page.first_token, page.tokens, index % t_.slices * kLanes,
                kLanes);
    pages_.EnQue(x);
  }

  __aicore__ inline int32_t steps() const { return t_.alg1 ? kAlg1Steps : kGridSteps; }

  // In memory that serves for metadata before.
  __aicore__ inline PairEncoder pairs() const {
    return PairEncoder(chunks_.mu, chunks_.middle, chunks_.mask, t_.quarter);
  }

  // The thresholds above 0, as Thresholds wants them.
  __aicore__ inline LocalTensor<float> load_table() {
    LocalTensor<uint8_t> raw = table_.template AllocTensor<uint8_t>();
    load_rows(raw[32], thresholds_[(steps() + t_.alg1) * 4], 1, steps() * 4, steps() * 4);
    table_.EnQue(raw);
    return table_.template DeQue<float>();
  }

  __aicore__ inline void encode(int32_t index, const LocalTensor<float>& table) {
    const Page page(t_, index / t_.slices);
    const int32_t lane = index % t_.slices * kLanes;
    Gamma gamma(parameters_, kLanes);
    gamma.lanes = kLanes;
    gamma.runs = 1;
    gamma.groups = page.chunks;
    gamma.stride = 0;
    LocalTensor<T> x = pages_.template DeQue<T>();
    measure(x, page, gamma);
    write_metadata(index, page, lane, gamma);
    chunks_.template derive_lift<T>(gamma);
    if (t_.quarter)
      Muls(chunks_.inverse, pairs().steps(), 0.5f, kLanes, page.chunks, UnaryRepeatParams{1, 1, kBlocks, 0});
    else  // linear_index turns the sign
      Duplicate(chunks_.inverse, 0.5f * (companded ? steps() : -kGridSteps), gamma.size());
    chunks_.derive_inverse(gamma);
    for (int32_t row = 0; row < page.tokens; row += kGroup) {
      const int32_t rows = smaller(kGroup, page.tokens - row);
      if (row + rows > page.sink_rows) code(x, table, index, page, row, rows, lane);
    }
    pages_.FreeTensor(x);
  }

  // Ranges of the chunks and the page, and means.
  __aicore__ inline void measure(const LocalTensor<T>& x, const Page& page, const Gamma& gamma) {
    LocalTensor<float> values = values_.template Get<float>();
    // Half a group's rows, and, in statistics that come later, a quarter's.
    const Scratch scratch{scratch_.template Get<float>(), chunks_.lift};
    for (int32_t row = 0; row < page.tokens; row += kGroup) {
      const int32_t rows = smaller(kGroup, page.tokens - row), chunk = row / t_.chunk;
      const int32_t padded = (rows + t_.chunk - 1) / t_.chunk * t_.chunk;
      Cast(values, x[row * kLanes], RoundMode::CAST_NONE, rows * kLanes);
      if (padded > rows) {  // the last chunk is short: repeat its first row
        const LocalTensor<float> first = values[(padded - t_.chunk) * kLanes];
        Adds(values[rows * kLanes], first, 0.0f, kLanes, padded - rows, UnaryRepeatParams{1, 1, kBlocks, 0});
      }
      chunk_extremes<Extreme::kMin>(chunks_.low[chunk * kLanes], values, padded, t_.chunk, scratch);
      chunk_extremes<Extreme::kMax>(chunks_.high[chunk * kLanes], values, padded, t_.chunk, scratch);
      if (t_.mean) chunk_means(chunks_.middle[chunk * kLanes], values, rows, t_.chunk, scratch.first);
    }
    Adds(chunks_.low, chunks_.low, 0.0f, gamma.size());  // no -0.0
    Adds(chunks_.high, chunks_.high, 0.0f, gamma.size());
    extreme_of<Extreme::kMin>(gamma.low, chunks_.low, page.chunks, scratch);
    extreme_of<Extreme::kMax>(gamma.high, chunks_.high, page.chunks, scratch);
    gamma.derive(t_.alg1);
  }

  // Metadata, and what else coding needs of it.
  __aicore__ inline void write_metadata(int32_t index, const Page& page, int32_t lane, const Gamma& gamma) {
    const int32_t n = gamma.size(), wide = t_.alg1 ? 4 : 2, scalar = t_.alg1 ? 4 : 1;
    constexpr int32_t kWidths = kRow / 2;  // behind gamma of two bytes
    constexpr int32_t kMu = 2 * kRow, kSigma = kMu + Chunks::kSize * 4;
    LocalTensor<uint8_t> out = metadata_.template AllocTensor<uint8_t>();
    chunks_.derive_metadata(gamma, t_.alg1, t_.mean, out[kMu], out[kSigma]);
    if (t_.alg1) {
      Adds(out.template ReinterpretCast<float>(), gamma.low, 0.0f, kLanes);
      Adds(out[kRow].template ReinterpretCast<float>(), gamma.high, 0.0f, kLanes);
      Adds(out[kMu].template ReinterpretCast<float>(), chunks_.mu, 0.0f, n);
      Adds(out[kSigma].template ReinterpretCast<float>(), chunks_.sigma, 0.0f, n);
    } else {
      Cast(out.template ReinterpretCast<T>(), gamma.low, RoundMode::CAST_RINT, kLanes);
      Cast(out[kRow].template ReinterpretCast<T>(), gamma.high, RoundMode::CAST_RINT, kLanes);
    }
    if (t_.quarter) pairs().choose(chunks_.sigma, gamma.half, page.chunks, out[kWidths]);
    metadata_.EnQue(out);
    out = metadata_.template DeQue<uint8_t>();
    GlobalTensor<uint8_t> payload = anchor_[index / t_.slices * t_.anchor_stride];
    const int32_t pitch = t_.channels * scalar;
    store_rows(payload[lane * wide], out, 1, kLanes * wide, kLanes * wide);
    store_rows(payload[page.gamma_max + lane * wide], out[kRow], 1, kLanes * wide, kLanes * wide);
    store_rows(payload[page.mu + lane * scalar], out[kMu], page.chunks, kLanes * scalar, pitch);
    store_rows(payload[page.sigma + lane * scalar], out[kSigma], page.chunks, kLanes * scalar, pitch);
    if (t_.quarter) store_rows(payload[page.widths + lane / 4], out[kWidths], 1, kLanes / 4, kLanes / 4);
    metadata_.FreeTensor(out);
  }

  // Codes tokens row .. row + rows - 1 of the page, and writes those behind the sink.
  __aicore__ inline void code(const LocalTensor<T>& x, const LocalTensor<float>& table, int32_t index,
                              const Page& page, int32_t row, int32_t rows, int32_t lane) {
    const int32_t n = rows * kLanes;
    LocalTensor<float> values = values_.template Get<float>();
    Cast(values, x[row * kLanes], RoundMode::CAST_NONE, n);
    const BinaryRepeatParams down{1, 1, 1, kBlocks, kBlocks, 0};
    for (int32_t done = 0; done < rows; done += t_.chunk) {
      const LocalTensor<float> v = values[done * kLanes];
      const int32_t at = (row + done) / t_.chunk * kLanes, count = smaller(t_.chunk, rows - done);
      Sub(v, v, chunks_.center[at], kLanes, count, down);
      if constexpr (Element<T>::tiny_scales) Mul(v, v, chunks_.lift[at], kLanes, count, down);
      Mul(v, v, chunks_.inverse[at], kLanes, count, down);
    }
    LocalTensor<uint8_t> anchor = anchor_codes_.template AllocTensor<uint8_t>();
    LocalTensor<uint8_t> residual = residual_codes_.template AllocTensor<uint8_t>();
    if constexpr (companded)
      companded_codes(values, table, anchor, residual, n);
    else if (t_.quarter)
      pairs().code(values, scratch_.template Get<int16_t>(), anchor, residual, rows);
    else
      linear_codes(values, anchor, residual, n);
    anchor_codes_.EnQue(anchor);
    residual_codes_.EnQue(residual);
    anchor = anchor_codes_.template DeQue<uint8_t>();
    residual = residual_codes_.template DeQue<uint8_t>();
    const int32_t skip = larger(page.sink_rows - row, 0), coded = rows - skip, pitch = t_.channels / 2;
    const int64_t to = (static_cast<int64_t>(row + skip - page.sink_rows) * t_.channels + lane) / 2;
    const int32_t page_index = index / t_.slices;
    store_rows(anchor_[page_index * t_.anchor_stride + page.codes + to], anchor[skip * kLanes / 2], coded,
               kLanes / 2, pitch);
    store_rows(residual_[page_index * t_.residual_stride + to], residual[skip * kLanes / 2], coded,
               kLanes / 2, pitch);
    anchor_codes_.FreeTensor(anchor);
    residual_codes_.FreeTensor(residual);
  }

  // Places need no buffer once they are rounded: theirs serves for what follows.
  __aicore__ inline void linear_codes(const LocalTensor<float>& places, const LocalTensor<uint8_t>& anchor,
                                      const LocalTensor<uint8_t>& residual, int32_t n) {
    const LocalTensor<half> p = places.template ReinterpretCast<half>();
    linear_index(p, places, scratch_.template Get<int16_t>(), n);
    split_grid(p, p[kElements], anchor, residual, n);
  }

  __aicore__ inline void companded_codes(const LocalTensor<float>& places, const LocalTensor<float>& table,
                                         const LocalTensor<uint8_t>& anchor,
                                         const LocalTensor<uint8_t>& residual, int32_t n) {
    const Thresholds thresholds(table, steps());
    const LocalTensor<float> first = places_.template Get<float>(), second = first[kPart],
                             third = first[2 * kPart];
    const LocalTensor<int32_t> passed = first[3 * kPart].template ReinterpretCast<int32_t>();
    const LocalTensor<half> m = first.template ReinterpretCast<half>(), v = m[kPart];
    const LocalTensor<half> sign = second.template ReinterpretCast<half>();
    const LocalTensor<int16_t> narrow = third.template ReinterpretCast<int16_t>();
    for (int32_t done = 0; done < n; done += kPart) {
      const int32_t count = smaller(kPart, n - done);
      const LocalTensor<float> place = places[done];
      const LocalTensor<uint8_t> coarse = anchor[done / 2], fine = residual[done / 2];
      thresholds.count(passed, place, first, second.template ReinterpretCast<int32_t>(), third, t_.gain,
                       t_.log_scale, count);
      Cast(narrow, passed, RoundMode::CAST_NONE, count);
      Cast(m, narrow, RoundMode::CAST_NONE, count);
      Cast(narrow, place.template ReinterpretCast<int32_t>(), RoundMode::CAST_NONE, count);
      Cast(sign, narrow, RoundMode::CAST_NONE, count);
      Muls(sign, sign, (half)2.0f, count);  // 0 or -1 to 1 or -1
      Adds(sign, sign, (half)1.0f, count);
      if (t_.alg1) {
        split_alg1(m, sign, v, coarse, fine, count);
      } else {
        Mul(m, m, sign, count);
        Muls(m, m, (half)-1.0f, count);
        split_grid(m, v, coarse, fine, count);
      }
    }
  }

  const Tiling& t_;
  AscendC::TQue<TPosition::VECIN, 2> pages_;
  AscendC::TQue<TPosition::VECOUT, 2> anchor_codes_, residual_codes_, metadata_;
  AscendC::TQue<TPosition::VECIN, 1> table_;
  AscendC::TBuf<TPosition::VECCALC> values_, scratch_, statistics_, mask_, places_;
  SinkCopy sink_;
  LocalTensor<float> parameters_;
  Chunks chunks_;
  GlobalTensor<uint8_t> cache_, thresholds_, anchor_, residual_;
  GlobalTensor<int32_t> block_table_;
};

template <typename T>
__aicore__ inline void encode(const Tiling& t, GM_ADDR cache, GM_ADDR block_table, GM_ADDR thresholds,
                              GM_ADDR anchor, GM_ADDR residual) {
  AscendC::TPipe pipe;
  if (t.companded)
    Encode<T, true>(t, pipe, cache, block_table, thresholds, anchor, residual).run();
  else
    Encode<T, false>(t, pipe, cache, block_table, thresholds, anchor, residual).run();
}

}  // namespace lynx

extern "C" __global__ __aicore__ void lynx_encode_bf16(GM_ADDR cache, GM_ADDR block_table, GM_ADDR thresholds,
                                                       GM_ADDR anchor, GM_ADDR residual, LynxTiling t) {
  lynx::encode<bfloat16_t>(t, cache, block_table, thresholds, anchor, residual);
}

extern "C" __global__ __aicore__ void lynx_encode_fp16(GM_ADDR cache, GM_ADDR block_table, GM_ADDR thresholds,
                                                       GM_ADDR anchor, GM_ADDR residual, LynxTiling t) {
  lynx::encode<half>(t, cache, block_table, thresholds, anchor, residual);
}
