"""npu_fused_infer_attention_score in the TND layout, paged or not, unmasked, causal or banded.

Ascend/op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_fused_infer_attention_score.md; the sparse modes' masks
are drawn in torch_npu-npu_fusion_attention.md beside it. Not emulated, hence refused: all arguments that the kernel
below does not name, the other layouts and sparse modes, a mask with sparse mode 0. Wider than documented: float32, a
16-bit paged cache under float32 queries, and head sizes other than 128 and 192.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from tests.emulated_npu.operators.register import FLOATS, kernel, require

UNLIMITED = 2147483647
NO_MASK, CAUSAL, BAND = 0, 3, 4
"""The sparse modes that are emulated; both masks are aligned to the last query and the last key."""


@kernel("npu::npu_fused_infer_attention_score")
def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    block_size: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the queries of each sequence to its keys.

    Args:
        query: [T, num_heads, D].
        key, value: [T, num_key_value_heads, D]; paged: [blocks, block_size, num_key_value_heads * D].
        atten_mask: for sparse modes 3 and 4 the documented [2048, 2048], set above the diagonal.
        actual_seq_lengths: the end of each sequence in T (cumulative).
        actual_seq_lengths_kv: as actual_seq_lengths; paged: the length of each sequence.
        block_table: int32 [sequences, blocks a sequence].
        pre_tokens, next_tokens: how many keys before and after its own position a query sees, in sparse mode 4.

    Returns:
        [T, num_heads, D], and a zero: the logarithm of the softmax's sum is not asked for.
    """
    if input_layout != "TND" or sparse_mode not in (NO_MASK, CAUSAL, BAND):
        raise NotImplementedError(f"input_layout {input_layout!r} with sparse_mode {sparse_mode} is not emulated")
    require(query.dtype in FLOATS, f"query: dtype {query.dtype} is not one of {FLOATS}")
    narrower = FLOATS if block_table is not None and query.dtype is torch.float32 else ()
    for name, x in (("query", query), ("key", key), ("value", value)):
        require(x.dtype == query.dtype or x.dtype in narrower, f"{name}: dtype {x.dtype}, query's {query.dtype}")
        require(x.dim() == 3 and x.is_contiguous(), f"{name}: {tuple(x.shape)} is not a contiguous [, , ]")
    require(query.shape[1] == num_heads, f"num_heads: {num_heads}, query has {query.shape[1]}")
    kv_heads = num_key_value_heads or num_heads
    require(num_heads % kv_heads == 0, f"num_key_value_heads: {kv_heads} does not divide {num_heads}")
    _check_mask(atten_mask, sparse_mode)
    before, after = {NO_MASK: (None, None), CAUSAL: (None, 0), BAND: (pre_tokens, next_tokens)}[sparse_mode]

    require(actual_seq_lengths is not None, "actual_seq_lengths: must be given in the TND layout")
    require(actual_seq_lengths_kv is not None, "actual_seq_lengths_kv: must be given in the TND layout")
    queries = _spans("actual_seq_lengths", actual_seq_lengths, query.shape[0])
    if block_table is None:
        spans = _spans("actual_seq_lengths_kv", actual_seq_lengths_kv, key.shape[0])
        keys = [key[span] for span in spans]
        values = [value[span] for span in spans]
    else:
        _check_pages(key, value, block_table, actual_seq_lengths_kv, block_size, kv_heads * query.shape[2])
        keys, values = (
            [
                _gather(cache, row, length, kv_heads)
                for row, length in zip(block_table, actual_seq_lengths_kv, strict=False)
            ]
            for cache in (key, value)
        )
    require(
        len(keys) == len(queries), f"actual_seq_lengths_kv: {len(keys)} sequences, actual_seq_lengths {len(queries)}"
    )
    out = torch.empty_like(query)
    for span, k, v in zip(queries, keys, values, strict=True):
        if span.stop > span.start:
            out[span] = _attend(query[span], k, v, scale, before, after)
    return out, torch.zeros(1)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, before: int | None, after: int | None
) -> torch.Tensor:
    """One sequence: q [Tq, heads, D], k and v [Tk, kv heads, D]; computed in float32."""
    count, _heads, size = q.shape
    length, kv_heads, _ = k.shape
    grouped = q.float().view(count, kv_heads, -1, size).permute(1, 2, 0, 3).reshape(kv_heads, -1, size)
    scores = (grouped @ k.float().permute(1, 2, 0)).view(kv_heads, -1, count, length) * scale
    # Position of each key from each query's own, which is counted from the end of both.
    distance = torch.arange(length) - (torch.arange(count)[:, None] + length - count)
    hidden = torch.zeros(count, length, dtype=torch.bool)
    if after is not None:
        hidden |= distance > after
    if before is not None:
        hidden |= distance < -before
    require(not hidden.all(-1).any(), f"a query of {count} sees none of {length} keys: this case is not emulated")
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    out = weights.view(kv_heads, -1, length) @ v.float().transpose(0, 1)
    return out.view(kv_heads, -1, count, size).permute(2, 0, 1, 3).reshape(q.shape).to(q.dtype)


def _spans(name: str, ends: Sequence[int], total: int) -> list[slice]:
    bounds = [0, *ends]
    require(all(a <= b for a, b in pairwise(bounds)), f"{name}: {list(ends)} is not cumulative")
    require(bounds[-1] == total, f"{name}: ends at {bounds[-1]}, of {total} tokens")
    return [slice(a, b) for a, b in pairwise(bounds)]


def _gather(cache: torch.Tensor, blocks: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    used = blocks[: -(-length // cache.shape[1])].long()
    return cache[used].flatten(0, 1)[:length].unflatten(-1, (heads, -1))


def _check_pages(
    key: torch.Tensor, value: torch.Tensor, table: torch.Tensor, lengths: Sequence[int], block_size: int, width: int
) -> None:
    require(
        block_size % 16 == 0 and 0 < block_size <= 1024, f"block_size: {block_size}, not a multiple of 16 up to 1024"
    )
    for name, cache in (("key", key), ("value", value)):
        wanted = (cache.shape[0], block_size, width)
        require(tuple(cache.shape) == wanted, f"{name}: {tuple(cache.shape)} is not [blocks, {block_size}, {width}]")
    require(table.dtype == torch.int32 and table.dim() == 2, f"block_table: {table.dtype}, {table.dim()} dimensions")
    require(table.shape[0] >= len(lengths), f"block_table: {table.shape[0]} rows for {len(lengths)} sequences")
    for row, length in zip(table, lengths, strict=False):
        count = -(-length // block_size)
        require(count <= len(row), f"block_table: {len(row)} blocks a sequence, {count} needed for {length} tokens")
        used = row[:count]
        require(
            bool(((used >= 0) & (used < key.shape[0])).all()), f"block_table: {used.tolist()} of {key.shape[0]} blocks"
        )


def _check_mask(mask: torch.Tensor | None, sparse_mode: int) -> None:
    if sparse_mode == NO_MASK:
        if mask is not None:
            raise NotImplementedError("atten_mask with sparse_mode 0 is not emulated")
        return
    require(
        mask is not None and mask.shape == (2048, 2048), f"atten_mask: sparse_mode {sparse_mode} needs [2048, 2048]"
    )
    require(mask.dtype in (torch.bool, torch.int8, torch.uint8), f"atten_mask: dtype {mask.dtype}")
    # All of it would take longer than the attention: one pair on either side of the diagonal tells a mask's sense.
    require(bool(mask[0, 1]) and not mask[1, 0] and not mask[0, 0], "atten_mask: is not set above the diagonal alone")
