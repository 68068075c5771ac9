// What the host decides and the kernels are told: the geometry of one call and how it is cut into tiles.
// Plain C++, compiled on both sides.
#pragma once

#include <cstdint>

// Passed to the kernels by value. Tokens are absolute where not said otherwise. One member a line and in no
// namespace: so CANN's generator of launch code reads it.
struct LynxTiling {
  int64_t block_stride;  // of the cache, in elements; channels are adjacent
  int64_t row_stride;
  int64_t anchor_stride;  // bytes from a page's payload to the next
  int64_t residual_stride;
  int32_t start;
  int32_t tokens;
  int32_t first;
  int32_t page;
  int32_t chunk;
  int32_t sink_tokens;
  int32_t channels;
  int32_t block_size;
  int32_t alg1;  // flags
  int32_t mean;
  int32_t companded;
  int32_t quarter;  // codec pair: channels of a quarter of a head, 16 or 32; otherwise 0
  int32_t residual;
  int32_t lanes;           // channels of a tile; the last slice may have fewer
  int32_t slices;          // tiles side by side
  int32_t segments;        // decode: tiles down a page
  int32_t chunk_segments;  // decode: tiles down a chunk that is longer than what is computed at a time, or 1
  int32_t tile_chunks;     // decode: chunks of a tile
  int32_t tiles;
  int32_t cores;
  float gain;  // encode with a compander: the index of |z| is about log_scale * ln(1 + gain * |z|)
  float log_scale;
};

namespace lynx {

// The buffers of the kernels are laid out for these (README.md).
constexpr int32_t kUbBytes = 184 * 1024 - 256;  // of a core's 192 KiB: the rest is CANN's
constexpr int32_t kLanes = 64;         // fp32 elements of one vector repeat; channels come in multiples of it
constexpr int32_t kDecodeLanes = 256;  // most channels of a decode tile
constexpr int32_t kDecodeChunks = 2;   // most chunks of a decode tile
constexpr int32_t kDecodeRows = 32;    // most tokens that it computes at a time, all of one chunk
constexpr int32_t kEncodePage = 256;   // most tokens of an encode tile: a whole page, kLanes channels
constexpr int32_t kEncodeChunks = 16;  // most chunks of such a page
constexpr int32_t kEncodeMaxChunk = 64;  // most tokens of a chunk that is encoded
constexpr int32_t kTable = 256;          // room for a compander's table, in entries

using Tiling = LynxTiling;

// The arguments of one call, as the op sees them (docs/ops.md).
struct Request {
  bool decode;
  int64_t channels, element_bytes;
  int64_t start, tokens, first, page, chunk, sink_tokens;
  bool alg1, mean, companded, residual;
  double alpha;  // encode with a compander only
  int64_t blocks, block_size, block_stride, row_stride, table_entries;
  int64_t anchor_stride, residual_stride;
  int64_t cores;  // vector cores of the device
  bool pairs;
  int64_t head_dim;  // with pairs only
};

// Checks a request and cuts it into tiles.
// Throws std::invalid_argument, whose text begins with the argument's name.
Tiling make_tiling(const Request& request);

}  // namespace lynx
