"""Where vLLM keeps each layer's K and V: strided views [blocks, block_size, heads, head_dim] of its cache tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lynx_ascend.codec.ops import block_table
from lynx_ascend.paged import PagedKV


class LayoutError(RuntimeError):
    """A KV cache whose memory layout is not known; the message names the layer and what was found."""


class BlockTable:
    """The blocks of one request, the same in every layer.

    Attributes:
        ids: int64 [n] on the CPU. table: what the codec's ops take, on the caches' device.
    """

    def __init__(self, block_ids: Sequence[int], device: torch.device) -> None:
        self.ids = torch.tensor(block_ids, dtype=torch.int64)
        self.table = block_table(self.ids, device)


@dataclass(frozen=True)
class LayerKV:
    """One layer's cache. Tensors: [blocks, block_size, heads, head_dim], any strides, on the CPU or an NPU."""

    index: int
    name: str
    key: torch.Tensor
    value: torch.Tensor

    def paged(self, is_value: bool, blocks: BlockTable) -> PagedKV:
        """K or V of one request."""
        return PagedKV(self.value if is_value else self.key, blocks.ids, blocks.table)


def layer_views(kv_caches: Mapping[str, Any], kv_cache_config: Any, isa: str | None) -> list[LayerKV]:
    """The views of every layer, in the model's order.

    Args:
        kv_caches: layer name to cache: a (key, value) pair of [blocks, block_size, heads, head_dim] as vllm-ascend has
            it, or the one tensor of vLLM's CPU backend.
        kv_cache_config: vLLM's KVCacheConfig; one group of full attention layers is required.
        isa: the kernel family of vLLM's CPU attention ("vec", "amx", ...), which decides how a block's inside is laid
            out; None where the caches are pairs.

    Raises:
        LayoutError: anything else.
    """
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise LayoutError(f"the model has {len(groups)} KV cache groups: only one, of full attention, is supported")
    spec = groups[0].kv_cache_spec
    views: list[LayerKV] = []
    for index, name in enumerate(groups[0].layer_names):
        cache = kv_caches[name]
        if isinstance(cache, tuple | list) and len(cache) == 2:
            key, value = cache
        elif isinstance(cache, torch.Tensor) and cache.device.type == "cpu" and cache.dim() == 4 and isa is not None:
            key, value = _cpu_views(name, cache, spec, isa)
        else:
            shape = tuple(cache.shape) if isinstance(cache, torch.Tensor) else type(cache).__name__
            raise LayoutError(f"layer {name}: KV cache of shape {shape} has an unknown layout")
        for tensor in (key, value):
            expected = (spec.block_size, spec.num_kv_heads, spec.head_size)
            if tuple(tensor.shape[1:]) != expected:
                raise LayoutError(f"layer {name}: a block is {tuple(tensor.shape[1:])}, not {expected}")
        views.append(LayerKV(index, name, key, value))
    return views


def _cpu_views(name: str, cache: torch.Tensor, spec: Any, isa: str) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of vLLM's CPU tensor [blocks, heads, block_size, 2 * head_dim]: per head first all of K, then all of V.

    How K lies inside its half depends on the attention kernels ("vec" keeps it transposed), so it is not assumed: one
    block of known values is written by vLLM's own kernel, and the strides are read off.
    """
    blocks, heads, block_size, width = cache.shape
    head_dim = width // 2
    strides = _probe_strides(name, heads, block_size, head_dim, cache.dtype, isa)
    halves = cache.view(blocks, heads, 2, block_size * head_dim)
    views = []
    for half, (token, dim) in zip((halves[:, :, 0], halves[:, :, 1]), strides, strict=True):
        views.append(
            half.as_strided(
                (blocks, block_size, heads, head_dim),
                (half.stride(0), token, half.stride(1), dim),
                half.storage_offset(),
            )
        )
    return views[0], views[1]


def _probe_strides(
    name: str, heads: int, block_size: int, head_dim: int, dtype: torch.dtype, isa: str
) -> list[tuple[int, int]]:
    """(token stride, dim stride) in elements of K and of V inside a (block, head) half."""
    from vllm import _custom_ops as ops

    # An element's number is written as two digits that every 16-bit float holds exactly.
    numbers = torch.arange(block_size * head_dim).view(block_size, 1, head_dim).expand(-1, heads, -1)
    base = 256
    found = [torch.zeros(heads, block_size * head_dim, dtype=torch.int64) for _ in range(2)]
    for power in (1, base):
        digits = (numbers // power % base).to(dtype).contiguous()
        scratch = torch.zeros(1, heads, 2, block_size * head_dim, dtype=dtype)
        key, value = scratch.view(1, heads, 2 * block_size, head_dim).chunk(2, dim=2)
        slots = torch.arange(block_size, dtype=torch.int64)
        try:
            ops.cpu_attn_reshape_and_cache(digits, digits, key, value, slots, isa)
        except RuntimeError as error:
            raise LayoutError(f"layer {name}: attention kernel {isa!r} cannot write this cache: {error}") from error
        for half in range(2):
            found[half] += scratch[0, :, half].to(torch.int64) * power
    strides = []
    for name_of_half, where in zip("KV", found, strict=True):
        position = torch.argsort(where[0])  # element number -> place in memory
        token, dim = int(position[head_dim]), int(position[1])
        expected = torch.arange(block_size).view(-1, 1) * token + torch.arange(head_dim) * dim
        if block_size * head_dim > base * base or not all(
            torch.equal(torch.argsort(row), expected.reshape(-1)) for row in where
        ):
            raise LayoutError(f"layer {name}: {name_of_half} of attention kernel {isa!r} has no strided layout")
        strides.append((token, dim))
    return strides
