"""_npu_matmul_add_fp32, which vllm-ascend calls once to warm ATB up.

Ascend/op-plugin, op_plugin/ops/atb/LinearAtb.cpp: ATB's LinearOperation with enAccum and transposeA; its
test/test_custom_ops/test_atb_linear.py.
"""

from __future__ import annotations

import torch

from tests.emulated_npu.operators.register import define, kernel, require

define("_npu_matmul_add_fp32(Tensor x, Tensor weight, Tensor(a!) C) -> ()")


@kernel("atb::_npu_matmul_add_fp32")
def _npu_matmul_add_fp32(x: torch.Tensor, weight: torch.Tensor, c: torch.Tensor) -> None:
    """c [m, n] float32 += x [k, m] transposed, times weight [k, n]; x and weight float16 or bfloat16."""
    require(
        x.dtype == weight.dtype and x.dtype in (torch.float16, torch.bfloat16), f"x, weight: {x.dtype}, {weight.dtype}"
    )
    require(c.dtype == torch.float32, f"C: dtype {c.dtype}, not float32")
    shapes = tuple(x.shape), tuple(weight.shape), tuple(c.shape)
    require(all(len(shape) == 2 for shape in shapes), f"x, weight, C: shapes {shapes} are not all matrices")
    require(
        shapes == ((x.shape[0], c.shape[0]), (x.shape[0], c.shape[1]), shapes[2]),
        f"x, weight, C: shapes {shapes} do not fit",
    )
    c += x.float().t() @ weight.float()
