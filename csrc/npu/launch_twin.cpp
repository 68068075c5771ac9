// Runs the kernels on the host twin, on the thread of the emulated device's stream: for tests where there is
// no NPU.
#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "launch.h"
#include "twin/launch.h"

namespace lynx::npu {
namespace {

// A device's memory is the host's on the emulated device alone.
void require_emulation() {
  static const bool emulated = dlsym(RTLD_DEFAULT, "emulated_acl_calls");
  if (!emulated)
    throw std::runtime_error("lynx_ascend._npu was built for the emulated device, which is not loaded");
}

// An exception fails the stream's task: its next synchronisation raises the text.
void run(void* argument) {
  const std::unique_ptr<Launch> launch(static_cast<Launch*>(argument));
  std::vector<twin::Argument> arguments;
  for (const Buffer& buffer : launch->buffers)
    arguments.push_back(
        {.is_buffer = true, .address = reinterpret_cast<uintptr_t>(buffer.address), .bytes = buffer.bytes});
  const auto* tiling = reinterpret_cast<const char*>(&launch->tiling);
  arguments.push_back({.value = std::string(tiling, sizeof(Tiling))});
  const std::string name =
      std::string("lynx_") + (launch->decode ? "decode_" : "encode_") + (launch->half ? "fp16" : "bf16");
  twin::launch(name, launch->tiling.cores, arguments);
}

}  // namespace

const char* kernels() {
  require_emulation();
  return "twin";
}

int launch(const Launch& launch, aclrtStream stream) {
  require_emulation();  // torch.ops reach this even where the import has failed
  auto owned = std::make_unique<Launch>(launch);
  const aclError code = aclrtLaunchHostFunc(stream, run, owned.get());
  if (code == ACL_SUCCESS) owned.release();
  return code;
}

}  // namespace lynx::npu
