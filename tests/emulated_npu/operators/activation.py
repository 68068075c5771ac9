"""npu_swiglu. Ascend/op-plugin, docs/zh/custom_APIs/torch_npu/(beta)torch_npu-npu_swiglu.md."""

from __future__ import annotations

import torch

from tests.emulated_npu.operators.register import FLOATS, kernel, require


@kernel("npu::npu_swiglu")
def npu_swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    require(x.dtype in FLOATS, f"input: dtype {x.dtype} is not one of {FLOATS}")
    require(x.shape[dim] % 2 == 0, f"input: dimension {dim} of {tuple(x.shape)} is odd")
    gate, up = x.float().chunk(2, dim)
    return (gate * torch.sigmoid(gate) * up).to(x.dtype)
