// The Python side of the twin, shared by lynx_ascend._twin and the module of its own tests.
#pragma once
#include <pybind11/pybind11.h>

namespace twin {

// TwinError, kernels(), launch(): see lynx_ascend/_twin.pyi.
void bind(pybind11::module_& module);

}  // namespace twin
