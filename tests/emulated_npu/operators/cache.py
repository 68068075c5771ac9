"""_npu_reshape_and_cache. ATB's ReshapeAndCacheOperation without compression (CANN documentation: ascendtb_01_0221).

Wider than documented: float32, and float32 rows for a 16-bit cache, into which they are rounded.
"""

from __future__ import annotations

import torch

from tests.emulated_npu.operators.register import FLOATS, define, kernel, require

define(
    "_npu_reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_indices) -> ()"
)


@kernel("atb::_npu_reshape_and_cache")
def _npu_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """Writes row i of key and value [tokens, heads, size] to slot `slot_indices[i]` of the caches
    [blocks, block_size, heads, size], counted over all blocks; a negative slot is padding and writes nothing."""
    require(slot_indices.dtype == torch.int32, f"slot_indices: dtype {slot_indices.dtype}, not int32")
    require(slot_indices.shape == key.shape[:1], f"slot_indices: {tuple(slot_indices.shape)} for {key.shape[0]} tokens")
    used = slot_indices >= 0
    slots = slot_indices[used].long()
    for name, rows, cache in (("key", key, key_cache), ("value", value, value_cache)):
        require(
            rows.dtype == cache.dtype or (rows.dtype is torch.float32 and cache.dtype in FLOATS),
            f"{name}: dtype {rows.dtype}, its cache's {cache.dtype}",
        )
        require(
            rows.dim() == 3 and cache.dim() == 4 and rows.shape[0] == len(used) and rows.shape[1:] == cache.shape[2:],
            f"{name}: shapes {tuple(rows.shape)} and {tuple(cache.shape)} are not [tokens, heads, size] and its cache",
        )
        capacity = cache.shape[0] * cache.shape[1]
        require(not len(slots) or int(slots.max()) < capacity, f"slot_indices: {slots.max()} of {capacity} slots")
        cache.view(capacity, *cache.shape[2:])[slots] = rows[used].to(cache.dtype)
