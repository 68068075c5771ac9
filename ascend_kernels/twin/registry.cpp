// The kernels that lynx_ascend._twin can launch. Their files know nothing of the twin.
#include "kernel_operator.h"
#include "tiling.h"
#include "twin/launch.h"

extern "C" {
void lynx_decode_bf16(GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, lynx::Tiling);
void lynx_decode_fp16(GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, lynx::Tiling);
void lynx_encode_bf16(GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, lynx::Tiling);
void lynx_encode_fp16(GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, GM_ADDR, lynx::Tiling);
}

TWIN_KERNEL(lynx_decode_bf16);
TWIN_KERNEL(lynx_decode_fp16);
TWIN_KERNEL(lynx_encode_bf16);
TWIN_KERNEL(lynx_encode_fp16);
