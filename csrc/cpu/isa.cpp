// Chooses the kernels at run time: what the processor supports, unless LYNX_ASCEND_ISA says otherwise.
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "cpu/kernels.h"

namespace lynx::cpu {
namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2"); }

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const Kernels& find(const std::string& isa) {
  std::string names;
  for (const Kernels* candidate : supported_kernels()) {
    if (candidate->isa == isa) return *candidate;
    names.append(" ").append(candidate->isa);
  }
  throw std::invalid_argument("'" + isa + "' is none of those that this build and machine support:" + names);
}

const Kernels& choose() {
  const char* wanted = std::getenv("LYNX_ASCEND_ISA");
  if (wanted == nullptr || *wanted == '\0') return *supported_kernels().back();
  try {
    return find(wanted);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("LYNX_ASCEND_ISA: ") + error.what());
  }
}

std::atomic<const Kernels*>& in_use() {
  static std::atomic<const Kernels*> chosen{&choose()};
  return chosen;
}

}  // namespace

std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> supported{portable_kernels()};
  const auto add = [&](const Kernels* built) {
    if (built != nullptr) supported.push_back(built);
  };
#if defined(__x86_64__)
  if (has_avx2()) add(avx2_kernels());
  if (has_avx512()) add(avx512_kernels());
#elif defined(__aarch64__)
  add(neon_kernels());
#endif
  return supported;
}

const Kernels& kernels() { return *in_use().load(std::memory_order_relaxed); }

void use_kernels(const std::string& isa) { in_use().store(&find(isa), std::memory_order_relaxed); }

}  // namespace lynx::cpu
