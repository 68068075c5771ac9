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


def uneven(x: torch.Tensor, seed: int) -> torch.Tensor:
    """x with every channel scaled by a power of two, down to 1/16: codec pair meets all widths."""
    powers = torch.randint(-4, 1, x.shape[1:], generator=torch.Generator().manual_seed(seed))
    return (x * 2.0**powers).to(x.dtype)


def beside_ratio(times: float, head_dim: int) -> torch.Tensor:
    """Pairs of which either channel's range is at most, or just more than, `times` the other's. fp16 [64, heads, dim]
    with heads * dim = 128."""
    half, heads, quarter = torch.float16, 128 // head_dim, head_dim // 4
    small, above = torch.tensor([16.0, torch.inf], dtype=half)
    large = torch.tensor(16.0 * times, dtype=half)
    if large > 16.0 * times:
        large = torch.nextafter(large, -above)
    over = torch.nextafter(large, above)
    ends = torch.stack([small, large, small, over, large, small, over, small]).repeat(16)
    x = torch.zeros(64, heads, head_dim, dtype=half)
    x[0] = ends.view(heads, 2, quarter, 2).transpose(2, 3).reshape(heads, head_dim)
    x[1] = -x[0]
    return x


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
        x = uneven(x, draw.getrandbits(32))
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
