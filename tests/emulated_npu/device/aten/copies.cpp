// Copies between host and device and on it. torch_npu's own would call aclnn operators for all but the
// plainest.
#include <ATen/core/CachingHostAllocator.h>
#include <torch/library.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include "acl/acl_rt.h"
#include "host.h"

namespace emulated {

void drain(c10::Device device) { c10_npu::getCurrentNPUStream(device.index()).synchronize(); }

at::Tensor host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  const auto options = tensor.options().device(at::kCPU).pinned_memory(false);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  const auto keep = [tensor](void*) {};
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), keep, options, at::kCPU);
}

namespace {

using at::Tensor;

bool same_layout(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Queued on the current stream: between the device and pinned memory, if the caller will not wait for it.
bool copy_async(const Tensor& to, const Tensor& from) {
  const bool to_device = to.is_privateuseone();
  const Tensor& pinned = to_device ? from : to;
  if (pinned.is_privateuseone() || !same_layout(to, from) || to.numel() == 0) return false;
  if (!pinned.is_pinned(at::kPrivateUse1)) return false;
  const auto device = (to_device ? to : from).device();
  const auto stream = c10_npu::getCurrentNPUStream(device.index());
  const auto kind = to_device ? ACL_MEMCPY_HOST_TO_DEVICE : ACL_MEMCPY_DEVICE_TO_HOST;
  const auto code =
      aclrtMemcpyAsync(to.data_ptr(), to.nbytes(), from.data_ptr(), from.nbytes(), kind, stream.stream());
  TORCH_CHECK(code == ACL_SUCCESS, "aclrtMemcpyAsync: error ", code, ": ", aclGetRecentErrMsg());
  // The pinned block may be freed, and taken again, before the copy has run.
  at::getHostAllocator(at::kPrivateUse1)
      ->record_event(pinned.data_ptr(), pinned.storage().data_ptr().get_context(), stream.unwrap());
  return true;
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Tensor from = self.sizes() == source.sizes() ? source : source.expand_as(self);
  if (non_blocking && copy_async(self, from)) return self;
  for (const Tensor& tensor : {self, from})
    if (tensor.is_privateuseone()) drain(tensor.device());
  host(self).copy_(host(from));
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  return copy_(target, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

Tensor clone_tensor(const Tensor& self, std::optional<at::MemoryFormat> wanted) {
  const auto format = wanted.value_or(at::MemoryFormat::Preserve);
  const bool preserve = format == at::MemoryFormat::Preserve;
  Tensor made =
      preserve && self.is_non_overlapping_and_dense()
          ? at::empty_strided(self.sizes(), self.strides(), self.options())
          : at::empty(self.sizes(), self.options(), preserve ? at::MemoryFormat::Contiguous : format);
  return copy_(made, self, false);
}

Tensor contiguous_tensor(const Tensor& self, at::MemoryFormat format) {
  return self.is_contiguous(format) ? self : clone_tensor(self, format);
}

at::Scalar local_scalar(const Tensor& self) {
  drain(self.device());
  return host(self).item();
}

Tensor cast(const Tensor& self, at::ScalarType type) {
  if (self.scalar_type() == type) return self;
  Tensor made = at::empty_like(self, self.options().dtype(type));
  return copy_(made, self, false);
}

Tensor cast_by_number(const Tensor& self, int64_t type, std::optional<int64_t>) {
  return cast(self, static_cast<at::ScalarType>(type));
}

}  // namespace

// Over torch_npu's registrations, for good.
void install_copies(torch::Library& aten, torch::Library& npu) {
  aten.impl("copy_", copy_);
  aten.impl("_copy_from", copy_from);
  aten.impl("_copy_from_and_resize", copy_from_and_resize);
  aten.impl("clone", clone_tensor);
  aten.impl("contiguous", contiguous_tensor);
  aten.impl("_local_scalar_dense", local_scalar);
  npu.impl("_npu_dtype_cast", cast);
  npu.impl("npu_dtype_cast", cast_by_number);
}

}  // namespace emulated
