"""The codec's own test: one page against the PyTorch reference, bit for bit, and a glance at its speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lynx_ascend.codec import ops, reference
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import page_layout
from lynx_ascend.doctor.finding import Finding, ok, problem

HEADS, HEAD_DIM = 8, 128
PAGES = 128  # 64 MiB of bf16, more than most machines' caches hold
ROUNDS_S = 0.1  # for each of the three speeds
_REBUILD = "build lynx-ascend again on this machine: scripts/setup_env.sh, or pip install -e ."


class _Pages(NamedTuple):
    """A cache [blocks, page, heads, head_dim] bf16, a page a block, and what it is encoded into, uint8 [pages, n]."""

    config: CodecConfig
    cache: Tensor
    blocks: Tensor
    anchor: Tensor
    residual: Tensor

    @property
    def tokens(self) -> int:
        return self.cache.shape[0] * self.cache.shape[1]

    def encode(self) -> None:
        ops.encode(self.cache, self.blocks, 0, self.tokens, self.config, self.anchor, self.residual)

    def decode(self, residual: Tensor | None, target: Tensor) -> None:
        ops.decode(self.anchor, residual, 0, self.tokens, self.config, self.blocks, target)


def _pages(count: int) -> _Pages:
    config = CodecConfig()
    page = torch.randn(config.page, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(1)).bfloat16()
    layouts = [
        page_layout(config, torch.bfloat16, config.page, HEADS * HEAD_DIM, index * config.page)
        for index in range(count)  # the first one has raw sink rows
    ]
    sizes = (max(layout.anchor_bytes for layout in layouts), max(layout.residual_bytes for layout in layouts))
    anchor, residual = (torch.zeros(count, size, dtype=torch.uint8) for size in sizes)
    return _Pages(config, page.repeat(count, 1, 1, 1), torch.arange(count), anchor, residual)


def same_bits() -> Finding:
    """Whether the kernels in use write and read what the reference does."""
    made = _pages(1)
    page, shape = made.cache[0], (made.tokens, HEADS, HEAD_DIM)
    try:
        made.encode()
        anchor, residual = reference.encode_page(page, made.config)
        pairs = {"anchor": (made.anchor[0], anchor), "residual": (made.residual[0], residual)}
        for name, refined in (("anchor decode", None), ("full decode", made.residual)):
            target = torch.zeros_like(made.cache)
            made.decode(refined, target)
            wanted = reference.decode_page(
                anchor, None if refined is None else residual, made.config, shape, page.dtype
            )
            pairs[name] = (target[0].view(torch.int16), wanted.view(torch.int16))
    except RuntimeError as error:
        return problem("codec", str(error), _REBUILD)
    wrong = [name for name, (found, wanted) in pairs.items() if not torch.equal(found, wanted)]
    if wrong:
        return problem("codec", f"differs from the reference in {', '.join(wrong)}", _REBUILD)
    return ok("codec", f"a page of {made.tokens} tokens equals the reference's, both ways")


def speed() -> Finding:
    """GB/s (10^9) of the uncompressed side, best of the rounds of a tenth of a second, all of torch's threads."""
    made = _pages(PAGES)
    target = torch.zeros_like(made.cache)
    works: dict[str, Callable[[], None]] = {
        "encode": made.encode,
        "anchor decode": lambda: made.decode(None, target),
        "full decode": lambda: made.decode(made.residual, target),
    }
    nbytes = made.cache.nbytes
    try:
        speeds = {name: nbytes / _best(work) / 1e9 for name, work in works.items()}
    except RuntimeError as error:
        return problem("codec speed", str(error), _REBUILD)
    found = ", ".join(f"{name} {value:.1f}" for name, value in speeds.items())
    return ok("codec speed", f"GB/s: {found} ({torch.get_num_threads()} threads; `lynx-ascend bench codec` says more)")


def _best(work: Callable[[], None]) -> float:
    """Seconds of the fastest run."""
    work()
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < ROUNDS_S:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
