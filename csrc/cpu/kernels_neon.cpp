// The kernels for AArch64, whose NEON is always there.
#include "cpu/kernels.h"

#if defined(__ARM_NEON)
#include "cpu/blocks_none.h"
#include "cpu/coding.h"
#endif

namespace lynx::cpu {

const Kernels* neon_kernels() {
#if defined(__ARM_NEON)
  static constexpr Kernels kernels = row_kernels("neon");
  return &kernels;
#else
  return nullptr;
#endif
}

}  // namespace lynx::cpu
