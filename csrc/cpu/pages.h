// The page walk on the CPU: gathers rows through the block table, lays payloads out, and calls the row
// kernels.
#pragma once

#include <cstdint>

#include "codec.h"
#include "cpu/kernels.h"

namespace lynx::cpu {

// A paged cache [blocks, block_size, heads, head_dim]; strides in elements.
template <typename T>
struct PagedCache {
  T* data;
  int64_t block_stride, row_stride, head_stride, dim_stride;
  int64_t block_size;
  const int64_t* block_ids;  // token t (absolute) is row t % block_size of block block_ids[t / block_size]

  T* row(int64_t token) const {
    return data + block_ids[token / block_size] * block_stride + token % block_size * row_stride;
  }
};

// Encodes page `index` of the call into its two payloads.
template <typename T>
void encode_page(const CodecCall& call, int64_t index, bool mean, const PagedCache<const T>& cache,
                 const Tables& tables, uint8_t* anchor, uint8_t* residual);

// Reconstructs the tokens >= first (absolute) of page `index`; residual is null for the anchor alone.
template <typename T>
void decode_page(const CodecCall& call, int64_t index, int64_t first, const uint8_t* anchor,
                 const uint8_t* residual, const Tables& tables, const PagedCache<T>& cache, bool stream);

}  // namespace lynx::cpu
