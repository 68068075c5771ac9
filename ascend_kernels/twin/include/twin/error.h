// TwinError: the one exception of the twin. Every broken rule of Ascend C, or of the hardware, ends a launch
// with it.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace twin {

struct TwinError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// "a", 1, "b" -> "a1b"
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws "<kernel>, core <n>, <call>: <rule>: <detail>"; the first three are those of the running core.
[[noreturn]] void fail(const char* rule, const std::string& detail);

template <class... Parts>
void require(bool holds, const char* rule, const Parts&... parts) {
  if (!holds) [[unlikely]]
    fail(rule, text(parts...));
}

}  // namespace twin
