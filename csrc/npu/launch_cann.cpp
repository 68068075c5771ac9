// Launches the Ascend C kernels by the functions that ascendc_library generates.
#include "launch.h"
// They name LynxTiling without declaring it.
#include "aclrtlaunch_lynx_decode_bf16.h"
#include "aclrtlaunch_lynx_decode_fp16.h"
#include "aclrtlaunch_lynx_encode_bf16.h"
#include "aclrtlaunch_lynx_encode_fp16.h"

namespace lynx::npu {

const char* kernels() { return "cann"; }

int launch(const Launch& launch, aclrtStream stream) {
  const auto kernel =
      launch.decode
          ? (launch.half ? ACLRT_LAUNCH_KERNEL(lynx_decode_fp16) : ACLRT_LAUNCH_KERNEL(lynx_decode_bf16))
          : (launch.half ? ACLRT_LAUNCH_KERNEL(lynx_encode_fp16) : ACLRT_LAUNCH_KERNEL(lynx_encode_bf16));
  Tiling tiling = launch.tiling;  // on the host; copied with the launch
  const auto& [a, b, c, d, e] = launch.buffers;
  return static_cast<int>(
      kernel(tiling.cores, stream, a.address, b.address, c.address, d.address, e.address, &tiling));
}

}  // namespace lynx::npu
