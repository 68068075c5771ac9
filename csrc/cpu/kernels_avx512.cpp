// The kernels for x86 with AVX-512 F, BW, VL and DQ: CMake builds *_avx512.cpp with those instructions.
#include "cpu/kernels.h"

#if defined(__AVX512F__)
#include "cpu/blocks_avx512.h"
#include "cpu/coding.h"
#endif

namespace lynx::cpu {

const Kernels* avx512_kernels() {
#if defined(__AVX512F__)
  static constexpr Kernels kernels = row_kernels("avx512");
  return &kernels;
#else
  return nullptr;
#endif
}

}  // namespace lynx::cpu
