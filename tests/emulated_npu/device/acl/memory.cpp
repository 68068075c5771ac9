// ACL: device memory is host memory that the emulation knows to be the device's; copies are checked against
// that.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "device.h"

namespace emulated {
namespace {

// Ranges of addresses, each allocation one.
class Ranges {
 public:
  void add(const void* begin, uint64_t bytes) { ranges_[at(begin)] = bytes; }

  // Its size; 0 if no range begins there.
  uint64_t remove(const void* begin) {
    const auto found = ranges_.find(at(begin));
    if (found == ranges_.end()) return 0;
    const uint64_t bytes = found->second;
    ranges_.erase(found);
    return bytes;
  }

  // In one of them, or in several that touch: a tensor may lie across the pieces that a segment grew by.
  bool hold(const void* begin, uint64_t bytes) const {
    auto next = ranges_.upper_bound(at(begin));
    if (next == ranges_.begin()) return false;
    const auto range = std::prev(next);
    uintptr_t end = range->first + range->second;
    if (at(begin) >= end) return false;
    for (; next != ranges_.end() && next->first == end; ++next) end += next->second;
    return bytes <= end - at(begin);
  }

 private:
  static uintptr_t at(const void* address) { return reinterpret_cast<uintptr_t>(address); }

  std::map<uintptr_t, uint64_t> ranges_;
};

struct Memory {
  std::mutex mutex;
  Ranges device, pinned, registered, reserved;
  uint64_t used = 0;
};

Memory& memory() {
  static Memory& all = *new Memory;
  return all;
}

struct Physical {
  uint64_t bytes;
};

aclError allocate(const char* call, void** pointer, size_t bytes) {
  *pointer = nullptr;
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  if (bytes > kMemoryBytes - all.used || posix_memalign(pointer, 512, bytes + 32))
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                std::string(call) + ": no room for " + std::to_string(bytes) + " bytes");
  all.device.add(*pointer, bytes);
  all.used += bytes;
  return ACL_SUCCESS;
}

aclError invalid(const char* call, const char* what) {
  return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(call) + ": " + what);
}

// Both ends must be where `kind` says.
aclError check_copy(const char* call, void* to, size_t room, const void* from, size_t bytes,
                    aclrtMemcpyKind kind) {
  if (bytes > room) return invalid(call, "the destination is too small");
  const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  if (!to_device && !from_device && kind != ACL_MEMCPY_HOST_TO_HOST)
    return invalid(call, "this kind is not in the emulated ACL");
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  if (bytes && all.device.hold(to, bytes) != to_device)
    return invalid(call,
                   to_device ? "the destination is not device memory" : "the destination is device memory");
  if (bytes && all.device.hold(from, bytes) != from_device)
    return invalid(call, from_device ? "the source is not device memory" : "the source is device memory");
  return ACL_SUCCESS;
}

aclError check_device(const char* call, void* at, size_t room, size_t bytes) {
  if (bytes > room) return invalid(call, "the destination is too small");
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  return bytes && !all.device.hold(at, bytes) ? invalid(call, "the destination is not device memory")
                                              : ACL_SUCCESS;
}

}  // namespace
}  // namespace emulated

using emulated::fail;
using emulated::invalid;
using emulated::memory;

extern "C" {

aclError aclrtMalloc(void** pointer, size_t bytes, aclrtMemMallocPolicy) {
  ACL_CALL();
  return emulated::allocate(__func__, pointer, bytes);
}

aclError aclrtMallocAlign32(void** pointer, size_t bytes, aclrtMemMallocPolicy) {
  ACL_CALL();
  return emulated::allocate(__func__, pointer, bytes);
}

aclError aclrtFree(void* pointer) {
  ACL_CALL();
  const std::lock_guard lock(memory().mutex);
  const uint64_t bytes = memory().device.remove(pointer);
  if (!bytes) return invalid(__func__, "no allocation begins there");
  memory().used -= bytes;
  std::free(pointer);
  return ACL_SUCCESS;
}

aclError aclrtMallocHost(void** pointer, size_t bytes) {
  ACL_CALL();
  if (posix_memalign(pointer, 4096, bytes ? bytes : 1))
    return fail(ACL_ERROR_BAD_ALLOC, "aclrtMallocHost: no memory");
  const std::lock_guard lock(memory().mutex);
  memory().pinned.add(*pointer, bytes ? bytes : 1);
  return ACL_SUCCESS;
}

aclError aclrtMallocHostWithCfg(void** pointer, uint64_t bytes, aclrtMallocConfig*) {
  return aclrtMallocHost(pointer, bytes);
}

aclError aclrtFreeHost(void* pointer) {
  ACL_CALL();
  const std::lock_guard lock(memory().mutex);
  if (!memory().pinned.remove(pointer)) return invalid(__func__, "no allocation begins there");
  std::free(pointer);
  return ACL_SUCCESS;
}

aclError aclrtHostRegister(void* pointer, uint64_t bytes, aclrtHostRegisterType, void** device) {
  ACL_CALL();
  const std::lock_guard lock(memory().mutex);
  memory().registered.add(pointer, bytes);
  *device = pointer;
  return ACL_SUCCESS;
}

aclError aclrtHostUnregister(void* pointer) {
  ACL_CALL();
  const std::lock_guard lock(memory().mutex);
  return memory().registered.remove(pointer) ? ACL_SUCCESS : invalid(__func__, "nothing is registered there");
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* available, size_t* total) {
  const std::lock_guard lock(memory().mutex);
  *total = emulated::kMemoryBytes;
  *available = emulated::kMemoryBytes - memory().used;
  return ACL_SUCCESS;
}

aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
  *attributes = {};
  const std::lock_guard lock(memory().mutex);
  const bool pinned = memory().pinned.hold(pointer, 1) || memory().registered.hold(pointer, 1);
  attributes->location.type = memory().device.hold(pointer, 1) ? ACL_MEM_LOCATION_TYPE_DEVICE
                              : pinned                         ? ACL_MEM_LOCATION_TYPE_HOST
                                                               : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  return ACL_SUCCESS;
}

