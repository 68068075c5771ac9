// torch.ops.lynx_ascend: the schemas, every check of the arguments, and the CPU and Meta registrations.
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cfenv>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "codec.h"
#include "cpu/pages.h"

namespace lynx {
namespace {

using at::Tensor;

constexpr int64_t kMaxPage = 32768;
constexpr int64_t kMaxChunk = 1024;
// A call that writes more than a core's own caches hold bypasses them.
constexpr int64_t kStreamBytes = 4 << 20;

bool is_meta(const Tensor& tensor) { return tensor.device().is_meta(); }

// Every tensor of a call is where the cache is: on the CPU, or on Meta, where there are no values to check.
void check_device(const Tensor& tensor, const char* name, const Tensor& cache) {
  TORCH_CHECK(tensor.device() == cache.device(), name, ": is on ", tensor.device(), ", the cache on ",
              cache.device());
}

CodecCall check_call(const Tensor& cache, int64_t start, int64_t tokens, int64_t page, int64_t chunk,
                     int64_t sink_tokens, bool fp32_metadata, bool has_tables) {
  TORCH_CHECK(cache.device().is_cpu() || is_meta(cache), "cache: is on ", cache.device(), ", expected cpu");
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
  return {start,         tokens,        page,
          chunk,         sink_tokens,   fp32_metadata,
          cache.size(2), cache.size(3), cache.element_size()};
}

// The tokens first .. end - 1 (absolute) must lie in blocks that exist.
void check_blocks(const Tensor& block_ids, const Tensor& cache, int64_t first, int64_t end) {
  check_device(block_ids, "block_ids", cache);
  TORCH_CHECK(block_ids.dim() == 1 && block_ids.scalar_type() == at::kLong, "block_ids: is ",
              block_ids.scalar_type(), " with ", block_ids.dim(), " dimensions, expected int64 [n]");
  TORCH_CHECK(block_ids.size(0) <= 1 || block_ids.stride(0) == 1, "block_ids: stride is ",
              block_ids.stride(0), ", expected 1");
  const int64_t block_size = cache.size(1);
  const int64_t needed = (end - 1) / block_size + 1;
  TORCH_CHECK(block_ids.size(0) >= needed, "block_ids: ", block_ids.size(0), " blocks of ", block_size,
              " do not hold token ", end - 1, "; expected at least ", needed);
  if (is_meta(block_ids)) return;
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

CodecCall check_encode(const Tensor& cache, const Tensor& block_ids, int64_t start, int64_t tokens,
                       int64_t page, int64_t chunk, int64_t sink_tokens, bool fp32_metadata,
                       const std::optional<Tensor>& thresholds, const Tensor& anchor,
                       const Tensor& residual) {
  const CodecCall call =
      check_call(cache, start, tokens, page, chunk, sink_tokens, fp32_metadata, thresholds.has_value());
  check_blocks(block_ids, cache, start, start + tokens);
  if (thresholds) check_table(*thresholds, "thresholds", cache, fp32_metadata ? 225 : 240);
  check_payloads(call, cache, anchor, residual);
  check_rows_apart(anchor, "anchor");
  check_rows_apart(residual, "residual");
  return call;
}

CodecCall check_decode(const Tensor& anchor, const std::optional<Tensor>& residual, int64_t start,
                       int64_t tokens, int64_t first, int64_t page, int64_t chunk, int64_t sink_tokens,
                       bool fp32_metadata, const std::optional<Tensor>& levels, const Tensor& block_ids,
                       const Tensor& cache) {
  const CodecCall call =
      check_call(cache, start, tokens, page, chunk, sink_tokens, fp32_metadata, levels.has_value());
  TORCH_CHECK(0 <= first && first < start + tokens, "first: ", first, " is outside 0 .. ",
              start + tokens - 1);
  check_blocks(block_ids, cache, std::max(first, start), start + tokens);
  if (levels) check_table(*levels, "levels", cache, residual ? 256 : 16);
  check_payloads(call, cache, anchor, residual);
  TORCH_CHECK(at::has_internal_overlap(cache) != at::MemOverlap::Yes, "cache: is expanded, strides ",
              cache.strides(), "; its elements share memory");
  return call;
}

template <typename T>
cpu::PagedCache<T> paged(const Tensor& cache, T* data, const Tensor& block_ids) {
  return {data,
          cache.stride(0),
          cache.stride(1),
          cache.stride(2),
          cache.stride(3),
          cache.size(1),
          block_ids.const_data_ptr<int64_t>()};
}

// Calls use(T{}) with the kernels' name for the tensor's element type.
template <typename Use>
void with_element_type(const Tensor& tensor, const Use& use) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return use(cpu::BFloat16{});
    case at::kHalf:
      return use(cpu::Half{});
    default:
      return use(float{});
  }
}

// Arithmetic as it is by default: a thread may flush subnormals (torch.set_flush_denormal) or round
// otherwise.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

void for_each_page(const CodecCall& call, const std::function<void(int64_t)>& work) {
  at::parallel_for(0, call.pages(), 1, [&](int64_t begin, int64_t end) {
    const DefaultArithmetic arithmetic;
    for (int64_t index = begin; index < end; ++index) work(index);
  });
}

void encode_cpu(const Tensor& cache, const Tensor& block_ids, int64_t start, int64_t tokens, int64_t page,
                int64_t chunk, int64_t sink_tokens, bool fp32_metadata, bool mean,
                const std::optional<Tensor>& thresholds, Tensor& anchor, Tensor& residual) {
  const CodecCall call = check_encode(cache, block_ids, start, tokens, page, chunk, sink_tokens,
                                      fp32_metadata, thresholds, anchor, residual);
  std::optional<cpu::Cells> cells;
  if (thresholds) {
    cells = cpu::make_cells(thresholds->const_data_ptr<float>(), thresholds->size(0));
    TORCH_CHECK(cells, "thresholds: are not a compander's, which grow and are mirrored about 0");
  }
  const cpu::Tables tables{cells ? &*cells : nullptr, nullptr};
  uint8_t* const anchors = anchor.mutable_data_ptr<uint8_t>();
  uint8_t* const residuals = residual.mutable_data_ptr<uint8_t>();
  with_element_type(cache, [&](auto element) {
    using T = decltype(element);
    const auto from = paged(cache, static_cast<const T*>(cache.const_data_ptr()), block_ids);
    for_each_page(call, [&](int64_t index) {
      cpu::encode_page(call, index, mean, from, tables, anchors + index * anchor.stride(0),
                       residuals + index * residual.stride(0));
    });
  });
}

void decode_cpu(const Tensor& anchor, const std::optional<Tensor>& residual, int64_t start, int64_t tokens,
                int64_t first, int64_t page, int64_t chunk, int64_t sink_tokens, bool fp32_metadata,
                const std::optional<Tensor>& levels, const Tensor& block_ids, Tensor& cache) {
  const CodecCall call = check_decode(anchor, residual, start, tokens, first, page, chunk, sink_tokens,
                                      fp32_metadata, levels, block_ids, cache);
  cpu::Tables tables;
  if (levels) tables.levels = levels->const_data_ptr<float>();
  const uint8_t* const anchors = anchor.const_data_ptr<uint8_t>();
  const uint8_t* const residuals = residual ? residual->const_data_ptr<uint8_t>() : nullptr;
  with_element_type(cache, [&](auto element) {
    using T = decltype(element);
    const bool stream =
        (start + tokens - std::max(first, start)) * call.channels() * call.itemsize >= kStreamBytes;
    const auto to = paged(cache, static_cast<T*>(cache.mutable_data_ptr()), block_ids);
    for_each_page(call, [&](int64_t index) {
      if (call.layout(index).first_token + call.layout(index).tokens <= first) return;
      cpu::decode_page(call, index, first, anchors + index * anchor.stride(0),
                       residuals ? residuals + index * residual->stride(0) : nullptr, tables, to, stream);
    });
  });
}

void encode_meta(const Tensor& cache, const Tensor& block_ids, int64_t start, int64_t tokens, int64_t page,
                 int64_t chunk, int64_t sink_tokens, bool fp32_metadata, bool /*mean*/,
                 const std::optional<Tensor>& thresholds, Tensor& anchor, Tensor& residual) {
  check_encode(cache, block_ids, start, tokens, page, chunk, sink_tokens, fp32_metadata, thresholds, anchor,
               residual);
}

void decode_meta(const Tensor& anchor, const std::optional<Tensor>& residual, int64_t start, int64_t tokens,
                 int64_t first, int64_t page, int64_t chunk, int64_t sink_tokens, bool fp32_metadata,
                 const std::optional<Tensor>& levels, const Tensor& block_ids, Tensor& cache) {
  check_decode(anchor, residual, start, tokens, first, page, chunk, sink_tokens, fp32_metadata, levels,
               block_ids, cache);
}

}  // namespace

TORCH_LIBRARY(lynx_ascend, library) {
  library.def(
      "encode(Tensor cache, Tensor block_ids, int start, int tokens, int page, int chunk, int sink_tokens, "
      "bool fp32_metadata, bool mean, Tensor? thresholds, Tensor(a!) anchor, Tensor(b!) "
      "residual) "
      "-> ()");
  library.def(
      "decode(Tensor anchor, Tensor? residual, int start, int tokens, int first, int page, int chunk, "
      "int sink_tokens, bool fp32_metadata, Tensor? levels, Tensor block_ids, Tensor(a!) cache) -> ()");
}

TORCH_LIBRARY_IMPL(lynx_ascend, CPU, library) {
  library.impl("encode", encode_cpu);
  library.impl("decode", decode_cpu);
}

TORCH_LIBRARY_IMPL(lynx_ascend, Meta, library) {
  library.impl("encode", encode_meta);
  library.impl("decode", decode_meta);
}

}  // namespace lynx
