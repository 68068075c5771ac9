// What the parts of the emulated ACL share.
#pragma once

#include <cstdint>
#include <memory>

#include "call.h"
#include "stream.h"

namespace emulated {

constexpr aclError kTaskFailed =
    507015;  // what ACL's runtime reports for an exception on a vector or cube core
constexpr uint64_t kMemoryBytes = 32ull << 30;

int32_t current_device();  // of the calling thread

// Null for a handle that is no stream; a null handle is the current device's default stream.
std::shared_ptr<Stream> stream_of(aclrtStream handle);

// Queues a task for ACL function `call`.
aclError push(const char* call, aclrtStream handle, Task task);

}  // namespace emulated
