// Kernels by name, and how they are launched on simulated cores.
#pragma once
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "twin/pipes.h"

namespace twin {

// A buffer in GM, or the bytes of a scalar or struct that is passed by value.
struct Argument {
  bool is_buffer = false;
  uintptr_t address = 0;
  uint64_t bytes = 0;
  std::string value{};
};

struct CoreReport {
  std::array<PipeTotals, kPipes> totals;
  std::vector<Event> events;
};

// Runs kernel `name` on `cores` cores, one after the other; what it does to GM stays. Throws TwinError, also
// for arguments that the kernel does not take.
std::vector<CoreReport> launch(const std::string& name, int cores, const std::vector<Argument>& arguments);
std::vector<std::string> kernel_names();

struct Kernel {
  std::vector<uint64_t> sizes;  // of each parameter; 0 for a pointer to GM
  std::function<void(const std::vector<Argument>&)> run;
};
bool register_kernel(const std::string& name, Kernel kernel);

template <class P>
P parameter(const Argument& argument) {
  P value;
  if constexpr (std::is_pointer_v<P>)
    value = reinterpret_cast<P>(argument.address);
  else
    std::memcpy(&value, argument.value.data(), sizeof(P));
  return value;
}

template <class... P>
bool register_kernel(const char* name, void (*function)(P...)) {
  static_assert((std::is_trivially_copyable_v<P> && ...));
  return register_kernel(
      name, {{(std::is_pointer_v<P> ? 0 : sizeof(P))...}, [function](const std::vector<Argument>& arguments) {
               [&]<size_t... I>(std::index_sequence<I...>) {
                 function(parameter<P>(arguments[I])...);
               }(std::index_sequence_for<P...>());
             }});
}

}  // namespace twin

// Makes a kernel, declared before, known to launch().
#define TWIN_KERNEL(name) static const bool twin_registered_##name = twin::register_kernel(#name, name)
