// The table of kernels; one launch: arguments, cores, reports.
#include "twin/launch.h"

#include <map>

#include "twin/core.h"

namespace twin {

namespace {

constexpr int kMaxCores = 254;  // what GlobalRange can tell apart; A2 has 40 to 48

std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> all;
  return all;
}

// Makes a core current, and no core again however the scope ends.
struct Running {
  explicit Running(Core& core) { exchange_core(&core); }
  ~Running() { exchange_core(nullptr); }
};

}  // namespace

bool register_kernel(const std::string& name, Kernel kernel) {
  return kernels().emplace(name, std::move(kernel)).second;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : kernels()) names.push_back(name);
  return names;
}

std::vector<CoreReport> launch(const std::string& name, int cores, const std::vector<Argument>& arguments) {
  const auto found = kernels().find(name);
  require(found != kernels().end(), "launch", "there is no kernel ", name);
  const Kernel& kernel = found->second;
  require(cores >= 1 && cores <= kMaxCores, "launch", name, ": ", cores, " cores are not in 1 .. ",
          kMaxCores);
  require(arguments.size() == kernel.sizes.size(), "launch", name, " takes ", kernel.sizes.size(),
          " arguments, not ", arguments.size());
  GlobalMemory global;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    require(argument.is_buffer == (kernel.sizes[i] == 0), "launch", name, ": argument ", i, " is ",
            argument.is_buffer ? "a buffer, not a value" : "a value, not a buffer");
    require(argument.is_buffer || argument.value.size() == kernel.sizes[i], "launch", name, ": argument ", i,
            " has ", argument.value.size(), " bytes, not ", kernel.sizes[i]);
    if (argument.is_buffer && argument.bytes) global.add(argument.address, argument.bytes);
  }
  std::vector<CoreReport> reports;
  for (int i = 0; i < cores; ++i) {
    Core core(name, i, cores, global);
    Running running(core);
    kernel.run(arguments);
    core.finish();
    reports.push_back({core.pipes.totals(), core.pipes.events()});
  }
  return reports;
}

}  // namespace twin
