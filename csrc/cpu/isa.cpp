// Chooses the kernels at run time: what the processor supports, unless LYNX_ASCEND_ISA says otherwise.
#include <cstdlib>
#include <stdexcept>

#include "cpu/kernels.h"

namespace lynx::cpu {
namespace {

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

const Kernels& choose() {
  const auto supported = supported_kernels();
  const char* wanted = std::getenv("LYNX_ASCEND_ISA");
  if (wanted == nullptr || *wanted == '\0') return *supported.back();
  std::string names;
  for (const Kernels* candidate : supported) {
    if (candidate->isa == std::string(wanted)) return *candidate;
    names.append(" ").append(candidate->isa);
  }
  throw std::invalid_argument(std::string("LYNX_ASCEND_ISA: '") + wanted +
                              "' is none of those that this build and machine support:" + names);
}

}  // namespace

std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> supported{portable_kernels()};
  if (avx512_kernels() != nullptr && has_avx512()) supported.push_back(avx512_kernels());
  return supported;
}

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace lynx::cpu
