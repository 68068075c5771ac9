// The checks of torch.ops.lynx_ascend, for every device.
#include "checks.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <limits>

namespace lynx {
namespace {

using at::Tensor;

constexpr int64_t kMaxPage = 32768;
constexpr int64_t kMaxChunk = 1024;
constexpr int64_t kMaxPairedHead = 2048;

// Every tensor of a call is where the cache is.
void check_device(const Tensor& tensor, const char* name, const Tensor& cache) {
  TORCH_CHECK(tensor.device() == cache.device(), name, ": is on ", tensor.device(), ", the cache on ",
              cache.device());
}

CodecCall check_call(const Tensor& cache, int64_t start, int64_t tokens, int64_t page, int64_t chunk,
                     int64_t sink_tokens, bool fp32_metadata, bool has_tables, bool pairs) {
  TORCH_CHECK(cache.dim() == 4, "cache: has ", cache.dim(),
              " dimensions, expected [blocks, block_size, heads, head_dim]");
  const auto type = cache.scalar_type();
  TORCH_CHECK(type == at::kBFloat16 || type == at::kHalf || type == at::kFloat, "cache: dtype ", type,
              " is none of bfloat16, float16, float32");
  TORCH_CHECK(cache.numel() > 0, "cache: is empty, shape ", cache.sizes());
  TORCH_CHECK(1 <= chunk && chunk <= kMaxChunk, "chunk: ", chunk, " is outside 1 .. ", kMaxChunk);
  TORCH_CHECK(chunk <= page && page <= kMaxPage && page % chunk == 0, "page: ", page,
              " is not a multiple of chunk (", chunk, ") up to ", kMaxPage);
  TORCH_CHECK(start >= 0 && start % page == 0, "start: ", start, " is not a multiple of page (", page, ")");
  TORCH_CHECK(1 <= tokens && tokens <= std::numeric_limits<int64_t>::max() / 2 - start, "tokens: ", tokens,
              " is out of range");
  TORCH_CHECK(0 <= sink_tokens && sink_tokens <= page, "sink_tokens: ", sink_tokens,
              " is outside 0 .. page (", page, ")");
  TORCH_CHECK(!fp32_metadata || has_tables,
              "fp32_metadata: needs tables; the closed form is the uint8 grid's");
  TORCH_CHECK(!pairs || !has_tables, "pairs: take no tables, they are linear");
  TORCH_CHECK(!pairs || (cache.size(3) % 4 == 0 && cache.size(3) <= kMaxPairedHead), "cache: head_dim ",
              cache.size(3), " is not a multiple of 4 up to ", kMaxPairedHead, ", which pairs need");
  return {start,         tokens, page,          chunk,         sink_tokens,
          fp32_metadata, pairs,  cache.size(2), cache.size(3), cache.element_size()};
}

// The tokens first .. end - 1 (absolute) must lie in blocks that exist.
void check_blocks(const Tensor& block_ids, const Tensor& cache, int64_t first, int64_t end) {
  check_device(block_ids, "block_ids", cache);
  // Kernels of a device read int32. On Meta there is no telling what the tensors stand for.
  const auto type = block_ids.scalar_type();
  const auto expected = cache.is_privateuseone() ? at::kInt : at::kLong;
  TORCH_CHECK(block_ids.dim() == 1 && (type == expected || (cache.is_meta() && type == at::kInt)),
              "block_ids: is ", type, " with ", block_ids.dim(), " dimensions, expected ",
              expected == at::kInt ? "int32" : "int64", " [n]");
  TORCH_CHECK(block_ids.size(0) <= 1 || block_ids.stride(0) == 1, "block_ids: stride is ",
              block_ids.stride(0), ", expected 1");
  const int64_t block_size = cache.size(1);
  const int64_t needed = (end - 1) / block_size + 1;
  TORCH_CHECK(block_ids.size(0) >= needed, "block_ids: ", block_ids.size(0), " blocks of ", block_size,
              " do not hold token ", end - 1, "; expected at least ", needed);
  if (!block_ids.is_cpu()) return;
  const int64_t* ids = block_ids.const_data_ptr<int64_t>();
  for (int64_t i = first / block_size; i < needed; ++i)
    TORCH_CHECK(0 <= ids[i] && ids[i] < cache.size(0), "block_ids: [", i, "] is ", ids[i], ", the cache has ",
                cache.size(0), " blocks");
}

void check_payload(const Tensor& payload, const char* name, const Tensor& cache, int64_t pages,
                   int64_t bytes) {
  check_device(payload, name, cache);
  TORCH_CHECK(payload.scalar_type() == at::kByte && payload.dim() == 2, name, ": is ", payload.scalar_type(),
              " with ", payload.dim(), " dimensions, expected uint8 [pages, bytes]");
  TORCH_CHECK(payload.size(0) == pages, name, ": has ", payload.size(0), " rows, expected ", pages, " pages");
  TORCH_CHECK(payload.size(1) >= bytes, name, ": rows of ", payload.size(1), " bytes, a page needs ", bytes);
  TORCH_CHECK(payload.size(1) <= 1 || payload.stride(1) == 1, name, ": last stride is ", payload.stride(1),
              ", expected 1");
}

// Pages are written at the same time.
void check_rows_apart(const Tensor& payload, const char* name) {
  TORCH_CHECK(payload.size(0) <= 1 || payload.stride(0) >= payload.size(1), name, ": rows of ",
              payload.size(1), " bytes are ", payload.stride(0), " apart");
}

// Every page but page 0 has the layout of the second, unless it is shorter: page 0 alone has a sink.
void check_payloads(const CodecCall& call, const Tensor& cache, const Tensor& anchor,
                    const std::optional<Tensor>& residual) {
  int64_t anchor_bytes = 0, residual_bytes = 0;
  for (int64_t index = 0; index < std::min<int64_t>(call.pages(), 2); ++index) {
    const PageLayout at = call.layout(index);
    anchor_bytes = std::max(anchor_bytes, at.codes + at.codes_bytes);
    residual_bytes = std::max(residual_bytes, at.codes_bytes);
  }
  check_payload(anchor, "anchor", cache, call.pages(), anchor_bytes);
  if (residual) check_payload(*residual, "residual", cache, call.pages(), residual_bytes);
}

void check_table(const Tensor& table, const char* name, const Tensor& cache, int64_t entries) {
  check_device(table, name, cache);
  TORCH_CHECK(table.scalar_type() == at::kFloat && table.dim() == 1, name, ": is ", table.scalar_type(),
              " with ", table.dim(), " dimensions, expected Float [n]");
  TORCH_CHECK(table.size(0) == entries, name, ": has ", table.size(0), " entries, expected ", entries);
  TORCH_CHECK(table.stride(0) == 1, name, ": stride is ", table.stride(0), ", expected 1");
}

}  // namespace

CodecCall check_encode(const EncodeArguments& a) {
  const CodecCall call = check_call(a.cache, a.start, a.tokens, a.page, a.chunk, a.sink_tokens,
                                    a.fp32_metadata, a.thresholds.has_value(), a.pairs);
  check_blocks(a.block_ids, a.cache, a.start, a.start + a.tokens);
  if (a.thresholds) check_table(*a.thresholds, "thresholds", a.cache, a.fp32_metadata ? 225 : 240);
  check_payloads(call, a.cache, a.anchor, a.residual);
  check_rows_apart(a.anchor, "anchor");
  check_rows_apart(a.residual, "residual");
  return call;
}

CodecCall check_decode(const DecodeArguments& a) {
  const CodecCall call = check_call(a.cache, a.start, a.tokens, a.page, a.chunk, a.sink_tokens,
                                    a.fp32_metadata, a.levels.has_value(), a.pairs);
  TORCH_CHECK(0 <= a.first && a.first < a.start + a.tokens, "first: ", a.first, " is outside 0 .. ",
              a.start + a.tokens - 1);
  check_blocks(a.block_ids, a.cache, std::max(a.first, a.start), a.start + a.tokens);
  if (a.levels) check_table(*a.levels, "levels", a.cache, a.residual ? 256 : 16);
  check_payloads(call, a.cache, a.anchor, a.residual);
  TORCH_CHECK(at::has_internal_overlap(a.cache) != at::MemOverlap::Yes, "cache: is expanded, strides ",
              a.cache.strides(), "; its elements share memory");
  return call;
}

}  // namespace lynx
