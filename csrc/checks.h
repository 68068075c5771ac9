// Every check of the ops' arguments, on whichever device: what torch.ops.lynx_ascend accepts.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "codec.h"

namespace lynx {

// The arguments of torch.ops.lynx_ascend.encode and decode, in the order of their schemas.
struct EncodeArguments {
  const at::Tensor& cache;
  const at::Tensor& block_ids;
  int64_t start, tokens, page, chunk, sink_tokens;
  bool fp32_metadata, mean;
  const std::optional<at::Tensor>& thresholds;
  const at::Tensor& anchor;
  const at::Tensor& residual;
  bool pairs;
};

struct DecodeArguments {
  const at::Tensor& anchor;
  const std::optional<at::Tensor>& residual;
  int64_t start, tokens, first, page, chunk, sink_tokens;
  bool fp32_metadata;
  const std::optional<at::Tensor>& levels;
  const at::Tensor& block_ids;
  const at::Tensor& cache;
  bool pairs;
};

// All tensors must be on the cache's device, whose kernel the dispatcher has chosen then, and fit each other.
// What block_ids holds is checked on the CPU alone: reading a device's memory would wait for it. Throws
// c10::Error, whose text begins with the argument's name.
CodecCall check_encode(const EncodeArguments& arguments);
CodecCall check_decode(const DecodeArguments& arguments);

}  // namespace lynx
