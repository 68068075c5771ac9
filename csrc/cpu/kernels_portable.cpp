// The kernels for any machine: built with the compiler's default instruction set.
#include "cpu/blocks_none.h"
#include "cpu/coding.h"

namespace lynx::cpu {

const Kernels* portable_kernels() {
  static constexpr Kernels kernels = row_kernels("portable");
  return &kernels;
}

}  // namespace lynx::cpu
