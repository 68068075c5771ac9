"""npu_rms_norm and npu_add_rms_norm.

Ascend/op-plugin, docs/zh/custom_APIs/torch_npu/: (beta)torch_npu-npu_rms_norm.md and torch_npu-npu_add_rms_norm.md.
"""

from __future__ import annotations

import torch

from tests.emulated_npu.operators.register import FLOATS, kernel, require


def _normalise(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x over the root of the mean of its squares in the dimensions of gamma, times gamma; and one over the root."""
    require(x.dtype in FLOATS, f"input: dtype {x.dtype} is not one of {FLOATS}")
    require(gamma.dtype in (x.dtype, torch.float32), f"gamma: dtype {gamma.dtype} does not go with input's {x.dtype}")
    require(
        0 < gamma.dim() <= x.dim() and x.shape[x.dim() - gamma.dim() :] == gamma.shape,
        f"gamma: shape {tuple(gamma.shape)} is not the end of input's {tuple(x.shape)}",
    )
    wide = x.float()
    dims = tuple(range(-gamma.dim(), 0))
    reciprocal = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + epsilon)
    return (wide * reciprocal * gamma.float()).to(x.dtype), reciprocal


@kernel("npu::npu_rms_norm")
def npu_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    return _normalise(x, gamma, epsilon)


@kernel("npu::npu_add_rms_norm")
def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    require(x1.shape == x2.shape, f"x2: shape {tuple(x2.shape)} is not x1's {tuple(x1.shape)}")
    require(x1.dtype in FLOATS, f"x1: dtype {x1.dtype} is not one of {FLOATS}")
    require(x1.dtype == x2.dtype == gamma.dtype, f"dtypes differ: x1 {x1.dtype}, x2 {x2.dtype}, gamma {gamma.dtype}")
    total = x1.float() + x2.float()
    y, reciprocal = _normalise(total, gamma.float(), epsilon)
    return y.to(x1.dtype), reciprocal, total.to(x1.dtype)
