// One kernel launch, with two bodies: the Ascend C binaries (launch_cann.cpp) or the host twin
// (launch_twin.cpp). CMake takes the one or the other.
#pragma once

#include <acl/acl.h>

#include <array>
#include <cstdint>

#include "tiling.h"

namespace lynx::npu {

// Memory of a tensor: from its first element to the end of its last. Null where an argument is absent.
struct Buffer {
  void* address = nullptr;
  uint64_t bytes = 0;
};

// A call of lynx_<encode|decode>_<bf16|fp16>; buffers are in the order of the kernel's parameters
// (ascend_kernels/README.md).
struct Launch {
  bool decode, half;
  std::array<Buffer, 5> buffers;
  Tiling tiling;
};

// Which body this is: "cann" or "twin". Throws std::runtime_error where it cannot run.
const char* kernels();

// Queues it on the stream, on tiling.cores cores. Returns ACL's code.
int launch(const Launch& launch, aclrtStream stream);

}  // namespace lynx::npu
