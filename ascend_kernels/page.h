// Device: where a page's payload and its tokens' rows lie in global memory.
#pragma once

#include "kernel_operator.h"
#include "tiling.h"

namespace lynx {

using AscendC::DataCopyExtParams;
using AscendC::DataCopyPad;
using AscendC::DataCopyPadExtParams;
using AscendC::GlobalTensor;
using AscendC::LocalTensor;

__aicore__ inline int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
__aicore__ inline int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

// csrc/codec.h's layout of one page's payload, for T of two bytes: docs/frame.md.
struct Page {
  int32_t first_token, tokens, chunks, sink_rows;
  int64_t gamma_max, mu, sigma, widths, sink, codes;  // bytes from the start of the anchor payload

  __aicore__ inline Page(const Tiling& t, int32_t index) {
    const int64_t channels = t.channels;
    first_token = t.start + index * t.page;
    tokens = smaller(t.page, t.tokens - index * t.page);
    chunks = (tokens + t.chunk - 1) / t.chunk;
    sink_rows = smaller(larger(t.sink_tokens - first_token, 0), tokens);
    gamma_max = channels * (t.alg1 ? 4 : 2);
    mu = 2 * gamma_max;
    sigma = mu + chunks * channels * (t.alg1 ? 4 : 1);
    widths = 2 * sigma - mu;
    sink = widths + (t.quarter ? channels / 4 : 0);
    codes = sink + sink_rows * channels * 2;
  }
};

// Rows of one block of the cache.
struct Run {
  int64_t byte;  // of the first row's channel 0
  int32_t rows;
};

__aicore__ inline Run run_at(const Tiling& t, GlobalTensor<int32_t>& block_table, int32_t token,
                             int32_t rows) {
  const int32_t row = token % t.block_size;
  const int64_t block = block_table.GetValue(token / t.block_size);
  return {(block * t.block_stride + row * t.row_stride) * 2, smaller(rows, t.block_size - row)};
}

// Rows of `bytes` (a multiple of 32 in `local`, unless it is one row), `pitch` bytes apart in global memory
// and adjacent in `local`.
__aicore__ inline void load_rows(const LocalTensor<uint8_t>& local, const GlobalTensor<uint8_t>& global,
                                 int32_t rows, int32_t bytes, int64_t pitch) {
  const DataCopyExtParams shape{static_cast<uint16_t>(rows), static_cast<uint32_t>(bytes),
                                static_cast<uint32_t>(pitch - bytes), 0, 0};
  DataCopyPad(local, global, shape, DataCopyPadExtParams<uint8_t>{false, 0, 0, 0});
}

__aicore__ inline void store_rows(const GlobalTensor<uint8_t>& global, const LocalTensor<uint8_t>& local,
                                  int32_t rows, int32_t bytes, int64_t pitch) {
  const DataCopyExtParams shape{static_cast<uint16_t>(rows), static_cast<uint32_t>(bytes), 0,
                                static_cast<uint32_t>(pitch - bytes), 0};
  DataCopyPad(global, local, shape);
}

// Rows of a tile (`tokens` from `token` on, `lanes` channels from `lane` on) between the paged cache and UB.
__aicore__ inline void load_tokens(const Tiling& t, LocalTensor<uint8_t>& local, GlobalTensor<uint8_t>& cache,
                                   GlobalTensor<int32_t>& block_table, int32_t token, int32_t tokens,
                                   int32_t lane, int32_t lanes) {
  for (int32_t done = 0; done < tokens;) {
    const Run run = run_at(t, block_table, token + done, tokens - done);
    load_rows(local[done * lanes * 2], cache[run.byte + lane * 2], run.rows, lanes * 2, t.row_stride * 2);
    done += run.rows;
  }
}

__aicore__ inline void store_tokens(const Tiling& t, LocalTensor<uint8_t>& local,
                                    GlobalTensor<uint8_t>& cache, GlobalTensor<int32_t>& block_table,
                                    int32_t token, int32_t tokens, int32_t lane, int32_t lanes) {
  for (int32_t done = 0; done < tokens;) {
    const Run run = run_at(t, block_table, token + done, tokens - done);
    store_rows(cache[run.byte + lane * 2], local[done * lanes * 2], run.rows, lanes * 2, t.row_stride * 2);
    done += run.rows;
  }
}

// Copies the raw rows of the sink between cache and payload; only the first page of a sequence has any. Rows
// are cut into pieces, which the cores share.
class SinkCopy {
 public:
  static constexpr int32_t kPiece = 1024;  // channels
  static constexpr int32_t kBytes = 2 * kPiece * 2;

  __aicore__ inline void init(AscendC::TPipe& pipe) { pipe.InitBuffer(queue_, 2, kPiece * 2); }

  template <bool decode>
  __aicore__ inline void run(const Tiling& t, GlobalTensor<uint8_t>& anchor, GlobalTensor<uint8_t>& cache,
                             GlobalTensor<int32_t>& block_table) {
    const Page page(t, 0);
    const int32_t pieces = (t.channels + kPiece - 1) / kPiece, total = page.sink_rows * pieces;
    for (int32_t i = AscendC::GetBlockIdx(); i < total; i += AscendC::GetBlockNum()) {
      const int32_t row = i / pieces, lane = i % pieces * kPiece;
      const int32_t token = page.first_token + row, lanes = smaller(kPiece, t.channels - lane);
      if (decode && token < t.first) continue;
      const int64_t payload = page.sink + (static_cast<int64_t>(row) * t.channels + lane) * 2;
      LocalTensor<uint8_t> local = queue_.AllocTensor<uint8_t>();
      if constexpr (decode)
        load_rows(local, anchor[payload], 1, lanes * 2, lanes * 2);
      else
        load_tokens(t, local, cache, block_table, token, 1, lane, lanes);
      queue_.EnQue(local);
      local = queue_.DeQue<uint8_t>();
      if constexpr (decode)
        store_tokens(t, local, cache, block_table, token, 1, lane, lanes);
      else
        store_rows(anchor[payload], local, 1, lanes * 2, lanes * 2);
      queue_.FreeTensor(local);
    }
  }

 private:
  AscendC::TQueBind<AscendC::TPosition::VECIN, AscendC::TPosition::VECOUT, 2> queue_;
};

}  // namespace lynx
