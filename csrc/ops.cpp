// torch.ops.lynx_ascend: the schemas, and the CPU and Meta registrations.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cfenv>
#include <functional>
#include <optional>

#include "checks.h"
#include "cpu/pages.h"

namespace lynx {
namespace {

using at::Tensor;

// A call that writes more than a core's own caches hold bypasses them.
constexpr int64_t kStreamBytes = 4 << 20;

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
                const std::optional<Tensor>& thresholds, Tensor& anchor, Tensor& residual, double /*alpha*/,
                bool pairs) {
  const CodecCall call = check_encode({cache, block_ids, start, tokens, page, chunk, sink_tokens,
                                       fp32_metadata, mean, thresholds, anchor, residual, pairs});
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
                const std::optional<Tensor>& levels, const Tensor& block_ids, Tensor& cache, bool pairs) {
  const CodecCall call = check_decode({anchor, residual, start, tokens, first, page, chunk, sink_tokens,
                                       fp32_metadata, levels, block_ids, cache, pairs});
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
                 int64_t chunk, int64_t sink_tokens, bool fp32_metadata, bool mean,
                 const std::optional<Tensor>& thresholds, Tensor& anchor, Tensor& residual, double /*alpha*/,
                 bool pairs) {
  check_encode({cache, block_ids, start, tokens, page, chunk, sink_tokens, fp32_metadata, mean, thresholds,
                anchor, residual, pairs});
}

void decode_meta(const Tensor& anchor, const std::optional<Tensor>& residual, int64_t start, int64_t tokens,
                 int64_t first, int64_t page, int64_t chunk, int64_t sink_tokens, bool fp32_metadata,
                 const std::optional<Tensor>& levels, const Tensor& block_ids, Tensor& cache, bool pairs) {
  check_decode({anchor, residual, start, tokens, first, page, chunk, sink_tokens, fp32_metadata, levels,
                block_ids, cache, pairs});
}

}  // namespace

TORCH_LIBRARY(lynx_ascend, library) {
  library.def(
      "encode(Tensor cache, Tensor block_ids, int start, int tokens, int page, int chunk, int sink_tokens, "
      "bool fp32_metadata, bool mean, Tensor? thresholds, Tensor(a!) anchor, Tensor(b!) residual, *, "
      "float alpha=0.0, bool pairs=False) -> ()");
  library.def(
      "decode(Tensor anchor, Tensor? residual, int start, int tokens, int first, int page, int chunk, "
      "int sink_tokens, bool fp32_metadata, Tensor? levels, Tensor block_ids, Tensor(a!) cache, *, "
      "bool pairs=False) -> ()");
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
