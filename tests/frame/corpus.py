"""Valid frames over all codecs, dtypes, streams and many geometries: what mutants are made from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from lynx_ascend.api import encode
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.frame import CODEC_NAMES
from lynx_ascend.methods import METHODS, method_codec
from lynx_ascend.paged import PagedKV, PageEncoder

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SMALL = ((1, 1, 1), (5, 1, 3), (8, 2, 4), (19, 3, 5), (40, 2, 8))  # tokens, heads, head_dim
FULL = (256, 2, 64)
# chunk, page, sink_tokens: a sink within a chunk, none, all of page 0.
PAGES = ((4, 16, 3), (8, 16, 0), (8, 24, 24), (5, 20, 4))
ALPHAS = (0.0, 1.0, 100.0)

Frames = tuple[bytes, ...]  # of one page: the anchor's, and those of the later streams that it has, in their order


@dataclass(frozen=True)
class Seed:
    """The sealed frames of one page, and those of the pages before it, which a receiver of whole tensors needs too."""

    name: str
    frames: Frames
    before: tuple[Frames, ...] = ()


def values(tokens: int, heads: int, head_dim: int, dtype: torch.dtype, kind: int) -> Tensor:
    """[tokens, heads, head_dim]: spread, constant, the type's extremes or subnormals, by `kind` modulo 4."""
    generator = torch.Generator().manual_seed(kind)
    x = torch.randn(tokens, heads, head_dim, generator=generator)
    if kind % 4 == 1:
        x = x[:1].expand_as(x) * torch.tensor([1.0, -0.0, 0.0, 1.0])[torch.arange(head_dim) % 4]
    elif kind % 4 == 2:
        x = x.sign() * torch.finfo(dtype).max
    elif kind % 4 == 3:
        x = x * torch.finfo(dtype).smallest_normal
    return x.to(dtype)


def build() -> tuple[list[Seed], list[Seed]]:
    """Seeds of small geometries, and a few of a full page."""
    small = _exact()
    small += [
        seed
        for number, (method, dtype, shape) in enumerate(product(METHODS, DTYPES, SMALL))
        if method != "pair" or shape[2] % 4 == 0
        for seed in _pages(method, values(*shape, dtype, number), _config(method, number), number)
    ]
    full = [
        seed
        for number, method in enumerate(METHODS)
        for seed in _pages(method, values(*FULL, torch.bfloat16, 4 * number), None, number)
    ]
    return small, full


def _config(method: str, number: int) -> CodecConfig:
    chunk, page, sink = PAGES[number % len(PAGES)]
    return CodecConfig(
        CODEC_NAMES.get(method_codec(method), "grid"),
        alpha=0.0 if method == "pair" else ALPHAS[number // 2 % len(ALPHAS)],
        center="mean" if number % 3 else "midrange",
        chunk=chunk,
        page=page,
        sink_tokens=sink,
    )


def _pages(method: str, x: Tensor, config: CodecConfig | None, number: int) -> list[Seed]:
    encoder = PageEncoder(
        method,
        PagedKV(x.unsqueeze(0), torch.zeros(1, dtype=torch.int64)),
        x.shape[0],
        layer=number,
        is_value=bool(number % 2),
        generation=number,
        config=config,
    )
    pages = [encoder.page(index) for index in range(encoder.num_pages)]
    name = f"{method_codec(method).name} {x.dtype} {tuple(x.shape)}"
    return _ends(name, [tuple(bytes(page[stream]) for stream in sorted(page)) for page in pages])


def _exact() -> list[Seed]:
    """Pages with all three streams, as the library writes them."""
    found = []
    for number, (method, dtype, shape) in enumerate(product(("lynx", "alg1", "pair"), DTYPES, SMALL[1:])):
        if method == "pair" and shape[2] % 4:
            continue
        config = replace(_config(method, number), exact=True)
        encoded = encode(values(*shape, dtype, number), config, layer=100 + number)
        pages = list(zip(*(encoded.frames(stream) for stream in ("anchor", "residual", "exact")), strict=True))
        found += _ends(f"{method} exact {dtype} {shape}", pages)
    return found


def _ends(name: str, pages: list[Frames]) -> list[Seed]:
    return [Seed(f"{name} page {index}", pages[index], tuple(pages[:index])) for index in {0, len(pages) - 1}]
