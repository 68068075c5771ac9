"""Calls of the compiled ops on drawn pages, beside the same pages through the PyTorch reference, bit for bit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lynx_ascend.codec import ops
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import PageLayout, page_layout
from lynx_ascend.codec.reference import decode_page, encode_page

GUARD = 0xA5  # what every byte that an op must leave alone holds


@dataclass
class Case:
    """Values and where they lie: x is [tokens, heads, head_dim], its first token at absolute position `start`."""

    x: torch.Tensor
    config: CodecConfig
    start: int = 0
    block_size: int = 16
    memory: str = "nbhd"  # order of the cache's axes in memory: blocks n, rows b, heads h, head_dim d

    def __post_init__(self) -> None:
        blocks = -(-(self.start + self.x.shape[0]) // self.block_size)
        self.block_ids = torch.randperm(blocks + 2, generator=torch.Generator().manual_seed(blocks))[:blocks]

    def cache(self) -> torch.Tensor:
        """A guarded cache: one half of interleaved K and V, as a strided view."""
        sizes = dict(zip("nbhd", (len(self.block_ids) + 2, self.block_size, *self.x.shape[1:]), strict=True))
        shape = [2 * sizes[axis] if axis == self.memory[-1] else sizes[axis] for axis in self.memory]
        pool = torch.full((math.prod(shape) * self.x.element_size(),), GUARD, dtype=torch.uint8)
        view = pool.view(self.x.dtype).view(shape)[..., sizes[self.memory[-1]] :]
        return view.permute([self.memory.index(axis) for axis in "nbhd"])

    def filled(self) -> torch.Tensor:
        cache = self.cache()
        self._put(cache, self.x, self.start)
        return cache

    def _put(self, cache: torch.Tensor, rows: torch.Tensor, position: int) -> None:
        """Writes rows at their absolute positions, by PyTorch's own indexing."""
        t = torch.arange(position, position + rows.shape[0])
        cache[self.block_ids[t // self.block_size], t % self.block_size] = rows

    def layouts(self) -> list[PageLayout]:
        """One a page."""
        tokens, page, channels = self.x.shape[0], self.config.page, self.x[0].numel()
        return [
            page_layout(self.config, self.x.dtype, min(page, tokens - first), channels, self.start + first)
            for first in range(0, tokens, page)
        ]

    def encode(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Payloads by the ops, uint8 [pages, bytes], with guard bytes behind each row and between rows."""
        layouts = self.layouts()
        sizes = max(at.anchor_bytes for at in layouts), max(at.residual_bytes for at in layouts)
        anchor, residual = (torch.full((len(layouts), n + 9), GUARD, dtype=torch.uint8)[:, : n + 3] for n in sizes)
        ops.encode(self.filled(), self.block_ids, self.start, self.x.shape[0], self.config, anchor, residual)
        return anchor, residual

    def decode(self, anchor: torch.Tensor, residual: torch.Tensor | None, first: int = 0) -> torch.Tensor:
        """The whole cache after decoding into a guarded one."""
        cache, tokens = self.cache(), self.x.shape[0]
        ops.decode(anchor, residual, self.start, tokens, self.config, self.block_ids, cache, first)
        return cache

    def expected_cache(self, anchor: torch.Tensor, residual: torch.Tensor | None, first: int = 0) -> torch.Tensor:
        cache, position = self.cache(), self.start
        for index, at in enumerate(self.layouts()):
            shape = (at.tokens, *self.x.shape[1:])
            fine = None if residual is None else residual[index, : at.residual_bytes]
            page = decode_page(anchor[index, : at.anchor_bytes], fine, self.config, shape, self.x.dtype, position)
            skipped = min(max(first - position, 0), at.tokens)
            self._put(cache, page[skipped:], position + skipped)
            position += at.tokens
        return cache


def raw_bytes(values: torch.Tensor) -> torch.Tensor:
    """All memory behind a view, so that what lies around its elements is compared too."""
    return torch.empty(0, dtype=torch.uint8).set_(values.untyped_storage())


def assert_same_bits(case: Case, first: int = 0) -> None:
    """Payloads and both reconstructions equal the reference's, and no guard byte has changed."""
    anchor, residual = case.encode()
    position = 0
    for index, at in enumerate(case.layouts()):
        wanted = encode_page(case.x[position : position + at.tokens], case.config, case.start + position)
        for name, got, page in zip(("anchor", "residual"), (anchor, residual), wanted, strict=True):
            differ = (got[index, : page.numel()] != page).nonzero().flatten().tolist()
            assert not differ, f"{name} of page {index}: bytes {differ[:8]} of {page.numel()} differ; {at}"
            assert bool((got[index, page.numel() :] == GUARD).all()), f"{name} of page {index}: wrote past its end"
        position += at.tokens
    for payload in (anchor, residual):
        columns, stride = payload.shape[1], payload.stride(0)
        assert bool((raw_bytes(payload).view(-1, stride)[:, columns:] == GUARD).all()), "wrote between rows"
    for fine in (None, residual):
        got, want = case.decode(anchor, fine, first), case.expected_cache(anchor, fine, first)
        same = raw_bytes(got) == raw_bytes(want)
        assert bool(same.all()), f"{'anchor' if fine is None else 'full'} decode: {int((~same).sum())} bytes differ"
