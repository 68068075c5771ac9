"""The definition of the split codecs in plain PyTorch: what every kernel must reproduce bit for bit.

All arithmetic is fp32, one rounding per operation (eager PyTorch never fuses a multiply and an add).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import pairs
from .config import CodecConfig, head_problem
from .layout import PageLayout, page_layout, read_part
from .tables import as_fp32, steps, tables

# Smaller scales are lifted before the division, whose result would overflow.
_LIFT_BELOW = 2.0**-60
_LIFT = 2.0**64


class Scales(NamedTuple):
    """What both sides derive from metadata alone, each fp32 [chunks, C]: centre c and scale s."""

    c: Tensor
    s: Tensor


def largest_output(dtype: torch.dtype) -> float:
    """FMAX: no reconstruction may exceed it. For fp32 a little is left for the rounding of the last two operations."""
    return (
        as_fp32(torch.finfo(torch.float32).max * (1 - 2.0**-20)) if dtype == torch.float32 else torch.finfo(dtype).max
    )


def scales(g0: Tensor, g1: Tensor, mu: Tensor, sigma: Tensor, dtype: torch.dtype) -> Scales:
    """Centre and scale of every chunk and channel.

    Args:
        g0, g1: fp32 [C], the page's minimum and maximum.
        mu, sigma: uint8 or fp32 [chunks, C]. dtype: T, the type of the reconstruction.
    """
    c = _centre(g0, g1, mu)
    half = 0.5 * g1 - 0.5 * g0
    s2 = sigma.float() * (half * as_fp32(1 / 255)) if sigma.dtype == torch.uint8 else sigma * half
    room = 0.5 * largest_output(dtype) - 0.5 * c.abs()
    # An fp32 centre may itself lie above FMAX: the room is then none, not negative.
    return Scales(c, 2 * torch.minimum(s2, room).clamp_min(0.0))


def _centre(g0: Tensor, g1: Tensor, mu: Tensor) -> Tensor:
    half, mid = 0.5 * g1 - 0.5 * g0, 0.5 * g1 + 0.5 * g0
    offset = (mu.float() - 127.5) * (half * as_fp32(1 / 127.5)) if mu.dtype == torch.uint8 else mu * half
    return torch.minimum(torch.maximum(mid + offset, g0), g1)


def _mean(rows: Tensor) -> Tensor:
    """Mean over dim 0 of fp32 [n, C] by a fixed tree of row halves, scaled so that no sum overflows."""
    n = rows.shape[0]
    m = 1 << (n - 1).bit_length()
    total = torch.zeros(m, rows.shape[1])
    total[:n] = rows * 2.0**-10
    while m > 1:
        m //= 2
        total = total[:m] + total[m : 2 * m]
    return (total[0] / n) * 1024.0 + 0.0  # a mean of -0.0 is 0.0


def _over(numerator: Tensor, half: Tensor) -> Tensor:
    return torch.where(half == 0, 0.0, numerator / half)


def _metadata(rows: Tensor, g0: Tensor, g1: Tensor, config: CodecConfig) -> tuple[Tensor, Tensor]:
    """mu and sigma [C] (fp32 for alg1, otherwise uint8) of one chunk, fp32 [n, C]."""
    half, mid = 0.5 * g1 - 0.5 * g0, 0.5 * g1 + 0.5 * g0
    cmin, cmax = rows.amin(0) + 0.0, rows.amax(0) + 0.0  # + 0.0 turns -0.0 into +0.0
    if config.center == "midrange":
        cm = 0.5 * cmax + 0.5 * cmin
    else:
        cm = torch.minimum(torch.maximum(_mean(rows), cmin), cmax)
    t = _over(cm - mid, half)
    fp32 = config.codec == "alg1"
    mu = t.clamp(-1.0, 1.0) if fp32 else (t * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8)
    c = _centre(g0, g1, mu)
    u = _over(torch.maximum(0.5 * cmax - 0.5 * c, 0.5 * c - 0.5 * cmin), half) + 0.0  # never -0.0
    # Rounded up, so that the scale still covers every element of the chunk.
    sigma = u.clamp_max(1.0) if fp32 else (u * 255).ceil().clamp_max(255).to(torch.uint8)
    return mu, sigma


def encode_page(x: Tensor, config: CodecConfig, start: int = 0) -> tuple[Tensor, Tensor]:
    """Codes one page.

    Args:
        x: [tokens, heads, head_dim] in T = bf16 | fp16 | fp32, tokens <= config.page.
        start: absolute position of its first token, a multiple of config.page.

    Returns:
        The anchor and the residual payload, uint8 1-D (docs/frame.md).

    Raises:
        ValueError: x holds NaN or Inf, or a shape, dtype or start that page_layout rejects.
    """
    tokens, channels = x.shape[0], x.shape[1] * x.shape[2]
    _check_head(config, x.shape[2])
    layout = page_layout(config, x.dtype, tokens, channels, start)
    values = x.reshape(tokens, channels)
    wide = values.float()
    g0, g1 = wide.amin(0) + 0.0, wide.amax(0) + 0.0
    if not bool((g0.isfinite() & g1.isfinite()).all()):
        raise ValueError("x: holds NaN or Inf")
    metadata = [_metadata(rows, g0, g1, config) for rows in torch.split(wide, config.chunk)]
    mu, sigma = (torch.stack(part) for part in zip(*metadata, strict=True))
    scale = scales(g0, g1, mu, sigma, x.dtype)
    parts = [g0.to(layout.gamma_dtype), g1.to(layout.gamma_dtype), mu, sigma]
    if config.codec == "pair":
        width = pairs.choose_widths(sigma, 0.5 * g1 - 0.5 * g0, x.shape[2])
        parts.append(_pack(width))
        z = _places(wide, scale, pairs.steps(width, x.shape[2]), config)
        codes = (z.round() + pairs.BIAS).to(torch.uint8)[layout.sink_rows :]
        coarse, fine = pairs.split(codes, width, x.shape[2])
    else:
        table = tables(config.codec, config.alpha or 0.0)
        z = _places(wide, scale, torch.full_like(g0, steps(config.codec)), config)
        codes = table.codes[torch.bucketize(z, table.thresholds, right=True)][layout.sink_rows :]
        coarse, fine = _pack(codes & 15), _pack(codes >> 4)
    return torch.cat([_bytes(part) for part in [*parts, values[: layout.sink_rows], coarse]]), _bytes(fine)


def _places(wide: Tensor, scale: Scales, n: Tensor, config: CodecConfig) -> Tensor:
    """Each element's distance from its chunk's centre in quantiser steps, fp32 [tokens, C], within -n .. n.

    Args:
        n: fp32 [C], steps between a chunk's centre and its edge.
    """
    c, s = (_per_row(part, wide.shape[0], config.chunk) for part in scale)
    k = torch.where(s < _LIFT_BELOW, _LIFT, 1.0)
    # Not `float / tensor`, which PyTorch computes as a reciprocal and a product: two roundings.
    r = n.expand_as(s) / (s * k)
    return torch.minimum(torch.maximum(torch.where(s == 0, 0.0, ((wide - c) * k) * r), -n), n)


def decode_page(
    anchor: Tensor,
    residual: Tensor | None,
    config: CodecConfig,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    start: int = 0,
) -> Tensor:
    """Reconstructs one page, [tokens, heads, head_dim] = `shape` in `dtype`, from the anchor alone or from both.

    Args:
        anchor, residual: uint8 1-D payloads of exactly the layout's size, their metadata checked (layout.bad_metadata).
        start: as in encode_page.

    Raises:
        ValueError: a payload of another size, or a shape that cannot be coded.
    """
    tokens, channels = shape[0], shape[1] * shape[2]
    _check_head(config, shape[2])
    layout = page_layout(config, dtype, tokens, channels, start)
    _check_payloads(anchor, residual, layout)
    g0 = read_part(anchor, 0, channels, layout.gamma_dtype).float()
    g1 = read_part(anchor, layout.gamma_max, channels, layout.gamma_dtype).float()
    count = layout.chunks * channels
    mu = read_part(anchor, layout.mu, count, layout.metadata_dtype).view(layout.chunks, channels)
    sigma = read_part(anchor, layout.sigma, count, layout.metadata_dtype).view(layout.chunks, channels)
    c, s = (_per_row(part, tokens, config.chunk)[layout.sink_rows :] for part in scales(g0, g1, mu, sigma, dtype))
    if config.codec == "pair":
        width = _unpack(read_part(anchor, layout.widths, channels // 4, torch.uint8), channels // 2)
        n = pairs.steps(width, shape[2])
        rows = (tokens - layout.sink_rows, channels // 2)
        fine = None if residual is None else residual.view(rows)
        codes = pairs.join(anchor[layout.codes :].view(rows), fine, width, shape[2])
        level = torch.minimum(torch.maximum(codes.float() - pairs.BIAS, -n), n)
    else:
        n = torch.full_like(g0, steps(config.codec))
        table = tables(config.codec, config.alpha or 0.0)
        codes = _unpack(anchor[layout.codes :], c.numel())
        if residual is None:
            level = table.anchor_levels[codes.long()]
        else:
            level = table.levels[(codes | _unpack(residual, c.numel()) << 4).long()]
    d = s * (1 / n.double()).float()
    sink = read_part(anchor, layout.sink, layout.sink_rows * channels, dtype).view(-1, channels)
    return torch.cat([sink, (c + d * level.view_as(c)).to(dtype)]).view(shape)


def _check_head(config: CodecConfig, head_dim: int) -> None:
    if problem := head_problem(config.codec, head_dim):
        raise ValueError(f"head_dim: {problem}")


def _check_payloads(anchor: Tensor, residual: Tensor | None, layout: PageLayout) -> None:
    if anchor.numel() != layout.anchor_bytes:
        raise ValueError(f"anchor: {anchor.numel()} bytes, expected {layout.anchor_bytes}")
    if residual is not None and residual.numel() != layout.residual_bytes:
        raise ValueError(f"residual: {residual.numel()} bytes, expected {layout.residual_bytes}")


def _per_row(per_chunk: Tensor, tokens: int, chunk: int) -> Tensor:
    return per_chunk.repeat_interleave(chunk, 0)[:tokens]


def _bytes(part: Tensor) -> Tensor:
    # Not contiguous(), which leaves a single element any stride: it could not be viewed as bytes.
    return part.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def _pack(nibbles: Tensor) -> Tensor:
    """Nibbles two a byte, the even element low; an odd count leaves the last high nibble zero."""
    flat = nibbles.reshape(-1)
    flat = torch.cat([flat, flat.new_zeros(flat.numel() % 2)])
    return flat[0::2] | flat[1::2] << 4


def _unpack(packed: Tensor, count: int) -> Tensor:
    return torch.stack([packed & 15, packed >> 4], 1).view(-1)[:count]
