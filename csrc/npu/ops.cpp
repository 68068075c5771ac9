// lynx_ascend._npu: torch.ops.lynx_ascend for tensors of torch_npu. Checks, tiling, one launch on the current
// stream; no synchronisation, no allocation and no read of device memory, so that a graph can capture it.
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <pybind11/pybind11.h>
#include <torch/library.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>
#include <torch_npu/csrc/framework/OpCommand.h>

#include <stdexcept>

#include "checks.h"
#include "launch.h"

namespace lynx::npu {
namespace {

using at::Tensor;

Buffer buffer(const Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {tensor.data_ptr(), static_cast<uint64_t>(last + 1) * tensor.element_size()};
}

Buffer buffer(const std::optional<Tensor>& tensor) { return tensor ? buffer(*tensor) : Buffer{}; }

// A dimension of one element may have any stride.
int64_t stride(const Tensor& tensor, int64_t dimension, int64_t otherwise) {
  return tensor.size(dimension) == 1 ? otherwise : tensor.stride(dimension);
}

int64_t vector_cores(c10::Device device) {
  int64_t cores = 0;
  const aclError code = aclGetDeviceCapability(device.index(), ACL_DEVICE_INFO_VECTOR_CORE_NUM, &cores);
  TORCH_CHECK(code == ACL_SUCCESS, "aclGetDeviceCapability: error ", code);
  return cores;
}

// What both ops tell make_tiling.
Request request(const CodecCall& call, const Tensor& cache, const Tensor& block_ids, const Tensor& anchor,
                const std::optional<Tensor>& residual, bool companded) {
  const int64_t head_stride = stride(cache, 2, call.head_dim);
  TORCH_CHECK(stride(cache, 3, 1) == 1 && head_stride == call.head_dim, "cache: strides ", cache.strides(),
              "; on an NPU a token's heads and channels must be adjacent");
  Request made{};
  made.channels = call.channels();
  made.element_bytes = call.itemsize;
  made.start = call.start;
  made.tokens = call.tokens;
  made.page = call.page;
  made.chunk = call.chunk;
  made.sink_tokens = call.sink_tokens;
  made.alg1 = call.fp32_metadata;
  made.companded = companded;
  made.residual = residual.has_value();
  made.blocks = cache.size(0);
  made.block_size = cache.size(1);
  made.block_stride = stride(cache, 0, 0);
  made.row_stride = stride(cache, 1, call.channels());
  made.table_entries = block_ids.size(0);
  made.anchor_stride = stride(anchor, 0, anchor.size(1));
  made.residual_stride = residual ? stride(*residual, 0, residual->size(1)) : 0;
  made.cores = vector_cores(cache.device());
  made.pairs = call.pairs;
  made.head_dim = call.head_dim;
  return made;
}

Tiling tiling(const Request& request) {
  try {
    return make_tiling(request);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK(false, error.what());
  }
}

// Through torch_npu's task queue where it is on: then this returns before the kernel is queued, and in order
// all the same.
void run(const char* name, const Launch& call) {
  const aclrtStream stream = c10_npu::getCurrentNPUStream().stream(false);
  at_npu::native::OpCommand command;
  command.Name(name);
  command.SetCustomHandler([call, stream]() -> int { return launch(call, stream); });
  command.Run();
}

void encode(const Tensor& cache, const Tensor& block_ids, int64_t start, int64_t tokens, int64_t page,
            int64_t chunk, int64_t sink_tokens, bool fp32_metadata, bool mean,
            const std::optional<Tensor>& thresholds, Tensor& anchor, Tensor& residual, double alpha,
            bool pairs) {
  const CodecCall call = check_encode({cache, block_ids, start, tokens, page, chunk, sink_tokens,
                                       fp32_metadata, mean, thresholds, anchor, residual, pairs});
  Request wanted = request(call, cache, block_ids, anchor, residual, thresholds.has_value());
  wanted.mean = mean;
  wanted.alpha = alpha;
  const c10::DeviceGuard guard(cache.device());
  run("lynx_encode",
      {false,
       cache.scalar_type() == at::kHalf,
       {buffer(cache), buffer(block_ids), buffer(thresholds), buffer(anchor), buffer(residual)},
       tiling(wanted)});
}

void decode(const Tensor& anchor, const std::optional<Tensor>& residual, int64_t start, int64_t tokens,
            int64_t first, int64_t page, int64_t chunk, int64_t sink_tokens, bool fp32_metadata,
            const std::optional<Tensor>& levels, const Tensor& block_ids, Tensor& cache, bool pairs) {
  const CodecCall call = check_decode({anchor, residual, start, tokens, first, page, chunk, sink_tokens,
                                       fp32_metadata, levels, block_ids, cache, pairs});
  Request wanted = request(call, cache, block_ids, anchor, residual, levels.has_value());
  wanted.decode = true;
  wanted.first = first;
  const c10::DeviceGuard guard(cache.device());
  run("lynx_decode", {true,
                      cache.scalar_type() == at::kHalf,
                      {buffer(anchor), buffer(residual), buffer(levels), buffer(block_ids), buffer(cache)},
                      tiling(wanted)});
}

}  // namespace
}  // namespace lynx::npu

TORCH_LIBRARY_IMPL(lynx_ascend, PrivateUse1, library) {
  library.impl("encode", lynx::npu::encode);
  library.impl("decode", lynx::npu::decode);
}

PYBIND11_MODULE(_npu, module) {
  lynx::npu::kernels();  // what it throws fails the import
  module.def("kernels", &lynx::npu::kernels,
             "Which kernels run: \"cann\", or \"twin\" on the emulated device.");
}
