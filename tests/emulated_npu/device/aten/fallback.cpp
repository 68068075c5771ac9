// ATen on the device by CPU kernels: every operator that torch_npu registers, but for those that compute
// nothing, runs on host aliases of its device tensors.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <memory>
#include <set>
#include <string>

#include "host.h"

namespace at_npu::detail {
const at::Generator& getDefaultNPUGenerator(c10::DeviceIndex device);
}

namespace emulated {

void install_copies(torch::Library& aten, torch::Library& npu);

namespace {

using at::Tensor;
using c10::IValue;

// Allocate, view or describe: torch_npu's own work here.
const std::set<std::string>& kept() {
  static const std::set<std::string> names{"_conj",
                                           "_has_compatible_shallow_copy_type",
                                           "_has_same_storage_numel",
                                           "_neg_view",
                                           "_pin_memory",
                                           "_reshape_alias",
                                           "_to_copy",
                                           "_unsafe_view",
                                           "alias",
                                           "as_strided",
                                           "detach",
                                           "diagonal",
                                           "empty",
                                           "empty_like",
                                           "empty_strided",
                                           "expand",
                                           "is_pinned",
                                           "is_set_to",
                                           "lift",
                                           "lift_fresh",
                                           "narrow",
                                           "new_empty",
                                           "new_empty_strided",
                                           "permute",
                                           "pin_memory",
                                           "record_stream",
                                           "reshape",
                                           "resize_",
                                           "resize_as_",
                                           "select",
                                           "set_",
                                           "set_data",
                                           "slice",
                                           "split",
                                           "squeeze",
                                           "t",
                                           "transpose",
                                           "unfold",
                                           "unsqueeze",
                                           "view",
                                           "view_as_complex",
                                           "view_as_real"};
  return names;
}

bool writes(const c10::AliasInfo* alias) { return alias && alias->isWrite(); }

// Random numbers are a function of the generator's seed and offset, which this moves on, so that its state
// can be saved, restored and seeded again.
at::Generator host_generator(const at::Generator& device) {
  const auto seed = device.current_seed();
  const auto offset = device.get_offset();
  at::Generator generator = device;
  generator.set_offset(offset + 4);
  // Golden-ratio steps keep the streams of neighbouring offsets apart; the first is the CPU's own of this
  // seed.
  return at::detail::createCPUGenerator(seed + offset / 4 * 0x9E3779B97F4A7C15ull);
}

// One call's arguments and results, on their way to the CPU kernel and back.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : schema_(op.schema()), stack_(stack), begin_(stack.size() - schema_.arguments().size()) {
    for (size_t i = begin_; i < stack.size(); ++i) find_device(stack[i]);
    originals_.assign(stack.begin() + begin_, stack.end());
  }

  // A result that is resized cannot be an alias: such an operator's arguments are copied there and back.
  bool resizes() const {
    for (const auto& argument : schema_.arguments())
      if (argument.is_out() || (argument.kwarg_only() && writes(argument.alias_info()))) return true;
    return false;
  }

  void wait() const {
    if (device_) drain(*device_);
  }

  void to_host() {
    for (size_t i = 0; i < originals_.size(); ++i) {
      IValue& value = stack_[begin_ + i];
      if (value.isTensor()) {
        value = host(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& tensor : value.toTensorVector()) list.push_back(host(tensor));
        value = std::move(list);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> list;
        for (const std::optional<Tensor> tensor : value.toOptionalTensorList())
          list.push_back(tensor ? std::optional<Tensor>(host(*tensor)) : tensor);
        value = std::move(list);
      } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
        value = c10::Device(at::kCPU);
      } else if (value.isGenerator() && value.toGenerator().device().is_privateuseone()) {
        value = host_generator(value.toGenerator());
      } else if (value.isNone() && device_ && takes_generator(schema_.arguments()[i])) {
        value = host_generator(at_npu::detail::getDefaultNPUGenerator(device_->index()));
      }
    }
  }

  void to_device() {
    const size_t results = stack_.size() - schema_.returns().size();
    size_t written = 0;
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      IValue& value = stack_[results + i];
      if (writes(schema_.returns()[i].alias_info())) {
        while (!writes(schema_.arguments().at(written).alias_info())) ++written;
        value = originals_.at(written++);
      } else if (device_ && value.isTensor()) {
        value = upload(value.toTensor());
      } else if (device_ && value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& tensor : value.toTensorVector()) list.push_back(upload(tensor));
        value = std::move(list);
      }
    }
  }

 private:
  static bool takes_generator(const c10::Argument& argument) {
    return argument.type()->str().rfind("Generator", 0) == 0;
  }

  void found(c10::Device device) {
    if (!device.is_privateuseone()) return;
    device_ = c10::Device(device.type(), device.has_index() ? device.index() : 0);
  }

  void find_device(const IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) found(value.toTensor().device());
    if (value.isTensorList())
      for (const Tensor& tensor : value.toTensorVector()) found(tensor.device());
    if (value.isDevice()) found(value.toDevice());
  }

  Tensor upload(const Tensor& tensor) const {
    if (!tensor.defined() || tensor.is_privateuseone()) return tensor;
    const auto options = tensor.options().device(*device_).pinned_memory(false);
    Tensor made = at::empty_strided(tensor.sizes(), tensor.strides(), options);
    if (tensor.numel()) host(made).copy_(tensor);
    return made;
  }

  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  const size_t begin_;
  std::vector<IValue> originals_;
  std::optional<c10::Device> device_;
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, *stack);
  call.wait();
  if (call.resizes()) return at::native::cpu_fallback(op, stack);
  call.to_host();
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.to_device();
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return false;
}

bool has_host_kernel(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  for (const Key key : {Key::CPU, Key::CompositeExplicitAutograd, Key::CompositeExplicitAutogradNonFunctional,
                        Key::CompositeImplicitAutograd})
    if (op.hasKernelForDispatchKey(key)) return true;
  return false;
}

// Replaces torch_npu's kernels, for good. The number of operators that now run on the host; 0 the second
// time.
int64_t install() {
  static bool installed = false;
  if (std::exchange(installed, true)) return 0;
  using torch::Library;
  static auto& aten = *new Library(Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static auto& npu = *new Library(Library::IMPL, "npu", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  const std::set<std::string> copies{"copy_", "_copy_from", "_copy_from_and_resize",
                                     "clone", "contiguous", "_local_scalar_dense"};
  int64_t count = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const std::string base = name.name.substr(6);
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    if (kept().contains(base) || copies.contains(base) || returns_view(op->schema()) || !has_host_kernel(*op))
      continue;
    const std::string full = name.overload_name.empty() ? base : base + "." + name.overload_name;
    aten.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
    ++count;
  }
  install_copies(aten, npu);
  return count;
}

Tensor drained_host(const Tensor& tensor) {
  if (tensor.is_privateuseone()) drain(tensor.device());
  return host(tensor);
}

}  // namespace
}  // namespace emulated

TORCH_LIBRARY(emulated_npu, library) {
  library.def("install() -> int", emulated::install);
  // The device tensor's memory as a CPU tensor, once the current stream has run what was queued on it.
  library.def("host(Tensor tensor) -> Tensor",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(emulated::drained_host)));
}
