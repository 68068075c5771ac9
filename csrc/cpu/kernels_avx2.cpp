// The kernels for x86 with AVX2: CMake builds this file for it.
#include "cpu/kernels.h"

#if defined(__AVX2__)
#include "cpu/blocks_none.h"
#include "cpu/coding.h"
#endif

namespace lynx::cpu {

const Kernels* avx2_kernels() {
#if defined(__AVX2__)
  static constexpr Kernels kernels = row_kernels("avx2");
  return &kernels;
#else
  return nullptr;
#endif
}

}  // namespace lynx::cpu
