"""The same pages through the PyTorch reference and the compiled ops, in guarded buffers that must come out equal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from lynx_ascend import _C
from lynx_ascend.codec import ops
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import PageLayout, page_layout
from lynx_ascend.codec.reference import decode_page, encode_page

GUARD = 0xA5  # what every byte that an op must leave alone holds
# All bytes of: the anchors, the residuals, the cache decoded from the anchors alone, and from both.
Buffers = dict[str, torch.Tensor]


@dataclass
class Case:
    """Values and where they lie: x is [tokens, heads, head_dim], its first token at absolute position `start`.

    Decoding writes the tokens >= first (absolute).
    """

    x: torch.Tensor
    config: CodecConfig
    start: int = 0
    block_size: int = 16
    memory: str = "nbhd"  # order of the cache's axes in memory: blocks n, rows b, heads h, head_dim d
    apart: bool = False  # K and V apart; otherwise the cache is one half of both, interleaved
    first: int = 0

    def __post_init__(self) -> None:
        blocks = -(-(self.start + self.x.shape[0]) // self.block_size)
        self.block_ids = torch.randperm(blocks + 2, generator=torch.Generator().manual_seed(blocks))[:blocks]

    def cache(self) -> torch.Tensor:
        """A guarded cache, [blocks, block_size, heads, head_dim]."""
        sizes = dict(zip("nbhd", (len(self.block_ids) + 2, self.block_size, *self.x.shape[1:]), strict=True))
        halves = 1 if self.apart else 2
        shape = [halves * sizes[axis] if axis == self.memory[-1] else sizes[axis] for axis in self.memory]
        pool = torch.full((math.prod(shape) * self.x.element_size(),), GUARD, dtype=torch.uint8)
        view = pool.view(self.x.dtype).view(shape)[..., -sizes[self.memory[-1]] :]
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

    def payloads(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Empty ones, uint8 [pages, bytes], with guard bytes behind each row and between rows."""
        layouts = self.layouts()
        sizes = max(at.anchor_bytes for at in layouts), max(at.residual_bytes for at in layouts)
        anchor, residual = (torch.full((len(layouts), n + 9), GUARD, dtype=torch.uint8)[:, : n + 3] for n in sizes)
        return anchor, residual

    def encode(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Payloads by the ops."""
        anchor, residual = self.payloads()
        ops.encode(self.filled(), self.block_ids, self.start, self.x.shape[0], self.config, anchor, residual)
        return anchor, residual

    def decode(self, anchor: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """The whole cache after decoding into a guarded one."""
        cache, tokens = self.cache(), self.x.shape[0]
        ops.decode(anchor, residual, self.start, tokens, self.config, self.block_ids, cache, self.first)
        return cache

    def compiled(self) -> Buffers:
        """By the ops, with the instruction set in use."""
        anchor, residual = self.encode()
        return buffers(anchor, residual, self.decode(anchor, None), self.decode(anchor, residual))

    def reference(self) -> Buffers:
        """By the definition."""
        anchor, residual = self.payloads()
        coarse, full = self.cache(), self.cache()
        position = self.start
        for index, at in enumerate(self.layouts()):
            rows = self.x[position - self.start :][: at.tokens]
            page = encode_page(rows, self.config, position)
            for payload, values in zip((anchor, residual), page, strict=True):
                payload[index, : len(values)] = values
            skipped = min(max(self.first - position, 0), at.tokens)
            for cache, fine in ((coarse, None), (full, page[1])):
                out = decode_page(page[0], fine, self.config, tuple(rows.shape), self.x.dtype, position)
                self._put(cache, out[skipped:], position + skipped)
            position += at.tokens
        return buffers(anchor, residual, coarse, full)


def buffers(anchor: torch.Tensor, residual: torch.Tensor, coarse: torch.Tensor, full: torch.Tensor) -> Buffers:
    named = {"anchor": anchor, "residual": residual, "anchor decode": coarse, "full decode": full}
    return {name: raw_bytes(values) for name, values in named.items()}


def raw_bytes(values: torch.Tensor) -> torch.Tensor:
    """All memory behind a view, so that what lies around its elements is compared too."""
    return torch.empty(0, dtype=torch.uint8).set_(values.untyped_storage())


def assert_equal(got: Buffers, want: Buffers, isa: str, case: Case) -> None:
    for name in want:
        differ = (got[name] != want[name]).nonzero().flatten().tolist()
        where = f"{tuple(case.x.shape)} {case.x.dtype} {case.config} start={case.start} {case.memory}"
        assert not differ, f"{isa}, {name}: {len(differ)} of {len(want[name])} bytes differ, at {differ[:8]}; {where}"


@contextmanager
def using(isa: str) -> Iterator[None]:
    before = _C.isa()
    _C.use_isa(isa)
    try:
        yield
    finally:
        _C.use_isa(before)


def assert_same_bits(case: Case) -> None:
    """Every instruction set's payloads and reconstructions equal the reference's, and no guard byte has changed."""
    want = case.reference()
    for isa in _C.supported_isas():
        with using(isa):
            assert_equal(case.compiled(), want, isa, case)
