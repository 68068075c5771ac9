// The Ascend C header that kernels include, as the host twin has it: just the classes and calls that this
// project's kernels use, written from the API documents (asc-devkit, docs/zh/api/SIMD-API). A broken rule
// throws twin::TwinError.
#pragma once

#define __aicore__
#define __global__
#define __gm__
#define GM_ADDR uint8_t*

#include "twin/arithmetic.h"
#include "twin/cast.h"
#include "twin/copy.h"
#include "twin/queue.h"
#include "twin/select.h"
#include "twin/sync.h"