// At once, whatever streams hold: as on the device, it is the caller who orders it.
aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind) {
  ACL_CALL();
  if (const aclError code = emulated::check_copy(__func__, to, room, from, bytes, kind)) return code;
  std::memcpy(to, from, bytes);
  return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  ACL_CALL();
  if (const aclError code = emulated::check_copy(__func__, to, room, from, bytes, kind)) return code;
  return emulated::push(__func__, stream, [=] { std::memcpy(to, from, bytes); });
}

aclError aclrtMemset(void* to, size_t room, int32_t value, size_t bytes) {
  ACL_CALL();
  if (const aclError code = emulated::check_device(__func__, to, room, bytes)) return code;
  std::memset(to, value, bytes);
  return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t bytes, aclrtStream stream) {
  ACL_CALL();
  if (const aclError code = emulated::check_device(__func__, to, room, bytes)) return code;
  return emulated::push(__func__, stream, [=] { std::memset(to, value, bytes); });
}

// Virtual memory: reserved address space is host memory that costs nothing until it is touched; what is
// mapped there is the device's.
aclError aclrtReserveMemAddress(void** address, size_t bytes, size_t, void*, uint64_t) {
  ACL_CALL();
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (made == MAP_FAILED) return fail(ACL_ERROR_BAD_ALLOC, "aclrtReserveMemAddress: no address space");
  const std::lock_guard lock(memory().mutex);
  memory().reserved.add(made, bytes);
  *address = made;
  return ACL_SUCCESS;
}

aclError aclrtReleaseMemAddress(void* address) {
  ACL_CALL();
  const std::lock_guard lock(memory().mutex);
  const uint64_t bytes = memory().reserved.remove(address);
  if (!bytes) return invalid(__func__, "nothing is reserved there");
  munmap(address, bytes);
  return ACL_SUCCESS;
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t bytes, const aclrtPhysicalMemProp*, uint64_t) {
  ACL_CALL();
  const std::lock_guard lock(memory().mutex);
  if (bytes > emulated::kMemoryBytes - memory().used)
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                "aclrtMallocPhysical: no room for " + std::to_string(bytes) + " bytes");
  memory().used += bytes;
  *handle = reinterpret_cast<aclrtDrvMemHandle>(new emulated::Physical{bytes});
  return ACL_SUCCESS;
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  ACL_CALL();
  auto* physical = reinterpret_cast<emulated::Physical*>(handle);
  const std::lock_guard lock(memory().mutex);
  memory().used -= physical->bytes;
  delete physical;
  return ACL_SUCCESS;
}

aclError aclrtMapMem(void* address, size_t bytes, size_t, aclrtDrvMemHandle, uint64_t) {
  ACL_CALL();
  const std::lock_guard lock(memory().mutex);
  memory().device.add(address, bytes);
  return ACL_SUCCESS;
}

aclError aclrtUnmapMem(void* address) {
  ACL_CALL();
  const std::lock_guard lock(memory().mutex);
  return memory().device.remove(address) ? ACL_SUCCESS : invalid(__func__, "nothing is mapped there");
}

aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle, aclrtMemHandleType, uint64_t, uint64_t*) {
  ACL_REFUSE();
}
aclError aclrtMemImportFromShareableHandle(uint64_t, int32_t, aclrtDrvMemHandle*) { ACL_REFUSE(); }
aclError aclrtMemSetPidToShareableHandle(uint64_t, int32_t*, size_t) { ACL_REFUSE(); }

}  // extern "C"
