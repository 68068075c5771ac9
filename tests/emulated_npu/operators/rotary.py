"""_npu_rotary_embedding.

Ascend/op-plugin, op_plugin/ops/atb/RopeAtb.cpp, on ATB's RopeOperation (CANN documentation: ascendtb_01_0075).
"""

from __future__ import annotations

import torch

from tests.emulated_npu.operators.register import FLOATS, define, kernel, require

define(
    "_npu_rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!) key, int head_size, Tensor cos_sin_cache, "
    "bool is_neox_style) -> ()"
)


@kernel("atb::_npu_rotary_embedding")
def _npu_rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
) -> None:
    """Turns query and key [tokens, heads * head_size] in place by the angles of their positions.

    Row i of cos_sin_cache [positions, head_size]: the cosines, then the sines, of position i. Pairs are a head's halves
    (neox) or its neighbours.
    """
    require(positions.dtype in (torch.int64, torch.int32), f"positions: dtype {positions.dtype} is no integer")
    rows = positions.flatten().long()
    require(
        cos_sin_cache.shape[1:] == (head_size,), f"cos_sin_cache: {tuple(cos_sin_cache.shape)}, not [, {head_size}]"
    )
    cos, sin = (half[:, None] for half in cos_sin_cache[rows].float().chunk(2, -1))
    for name, x in (("query", query), ("key", key)):
        require(x.dtype in FLOATS, f"{name}: dtype {x.dtype} is not one of {FLOATS}")
        require(
            x.dim() == 2 and x.shape[0] == len(rows) and x.shape[1] % head_size == 0,
            f"{name}: shape {tuple(x.shape)}, not [{len(rows)}, heads * {head_size}]",
        )
        heads = x.float().view(len(rows), -1, head_size)
        a, b = heads.chunk(2, -1) if is_neox_style else (heads[..., ::2], heads[..., 1::2])
        turned = (a * cos - b * sin, b * cos + a * sin)
        x.copy_((torch.cat(turned, -1) if is_neox_style else torch.stack(turned, -1)).reshape(x.shape))
