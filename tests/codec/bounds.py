"""The error bound of docs/frame.md, from the metadata in an anchor payload."""

from __future__ import annotations

import math

import torch

from lynx_ascend.codec import pairs, reference
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import page_layout, read_part

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
HALF_SUBNORMAL = {torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25, torch.float32: 0.0}


def error_bound(
    anchor: torch.Tensor, config: CodecConfig, shape: tuple[int, int, int], dtype: torch.dtype, *, both: bool
) -> torch.Tensor:
    """fp64 [tokens, C]: how far each element that is not a sink row may be from its reconstruction."""
    tokens, channels = shape[0], shape[1] * shape[2]
    layout = page_layout(config, dtype, tokens, channels)
    g0 = read_part(anchor, 0, channels, layout.gamma_dtype).float()
    g1 = read_part(anchor, layout.gamma_max, channels, layout.gamma_dtype).float()
    mu, sigma = (
        read_part(anchor, at, layout.chunks * channels, layout.metadata_dtype).view(-1, channels)
        for at in (layout.mu, layout.sigma)
    )
    c, s = (part.double() for part in reference.scales(g0, g1, mu, sigma, dtype))
    top = 1.0 if config.codec == "alg1" else 255.0
    s0 = sigma.double() / top * (g1.double() - g0.double())
    a = float(config.alpha)
    if config.codec == "pair":
        nibbles = read_part(anchor, layout.widths, channels // 4, torch.uint8)
        first = torch.stack([nibbles & 15, nibbles >> 4], 1).flatten().double()
        bits = pairs.whole(first, 8 - first, shape[2])
        delta = (0.5 + (0.0 if both else 2.0 ** (7 - bits))) / (128 - 2.0 ** (7 - bits))
    else:
        steps, width = (120 if config.codec == "grid" else 112), (0.5 if both else 8.5)
        delta = -(1 + a) * math.expm1(-width / steps * math.log1p(a)) / a if a else width / steps
    coding = torch.maximum(s0 - s, s * delta)
    rounding = 2.0**-20 * (c.abs() + s0) + ROUNDING[dtype] * (c.abs() + s)
    tiny = 2.0**-138 + HALF_SUBNORMAL[dtype] + 2.0**-148 * (g1.double() - g0.double())
    return (coding + rounding + tiny).repeat_interleave(config.chunk, 0)[:tokens]
