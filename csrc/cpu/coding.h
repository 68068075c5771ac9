// The kernels that encode and decode, and with them the whole table: plain loops over what the instruction
// set's own BlockEncoder and BlockDecoder (blocks_<isa>.h, included before this file) leave.
#pragma once

#include "cpu/pair_coding.h"
#include "cpu/plain_coding.h"

namespace lynx::cpu {
namespace {

template <typename T>
void encode(Rows<const T> x, Scales scales, const Tables& tables, Nibbles<uint8_t> out) {
  BlockEncoder blocks(tables.cells);
  for (int64_t j = 0; j < x.n; j += kTile) {
    const int64_t n = smaller(kTile, x.n - j);
    const Quantiser by(scales.from(j), n, largest<T>());
    blocks.prepare(by, n);
    for (int64_t r = 0; r < x.count; ++r) {
      const T* row = x.rows[r] + x.offset + j;
      const int64_t at = out.first + r * out.stride + j;
      const int64_t done = at % 2 ? 0 : blocks.run(row, out.anchor + at / 2, out.residual + at / 2);
      if (done < n) encode_rest(row, done, n, by, tables.cells, at, out);
    }
  }
}

template <typename T>
void decode(Rows<T> out, Scales scales, const Tables& tables, Nibbles<const uint8_t> codes, bool stream) {
  BlockDecoder blocks(tables.levels, codes.residual != nullptr);
  for (int64_t j = 0; j < out.n; j += kTile) {
    const int64_t n = smaller(kTile, out.n - j);
    alignas(64) float step[kTile];
    const float* center = scales.center + j;
    level_steps(scales.from(j), n, step);
    blocks.prepare(center, step, n);
    for (int64_t r = 0; r < out.count; ++r) {
      const int64_t at = codes.first + r * codes.stride + j;
      T* row = out.rows[r] + out.offset + j;
      const uint8_t* residual = codes.residual ? codes.residual + at / 2 : nullptr;
      const int64_t done = at % 2 ? 0 : blocks.run(codes.anchor + at / 2, residual, row, stream);
      if (done < n) decode_rest(codes, at, done, n, center, step, tables.levels, row);
    }
  }
}

template <typename T>
constexpr TypedKernels<T> typed_kernels{range<T>,  mean<T>,         encode<T>,
                                        decode<T>, encode_pairs<T>, decode_pairs<T>};

constexpr Kernels row_kernels(const char* isa) {
  return {isa, typed_kernels<BFloat16>, typed_kernels<Half>, typed_kernels<float>, metadata, scales};
}

}  // namespace
}  // namespace lynx::cpu
