// lynx_ascend._C: importing it registers torch.ops.lynx_ascend; its functions say which kernels run
// (docs/ops.md).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/version.h>

#include <map>
#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace {

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const auto* kernels : lynx::cpu::supported_kernels()) names.emplace_back(kernels->isa);
  return names;
}

std::map<std::string, std::string> build_info() {
  return {{"compiler", __VERSION__}, {"torch", TORCH_VERSION}};
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  lynx::cpu::kernels();  // an unusable LYNX_ASCEND_ISA fails the import, not the first request
  module.def("isa", [] { return std::string(lynx::cpu::kernels().isa); }, "The instruction set in use.");
  module.def("supported_isas", &supported_isas,
             "The instruction sets this build and machine support, fastest last.");
  module.def("use_isa", &lynx::cpu::use_kernels,
             "Makes calls from now on use another supported instruction set.");
  module.def("build_info", &build_info, "Compiler and torch version of the build.");
}
