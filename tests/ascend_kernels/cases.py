"""Pages that the Ascend C kernels take, and what a launch must show besides right bytes."""

from __future__ import annotations

import random
from typing import Any

import torch

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import read_part
from lynx_ascend.codec.reference import encode_page, scales
from lynx_ascend.codec.tables import steps, tables
from tests.ascend_kernels.calls import TwinCase
from tests.csrc.pages import KINDS, beside_ratio, draw_values, uneven

DTYPES = [torch.bfloat16, torch.float16]
CODECS = [("grid", 0.0), ("grid", 1.0), ("alg1", 100.0), ("pair", 0.0)]  # with alpha


def draw_case(draw: random.Random) -> TwinCase:
    """A few pages with an edge somewhere: values, tails, the sink, the first token, alignment of blocks, cores."""
    chunk = draw.choice([16, 32, 64])
    page = draw.choice([size for size in (chunk, 2 * chunk, 3 * chunk, 256) if size % chunk == 0 and size <= 256])
    codec = draw.choice(["grid", "grid", "alg1", "pair"])
    alphas = {"grid": [0.0, 0.0, 1e-3, 1.0, 3.0, 1e6], "alg1": [0.5, 1.0, 15.0, 100.0, 1e6], "pair": [0.0]}
    config = CodecConfig(
        codec=codec,
        alpha=draw.choice(alphas[codec]),
        center=draw.choice(["mean", "midrange"]),
        chunk=chunk,
        page=page,
        sink_tokens=min(page, draw.choice([0, 1, 4, 33, 256])),
    )
    shapes = [(1, 64), (2, 64), (4, 80), (2, 96), (1, 192), (1, 576)]
    heads, head_dim = draw.choice([(1, 64), (2, 64), (9, 64), (1, 128), (3, 128)] if codec == "pair" else shapes)
    pages = draw.randint(1, 3)
    tokens = (pages - 1) * page + draw.randint(1, page)
    start = page * draw.randint(0, 2)
    x = draw_values(draw.choice(KINDS), (tokens, heads, head_dim), draw.choice(DTYPES), draw.getrandbits(32))
    return TwinCase(
        uneven(x, draw.getrandbits(32)) if codec == "pair" else x,
        config,
        start=start,
        block_size=draw.choice([16, 48, 128]),
        first=draw.choice([0, start + draw.randint(0, tokens - 1)]),
        cores=draw.choice([1, 2, 3, 7, 40]),
    )


def one_chunk(codec: str, alpha: float, ends: torch.Tensor) -> tuple[TwinCase, torch.Tensor, torch.Tensor]:
    """64 tokens of 64 channels, of which two reach from -ends to ends; and centres and scales, [64]."""
    config = CodecConfig(codec=codec, alpha=alpha, center="midrange", chunk=64, page=64, sink_tokens=0)  # type: ignore[arg-type]
    x = torch.zeros(64, 1, 64)
    x[0], x[1] = -ends, ends
    case = TwinCase(x.half(), config)
    anchor, at = encode_page(case.x, config)[0], case.layouts()[0]
    g0, g1 = (read_part(anchor, offset, 64, at.gamma_dtype).float() for offset in (0, at.gamma_max))
    mu, sigma = (read_part(anchor, offset, 64, at.metadata_dtype).view(1, 64) for offset in (at.mu, at.sigma))
    c, s = scales(g0, g1, mu, sigma, torch.float16)
    return case, c[0], s[0]


def beside_thresholds(codec: str, alpha: float) -> TwinCase:
    """Both fp16 neighbours of each threshold of one chunk, spread over the channels."""
    case, c, s = one_chunk(codec, alpha, torch.full((64,), 960.0))
    on = (c[0] + tables(codec, alpha).thresholds * (s[0] / steps(codec))).clamp(-960, 960).half()
    infinity = torch.tensor(torch.inf, dtype=torch.float16)
    near = torch.cat([on, torch.nextafter(on, infinity), torch.nextafter(on, -infinity)]).clamp(-960, 960)
    case.x[2:] = near.repeat(6)[: 62 * 64].view(62, 1, 64)
    return case


def on_thresholds(codec: str, alpha: float) -> TwinCase:
    """Elements whose place is a threshold to the last bit: rare, so all fp16 numbers are tried in 64 ranges."""
    case, c, s = one_chunk(codec, alpha, torch.linspace(900, 960, 64))
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    values = values[values.abs() < 900]
    places = (values.float()[:, None] - c) * (torch.full_like(s, steps(codec)) / s)
    met = torch.isin(places, tables(codec, alpha).thresholds)
    assert (met & (places < 0)).any() and (met & (places > 0)).any()
    for channel in range(64):
        found = values[met[:, channel]][:62]
        case.x[2 : 2 + len(found), 0, channel] = found
    return case


def beside_width(times: float, head_dim: int) -> TwinCase:
    """Pairs whose widths change at a ratio of `times`, on it and just above."""
    return TwinCase(beside_ratio(times, head_dim), CodecConfig(codec="pair", sink_tokens=0))


def beyond_scale(codec: str, dtype: torch.dtype) -> TwinCase:
    """Elements that a scale, cut to keep values finite, does not cover: a mean far from the middle of T's range."""
    x = torch.full((32, 1, 128), torch.finfo(dtype).max, dtype=dtype)
    x[::8] *= -1
    x[1] /= 2
    x[..., ::2] *= -1
    config = CodecConfig(codec=codec, alpha=0.0, center="mean", page=32, sink_tokens=0)  # type: ignore[arg-type]
    return TwinCase(x, config)


def hidden_loads(report: dict[str, Any]) -> list[float]:
    """For each core the part of its loads' cycles during which its vector pipe was busy as well.

    The first tile's loads, which end before there is anything to compute, are left out.
    """
    parts = []
    for core in report["cores"]:
        loads, busy = ([(s, e) for pipe, _, s, e in core["timeline"] if pipe == wanted] for wanted in ("MTE2", "V"))
        # Constants may be written while they are on their way.
        begin = next(s for pipe, call, s, _ in core["timeline"] if pipe == "V" and call != "Duplicate")
        loads = [(start, end) for start, end in loads if start >= begin]
        both = sum(max(0.0, min(end, until) - max(start, since)) for start, end in loads for since, until in busy)
        parts.append(both / sum(end - start for start, end in loads))
    return parts
