"""Pages that the Ascend C kernels take, and what a launch must show besides right bytes."""

from __future__ import annotations

import random
from typing import Any

import torch

from lynx_ascend.codec.config import CodecConfig
from tests.ascend_kernels.calls import TwinCase
from tests.csrc.pages import KINDS, draw_values

DTYPES = [torch.bfloat16, torch.float16]


def draw_case(draw: random.Random) -> TwinCase:
    """A few pages with an edge somewhere: values, tails, the sink, the first token, alignment of blocks, cores."""
    chunk = draw.choice([16, 32, 64])
    page = draw.choice([size for size in (chunk, 2 * chunk, 3 * chunk, 256) if size % chunk == 0 and size <= 256])
    codec = draw.choice(["grid", "grid", "alg1"])
    config = CodecConfig(
        codec=codec,
        alpha=draw.choice([0.5, 1.0, 15.0, 100.0, 1e6] if codec == "alg1" else [0.0, 0.0, 1e-3, 1.0, 3.0, 1e6]),
        center=draw.choice(["mean", "midrange"]),
        chunk=chunk,
        page=page,
        sink_tokens=min(page, draw.choice([0, 1, 4, 33, 256])),
    )
    heads, head_dim = draw.choice([(1, 64), (2, 64), (4, 80), (2, 96), (1, 192), (1, 576)])
    pages = draw.randint(1, 3)
    tokens = (pages - 1) * page + draw.randint(1, page)
    start = page * draw.randint(0, 2)
    return TwinCase(
        draw_values(draw.choice(KINDS), (tokens, heads, head_dim), draw.choice(DTYPES), draw.getrandbits(32)),
        config,
        start=start,
        block_size=draw.choice([16, 48, 128]),
        first=draw.choice([0, start + draw.randint(0, tokens - 1)]),
        cores=draw.choice([1, 2, 3, 7, 40]),
    )


def hidden_loads(report: dict[str, Any]) -> list[float]:
    """For each core the part of the MTE2 pipe's cycles during which its vector pipe was busy as well."""
    parts = []
    for core in report["cores"]:
        spans: dict[str, list[tuple[float, float]]] = {"MTE2": [], "V": []}
        for pipe, _, start, end in core["timeline"]:
            if pipe in spans:
                spans[pipe].append((start, end))
        both = sum(
            max(0.0, min(load_end, busy_end) - max(load, busy))
            for load, load_end in spans["MTE2"]
            for busy, busy_end in spans["V"]
        )
        parts.append(both / sum(end - start for start, end in spans["MTE2"]))
    return parts
