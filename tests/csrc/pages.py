"""Pages to compare kernels on: values with an edge of their own, drawn shapes, and how many to draw."""

from __future__ import annotations

import random

import torch

from lynx_ascend.codec.config import CodecConfig
from tests.csrc.calls import Case

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
KINDS = ["normal", "whole", "sparse", "constant", "extreme", "subnormal", "offset"]


def draw_values(kind: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Finite values of a kind that has its own edge: ties, equal elements, overflow, underflow, cancellation."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    info = torch.finfo(dtype)
    if kind == "whole":
        x = (x * 60).round()
    elif kind == "sparse":  # zeros of both signs
        x = torch.where(torch.rand(shape, generator=g) < 0.7, x.sign() * 0.0, x)
    elif kind == "constant":
        x = x[:1].expand(shape)
    elif kind == "extreme":
        x = x.sign() * info.max * torch.tensor([1.0, 1.0, 0.999, 1e-3])[torch.randint(4, shape, generator=g)]
    elif kind == "subnormal":
        x = x * 4 * info.smallest_normal * info.eps
        x = torch.where(torch.rand(shape, generator=g) < 0.2, x.sign() * info.smallest_normal * info.eps, x)
    elif kind == "offset":
        x = x * 0.01 + 100.0
    return x.to(dtype)


def spread(x: torch.Tensor) -> torch.Tensor:
    """x with scales that grow over a head's channels, so that pairs share their bits in every way."""
    return (x * torch.logspace(-2, 0, x.shape[2])).to(x.dtype)


def draw_case(draw: random.Random, full: bool) -> Case:
    """Pages of up to 48 tokens and 200 channels, or, if `full`, of the default size and a real model's channels."""
    chunk = draw.choice([16, 32] if full else [1, 2, 3, 7, 8, 16])
    page = 256 if full else chunk * draw.randint(1, 3)
    codec, alpha = (
        draw.choice(["grid", "grid", "alg1", "pair"]),
        draw.choice([0.0, 0.0, 0.5, 1.0, 3.0, 15.0, 100.0, 1e6]),
    )
    config = CodecConfig(
        codec=codec,
        alpha=0.0 if codec == "pair" else alpha,
        center=draw.choice(["mean", "midrange"]),
        chunk=chunk,
        page=page,
        sink_tokens=min(page, draw.choice([0, 1, 4, 32])),
    )
    pages = 2 if full else 5
    heads, head_dim = draw.choice(
        [(2, 64), (1, 80), (1, 96), (2, 128), (1, 192), (1, 256), (1, 576), (9, 128)]
        if full
        else [(1, 1), (3, 5), (2, 16), (1, 33), (1, 64), (2, 80), (1, 96), (1, 128), (1, 192), (7, 11)]
    )
    if codec == "pair":
        head_dim = -(-head_dim // 4) * 4
    tokens = (pages - 1) * page + draw.randint(1, page)
    start = page * draw.randint(0, 2)
    x = draw_values(draw.choice(KINDS), (tokens, heads, head_dim), draw.choice(DTYPES), draw.getrandbits(32))
    if codec == "pair":
        x = spread(x)
    return Case(
        x,
        config,
        start=start,
        block_size=draw.choice([16, 32, 128] if full else [1, 4, 16, 32, 64, 128]),
        memory=draw.choice(["nbhd", "nhbd", "nhdb"]),
        apart=draw.random() < 0.5,
        first=draw.choice([0, start + draw.randint(0, tokens - 1)]),
    )


def draw_cases(pages: int, seed: int, full_every: int) -> list[Case]:
    """Cases with `pages` pages in all, or one to four more; one in `full_every` cases has full pages."""
    draw, cases, count = random.Random(seed), list[Case](), 0
    while count < pages:
        cases.append(draw_case(draw, full=len(cases) % full_every == 0))
        count += len(cases[-1].layouts())
    return cases
