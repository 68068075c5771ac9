// What every function of the emulated ACL begins and ends with: its call is counted, its error has a message.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "acl/acl.h"

namespace emulated {

// Of calls to the ACL function `name`, in this process. Tests read them through emulated_acl_calls.
std::atomic<uint64_t>& calls_of(const char* name);

// Keeps `text` for the calling thread's aclGetRecentErrMsg, and returns `code`.
aclError fail(aclError code, const std::string& text);

// For what the emulated ACL does not do.
aclError refuse(const char* function);

}  // namespace emulated

#define ACL_CALL()                                                      \
  do {                                                                  \
    static std::atomic<uint64_t>& calls = emulated::calls_of(__func__); \
    calls.fetch_add(1, std::memory_order_relaxed);                      \
  } while (0)
#define ACL_REFUSE() return emulated::refuse(__func__)
