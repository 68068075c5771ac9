// ACL and its companions: what torch_npu links to for operators, dumps and profiling. Descriptors are kept;
// nothing can be compiled or launched, and says so.
#include <string>
#include <vector>

#include "acl/acl_op.h"
#include "acl/acl_op_compiler.h"
#include "call.h"

struct aclTensorDesc {
  aclDataType type;
  aclFormat format;
  std::vector<int64_t> sizes;
};

struct aclDataBuffer {
  void* data;
  size_t bytes;
};

struct aclopAttr {};

extern "C" {

aclDataBuffer* aclCreateDataBuffer(void* data, size_t bytes) { return new aclDataBuffer{data, bytes}; }

aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  delete buffer;
  return ACL_SUCCESS;
}

aclTensorDesc* aclCreateTensorDesc(aclDataType type, int dimensions, const int64_t* sizes, aclFormat format) {
  return new aclTensorDesc{type, format, {sizes, sizes + dimensions}};
}

void aclDestroyTensorDesc(const aclTensorDesc* description) { delete description; }

aclError aclGetTensorDescDimV2(const aclTensorDesc* description, size_t index, int64_t* size) {
  if (index >= description->sizes.size())
    return emulated::fail(ACL_ERROR_INVALID_PARAM, "aclGetTensorDescDimV2: index");
  *size = description->sizes[index];
  return ACL_SUCCESS;
}

aclFormat aclGetTensorDescFormat(const aclTensorDesc* description) { return description->format; }
size_t aclGetTensorDescNumDims(const aclTensorDesc* description) { return description->sizes.size(); }
aclDataType aclGetTensorDescType(const aclTensorDesc* description) { return description->type; }
void aclSetTensorDescName(aclTensorDesc*, const char*) {}
aclError aclSetTensorFormat(aclTensorDesc*, aclFormat) { ACL_REFUSE(); }
aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { ACL_REFUSE(); }
aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { ACL_REFUSE(); }

aclopAttr* aclopCreateAttr() { return new aclopAttr; }
void aclopDestroyAttr(const aclopAttr* attributes) { delete attributes; }
aclError aclopSetAttrBool(aclopAttr*, const char*, uint8_t) { ACL_REFUSE(); }
aclError aclopSetAttrDataType(aclopAttr*, const char*, aclDataType) { ACL_REFUSE(); }
aclError aclopSetAttrFloat(aclopAttr*, const char*, float) { ACL_REFUSE(); }
aclError aclopSetAttrInt(aclopAttr*, const char*, int64_t) { ACL_REFUSE(); }
aclError aclopSetAttrListBool(aclopAttr*, const char*, int, const uint8_t*) { ACL_REFUSE(); }
aclError aclopSetAttrListFloat(aclopAttr*, const char*, int, const float*) { ACL_REFUSE(); }
aclError aclopSetAttrListInt(aclopAttr*, const char*, int, const int64_t*) { ACL_REFUSE(); }
aclError aclopSetAttrListListInt(aclopAttr*, const char*, int, const int*, const int64_t* const[]) {
  ACL_REFUSE();
}
aclError aclopSetAttrString(aclopAttr*, const char*, const char*) { ACL_REFUSE(); }

aclError aclopCompileAndExecute(const char* name, int, const aclTensorDesc* const[],
                                const aclDataBuffer* const[], int, const aclTensorDesc* const[],
                                aclDataBuffer* const[], const aclopAttr*, aclopEngineType, aclopCompileType,
                                const char*, aclrtStream) {
  return emulated::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                        std::string(name) + ": the emulated device has no operators");
}

// Asked for at start-up. Nothing is compiled, so no option matters.
aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }
size_t aclGetCompileoptSize(aclCompileOpt) { return 1; }

aclError aclGetCompileopt(aclCompileOpt, char* value, size_t length) {
  if (value && length) *value = 0;
  return ACL_SUCCESS;
}

aclError aclmdlInitDump() { return ACL_SUCCESS; }
aclError aclmdlSetDump(const char*) { ACL_REFUSE(); }
aclError aclmdlFinalizeDump() { return ACL_SUCCESS; }

aclError aclrtBinaryGetFunction(const aclrtBinHandle, const char*, aclrtFuncHandle*) { ACL_REFUSE(); }
aclError aclrtBinaryLoadFromData(const void*, size_t, const aclrtBinaryLoadOptions*, aclrtBinHandle*) {
  ACL_REFUSE();
}
aclError aclrtGetFunctionAddr(aclrtFuncHandle, void**, void**) { ACL_REFUSE(); }

// Of the runtime and the profiler: no header of theirs comes with torch_npu.
int rtDevBinaryRegister(const void*, void**) { ACL_REFUSE(); }
int rtFunctionRegister(void*, const void*, const char*, const void*, uint32_t) { ACL_REFUSE(); }
int rtKernelLaunch(const void*, uint32_t, void*, uint32_t, void*, void*) { ACL_REFUSE(); }
int rtGetC2cCtrlAddr(uint64_t*, uint32_t*) { ACL_REFUSE(); }
uint64_t MsprofGetHashId(const char*, size_t) { return 0; }
int32_t MsprofRegisterCallback(uint32_t, int32_t (*)(uint32_t, void*, uint32_t)) { return 0; }
int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }
int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }
uint64_t MsprofSysCycleTime() { return 0; }

}  // extern "C"
