"""One layer's K or V in a paged cache, as the codecs read and write it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class PagedKV(NamedTuple):
    """One layer's K or V in a paged cache: token t is row t % block_size of block block_ids[t // block_size].

    Attributes:
        cache: [blocks, block_size, heads, head_dim], bf16 | fp16 | fp32 with any strides, on the CPU or an NPU.
        block_ids: int64 [n] on the CPU, from the sequence's first token on.
        table: block_ids as ops take them, on the cache's device (ops.block_table): for one who has many caches with the
            same blocks. None: made from block_ids when it is needed.
    """

    cache: Tensor
    block_ids: Tensor
    table: Tensor | None = None

    def check(self, tokens: int) -> None:
        """Raises ValueError, naming the argument, unless the first `tokens` tokens are within the cache."""
        cache, ids, table = self.cache, self.block_ids, self.table
        if cache.dim() != 4 or cache.dtype not in _DTYPES:
            raise ValueError(f"cache: {cache.dtype} {tuple(cache.shape)} is not [blocks, block_size, heads, head_dim]")
        if ids.dim() != 1 or ids.dtype != torch.int64 or ids.device.type != "cpu":
            raise ValueError(f"block_ids: {ids.dtype} {tuple(ids.shape)} on {ids.device} is not int64 [n] on the CPU")
        if table is not None and (table.shape != ids.shape or table.device != cache.device):
            raise ValueError(f"table: {tuple(table.shape)} on {table.device} is not block_ids on the cache's device")
        if ids.numel() * cache.shape[1] < tokens:
            raise ValueError(f"block_ids: {ids.numel()} blocks of {cache.shape[1]} do not hold {tokens} tokens")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < cache.shape[0]:
            raise ValueError(f"block_ids: {int(ids.min())} .. {int(ids.max())} is outside 0 .. {cache.shape[0] - 1}")

    def gather(self, start: int, tokens: int) -> Tensor:
        """A copy of tokens start .. start + tokens, [tokens, heads, head_dim]."""
        block, row = self._rows(start, tokens)
        return self.cache[block, row]

    def scatter(self, start: int, values: Tensor) -> None:
        """Writes `values` [tokens, heads, head_dim] to the tokens from `start` on."""
        block, row = self._rows(start, values.shape[0])
        self.cache[block, row] = values.to(self.cache.device)

    def _rows(self, start: int, tokens: int) -> tuple[Tensor, Tensor]:
        position = torch.arange(start, start + tokens)
        block, row = self.block_ids[position // self.cache.shape[1]], position % self.cache.shape[1]
        return block.to(self.cache.device), row.to(self.cache.device)
