// The kernels for any machine: built with the compiler's default instruction set.
#include "cpu/row_kernels.h"

namespace lynx::cpu {

const Kernels* portable_kernels() {
  static constexpr Kernels kernels = row_kernels("portable");
  return &kernels;
}

}  // namespace lynx::cpu
