// The host's half of a call: checks, and the split into tiles.
#include "tiling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "codec.h"

namespace lynx {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

void require_range(const char* name, int64_t value, int64_t low, int64_t high) {
  require(low <= value && value <= high, std::string(name) + ": " + std::to_string(value) + ", expected " +
                                             std::to_string(low) + " .. " + std::to_string(high));
}

constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

void check_codec(const Request& r) {
  require(r.element_bytes == 2, "cache: the kernels take bf16 and fp16 only");
  require_range("channels", r.channels, kLanes, 65536);
  require(r.channels % kLanes == 0,
          "channels: " + std::to_string(r.channels) + " is not a multiple of " + std::to_string(kLanes));
  require_range("chunk", r.chunk, 1, 1024);
  require_range("page", r.page, 1, 32768);
  require(r.page % r.chunk == 0, "page: not a multiple of chunk");
  require_range("start", r.start, 0, kLargest);
  require(r.start % r.page == 0, "start: not a multiple of page");
  require_range("tokens", r.tokens, 1, kLargest - r.start);
  require_range("sink_tokens", r.sink_tokens, 0, r.page);
  require_range("cores", r.cores, 1, 65535);
  if (r.pairs) {
    // Quarters of a head are whole blocks, and half a head is a whole part of kLanes.
    require(r.head_dim == kLanes || r.head_dim == 2 * kLanes,
            "head_dim: " + std::to_string(r.head_dim) + ", expected 64 or 128 with pairs");
    require(r.channels % r.head_dim == 0, "channels: not a multiple of head_dim");
    require(!r.alg1 && !r.companded, "pairs: they are linear");
  }
  require(r.companded || !r.alg1, r.decode ? "levels: alg1 needs them" : "thresholds: alg1 needs them");
  if (r.decode) {
    require_range("first", r.first, 0, kLargest);
    return;
  }
  require(r.residual, "residual: encode writes both streams");
  require_range("page", r.page, 1, kEncodePage);
  require_range("chunk", r.chunk, 2, kEncodeMaxChunk);
  require((r.chunk & (r.chunk - 1)) == 0, "chunk: not a power of two");
  require_range("chunk", r.chunk, up(r.page, kEncodeChunks), kEncodeMaxChunk);
  // Below, 1 + gain * |z| is too coarse for an index that is right but for one.
  require(!r.companded || (r.alpha >= 1e-3 && r.alpha <= 1e6), "alpha: not in 0.001 .. 1e6");
}

void check_memory(const Request& r, const CodecCall& call) {
  require_range("block_size", r.block_size, 1, kLargest);
  require_range("blocks", r.blocks, 1, kLargest);
  require(r.row_stride >= r.channels, "cache: rows overlap");
  require((r.row_stride - r.channels) * r.element_bytes <= kLargest, "cache: rows too far apart");
  require(r.block_stride >= 0, "cache: negative stride");
  require(r.table_entries >= up(r.start + r.tokens, r.block_size),
          "block_table: " + std::to_string(r.table_entries) + " entries for " +
              std::to_string(r.start + r.tokens) + " tokens");
  for (const int64_t page : {int64_t{0}, call.pages() - 1}) {
    const PageLayout at = call.layout(page);
    require(r.anchor_stride >= at.codes + at.codes_bytes, "anchor: rows too short");
    require(!r.residual || r.residual_stride >= at.codes_bytes, "residual: rows too short");
  }
}

}  // namespace

Tiling make_tiling(const Request& r) {
  check_codec(r);
  const CodecCall call{r.start, r.tokens, r.page,     r.chunk, r.sink_tokens,
                       r.alg1,  r.pairs,  r.channels, 1,       r.element_bytes};
  check_memory(r, call);
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };

  Tiling t{};
  t.block_stride = r.block_stride;
  t.row_stride = r.row_stride;
  t.anchor_stride = r.anchor_stride;
  t.residual_stride = r.residual_stride;
  t.start = narrow(r.start);
  t.tokens = narrow(r.tokens);
  t.first = narrow(r.decode ? r.first : 0);
  t.page = narrow(r.page);
  t.chunk = narrow(r.chunk);
  t.sink_tokens = narrow(r.sink_tokens);
  t.channels = narrow(r.channels);
  t.block_size = narrow(r.block_size);
  t.alg1 = r.alg1;
  t.mean = r.mean;
  t.companded = r.companded;
  t.quarter = narrow(r.pairs ? r.head_dim / 4 : 0);
  t.residual = r.residual;

  // As wide as fits, and slices as equal as multiples of kLanes allow.
  const int64_t groups = r.channels / kLanes, widest = (r.decode ? kDecodeLanes : kLanes) / kLanes;
  t.lanes = narrow(up(groups, up(groups, widest)) * kLanes);
  t.slices = narrow(up(r.channels, t.lanes));
  // Decode: two chunks a tile, or a part of one that is longer than what is computed at a time.
  t.chunk_segments = narrow(r.decode ? up(r.chunk, kDecodeRows) : 1);
  t.tile_chunks = t.chunk_segments > 1 ? 1 : kDecodeChunks;
  t.segments = narrow(r.decode ? up(r.page / r.chunk, t.tile_chunks) * t.chunk_segments : 1);
  const int64_t tiles = call.pages() * t.segments * t.slices;
  require(tiles <= kLargest - r.cores, "tokens: too many for one call");
  t.tiles = narrow(tiles);
  t.cores = narrow(std::min(r.cores, tiles));
  if (!r.decode && r.companded) {
    const double steps = r.alg1 ? 112 : 120;
    t.gain = static_cast<float>(r.alpha / steps);
    t.log_scale = static_cast<float>(steps / std::log1p(r.alpha));
  }
  return t;
}

}  // namespace lynx
