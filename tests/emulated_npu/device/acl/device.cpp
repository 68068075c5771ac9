// ACL: start-up, devices and contexts, properties, messages, counters.
#include "device.h"

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "acl/acl_op_compiler.h"

namespace emulated {
namespace {

struct Context {
  int32_t device;
};

struct Options {
  std::mutex mutex;
  std::map<int, int64_t> values;
};

Options& options() {
  static Options& kept = *new Options;
  return kept;
}

constexpr int32_t kMaxDevices = 8;
thread_local Context* context = nullptr;
thread_local std::string message;

Context* context_of(int32_t device) {
  static auto& all = *new std::array<Context, kMaxDevices>([] {
    std::array<Context, kMaxDevices> made{};
    for (int32_t i = 0; i < kMaxDevices; ++i) made[i].device = i;
    return made;
  }());
  return &all[device];
}

int32_t device_count() {
  static const int32_t count = [] {
    const char* wanted = std::getenv("EMULATED_NPU_DEVICES");
    const int32_t number = wanted ? std::atoi(wanted) : 1;
    return number < 1 || number > kMaxDevices ? 0 : number;
  }();
  return count;
}

// Of an Ascend 910B4; false for what is not known.
bool property(int attribute, int64_t* value) {
  switch (attribute) {
    case ACL_DEV_ATTR_AICPU_CORE_NUM:
      *value = 4;
      return true;
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
    case ACL_DEV_ATTR_CUBE_CORE_NUM:
      *value = 20;
      return true;
    case ACL_DEV_ATTR_VECTOR_CORE_NUM:
      *value = 40;
      return true;
    case ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE:
      *value = 192 << 10;
      return true;
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
      *value = kMemoryBytes;
      return true;
    case ACL_DEV_ATTR_L2_CACHE_SIZE:
      *value = 96 << 20;
      return true;
    case ACL_DEV_ATTR_IS_VIRTUAL:
      *value = 0;
      return true;
    case ACL_DEV_ATTR_NPU_ARCH:
      *value = 2201;
      return true;
    default:
      return false;
  }
}

}  // namespace

int32_t current_device() { return context ? context->device : 0; }

std::atomic<uint64_t>& calls_of(const char* name) {
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<std::string, std::atomic<uint64_t>>;
  const std::lock_guard lock(mutex);
  return all[name];
}

aclError fail(aclError code, const std::string& text) {
  message = text;
  return code;
}

aclError refuse(const char* function) {
  return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, std::string(function) + ": not in the emulated ACL");
}

}  // namespace emulated

using emulated::fail;

extern "C" {

// Not ACL: for tests. Calls of an ACL function so far.
ACL_FUNC_VISIBILITY uint64_t emulated_acl_calls(const char* name) { return emulated::calls_of(name); }

void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}

aclError aclInit(const char*) {
  ACL_CALL();
  if (emulated::device_count() == 0)
    return fail(ACL_ERROR_INVALID_PARAM,
                "EMULATED_NPU_DEVICES: not in 1 .. " + std::to_string(emulated::kMaxDevices));
  return ACL_SUCCESS;
}

aclError aclFinalize() {
  ACL_CALL();
  return ACL_SUCCESS;
}

const char* aclGetRecentErrMsg() {
  static thread_local std::string taken;
  taken = std::exchange(emulated::message, {});
  return taken.empty() ? nullptr : taken.c_str();
}

const char* aclrtGetSocName() { return "Ascend910B4"; }

aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = emulated::device_count();
  return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t device) {
  ACL_CALL();
  if (device < 0 || device >= emulated::device_count())
    return fail(ACL_ERROR_INVALID_PARAM, "aclrtSetDevice: there is no device " + std::to_string(device));
  emulated::context = emulated::context_of(device);
  return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t* device) {
  if (!emulated::context) return fail(ACL_ERROR_RT_CONTEXT_NULL, "aclrtGetDevice: no device is set");
  *device = emulated::current_device();
  return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t) {
  ACL_CALL();
  return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (!emulated::context) return fail(ACL_ERROR_RT_CONTEXT_NULL, "aclrtGetCurrentContext: no device is set");
  *context = emulated::context;
  return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  emulated::context = static_cast<emulated::Context*>(context);
  return ACL_SUCCESS;
}

aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* active) {
  if (flags) *flags = 0;
  *active = 1;
  return ACL_SUCCESS;
}

aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t* const logical) {
  *logical = user;
  return ACL_SUCCESS;
}

aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 1;
  return ACL_SUCCESS;
}

aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }

aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  *pid = getpid();
  return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo info, int64_t* value) {
  switch (info) {
    case ACL_DEVICE_INFO_AI_CORE_NUM:
      emulated::property(ACL_DEV_ATTR_AICORE_CORE_NUM, value);
      return ACL_SUCCESS;
    case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
      emulated::property(ACL_DEV_ATTR_VECTOR_CORE_NUM, value);
      return ACL_SUCCESS;
    case ACL_DEVICE_INFO_L2_SIZE:
      emulated::property(ACL_DEV_ATTR_L2_CACHE_SIZE, value);
      return ACL_SUCCESS;
    default:
      return fail(ACL_ERROR_RT_PARAM_INVALID,
                  "aclGetDeviceCapability: property " + std::to_string(info) + " is not known");
  }
}

aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr attribute, int64_t* value) {
  if (emulated::property(attribute, value)) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_PARAM_INVALID,
              "aclrtGetDeviceInfo: property " + std::to_string(attribute) + " is not known");
}

aclError aclrtGetDeviceUtilizationRate(int32_t, aclrtUtilizationInfo*) { ACL_REFUSE(); }

// Asked for the arithmetic of infinities; -1 is said to mean "not supported" of an attribute.
aclError aclGetCannAttribute(aclCannAttr, int32_t* value) {
  *value = 0;
  return ACL_SUCCESS;
}

aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  std::memset(version, 0, sizeof *version);
  std::strcpy(version->version, "8.5.0");
  std::strcpy(version->majorVersion, "8");
  std::strcpy(version->minorVersion, "5");
  std::strcpy(version->releaseVersion, "0");
  return ACL_SUCCESS;
}

aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

// Options are kept and given back; none of them changes what the emulation does.
aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  const std::lock_guard lock(emulated::options().mutex);
  emulated::options().values[option] = value;
  return ACL_SUCCESS;
}

aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  const std::lock_guard lock(emulated::options().mutex);
  *value = emulated::options().values[option];
  return ACL_SUCCESS;
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  return aclrtSetSysParamOpt(option, value);
}
aclError aclrtCtxGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  return aclrtGetSysParamOpt(option, value);
}

aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }

aclError aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t* actual) {
  if (actual) *actual = timeout;
  return ACL_SUCCESS;
}

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }

}  // extern "C"
