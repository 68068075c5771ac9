"""Stand-ins for what else vllm-ascend expects: ATB, pyACL, torchvision's library, a Triton kernel.

Each function is called by emulation.py around the import of the module that needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

ATB = ("_npu_matmul_add_fp32", "_npu_reshape_and_cache", "_npu_rotary_embedding")


def atb() -> None:
    """torch_npu's functions for ATB operators load a library that needs NNAL: they find the emulated operators instead.

    Those that are not emulated fail as operators that do not exist.
    """
    import torch
    import torch_npu
    from torch_npu.op_plugin.atb import _atb_ops

    _atb_ops._register_atb_extensions = lambda: None
    for name in ATB:
        setattr(torch_npu, name, getattr(torch.ops.atb, name))


def pyacl() -> None:
    """The module `acl`, which CANN installs, for one import: sleep mode's, which needs vllm_ascend_C and stays off."""

    def memcpy(*_: Any) -> int:
        raise NotImplementedError("acl.rt.memcpy is not emulated: sleep mode needs vllm_ascend_C")

    acl, rt = ModuleType("acl"), ModuleType("acl.rt")
    acl.rt, rt.memcpy = rt, memcpy  # type: ignore[attr-defined]
    sys.modules.setdefault("acl", acl)
    sys.modules.setdefault("acl.rt", rt)


def torchvision() -> None:
    """Two schemas that importing torchvision wants from its C library, where that is for CUDA and does not load.

    Only its Python files are needed: Transformers imports them for image models. The operators have no kernel here.
    """
    import torch

    if sys.modules["torchvision.extension"]._has_ops():  # type: ignore[attr-defined]
        return
    boxes = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        boxes.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(boxes)


_kept: list[Any] = []  # a library's definitions end with it


class HostKernel:
    """A function in place of a Triton kernel: `kernel[grid](...)` calls it."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.function


def slot_mapping() -> None:
    """vLLM's one Triton kernel that vllm-ascend calls whether or not there is Triton."""
    module = sys.modules["vllm.v1.worker.block_table"]  # not yet an attribute of its package
    module._compute_slot_mapping_kernel = HostKernel(compute_slot_mapping)  # type: ignore[attr-defined]


def compute_slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: Any,
    positions: Any,
    block_table: Any,
    block_table_stride: int,
    block_size: int,
    slot_mapping: Any,
    *,
    TOTAL_CP_WORLD_SIZE: int,
    TOTAL_CP_RANK: int,
    CP_KV_CACHE_INTERLEAVE_SIZE: int,
    PAD_ID: int,
    BLOCK_SIZE: int,
) -> None:
    """As vllm.v1.worker.block_table._compute_slot_mapping_kernel, for one context-parallel rank.

    Args:
        query_start_loc: [requests + 1], where each request's tokens begin.
        positions: [num_tokens], of each token in its request.
        block_table: [requests, blocks a request].
        slot_mapping: [max_num_tokens], written: the token's slot, counted over all blocks; PAD_ID after num_tokens.
    """
    import torch

    if TOTAL_CP_WORLD_SIZE != 1:
        raise NotImplementedError(f"TOTAL_CP_WORLD_SIZE {TOTAL_CP_WORLD_SIZE}: context parallelism is not emulated")
    starts, at, table, out = map(torch.ops.emulated_npu.host, (query_start_loc, positions, block_table, slot_mapping))
    if table.stride(0) != block_table_stride:
        raise ValueError(f"block_table_stride: {block_table_stride}, the table's is {table.stride(0)}")
    rows = torch.searchsorted(starts.long(), torch.arange(num_tokens), right=True) - 1
    blocks = at[:num_tokens].long()
    slots = table[rows, blocks // block_size].long() * block_size + blocks % block_size
    out[:num_tokens] = slots.to(out.dtype)
    out[num_tokens:max_num_tokens] = PAD_ID
