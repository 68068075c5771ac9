"""Payload layout of the split codecs: where each part of a page's two payloads lies, and how many bytes it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from .config import CodecConfig
from .pairs import NARROWEST, WIDEST


@dataclass(frozen=True)
class PageLayout:
    """Byte offsets into the anchor payload of one page, in order; each part ends where the next begins.

    gamma_min [C], gamma_max [C], mu [chunks][C], sigma [chunks][C], widths (codec pair: a nibble for each of C / 2
    pairs), sink rows [sink_rows][C], codes. The residual payload is `codes_bytes` of codes alone. C = heads * head_dim.
    """

    tokens: int
    channels: int
    chunks: int
    sink_rows: int
    dtype: torch.dtype
    gamma_dtype: torch.dtype
    metadata_dtype: torch.dtype
    gamma_max: int
    mu: int
    sigma: int
    widths: int
    sink: int
    codes: int
    codes_bytes: int

    @property
    def anchor_bytes(self) -> int:
        """Size of the anchor payload."""
        return self.codes + self.codes_bytes

    @property
    def residual_bytes(self) -> int:
        """Size of the residual payload."""
        return self.codes_bytes


@lru_cache(maxsize=256)
def page_layout(config: CodecConfig, dtype: torch.dtype, tokens: int, channels: int, start: int = 0) -> PageLayout:
    """The layout of the page that holds `tokens` tokens from absolute position `start`, a multiple of config.page.

    Raises:
        ValueError: tokens, channels or start out of range, or a dtype other than bf16, fp16 and fp32.
    """
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"dtype: {dtype} is none of bfloat16, float16, float32")
    if not 1 <= tokens <= config.page:
        raise ValueError(f"tokens: {tokens} is outside 1 .. page ({config.page})")
    if channels < 1:
        raise ValueError(f"channels: {channels} is not positive")
    if start < 0 or start % config.page:
        raise ValueError(f"start: {start} is not a multiple of page ({config.page})")
    alg1 = config.codec == "alg1"
    gamma_dtype = torch.float32 if alg1 else dtype
    metadata_dtype = torch.float32 if alg1 else torch.uint8
    chunks = -(-tokens // config.chunk)
    sink_rows = min(max(config.sink_tokens - start, 0), tokens)
    gamma_max = channels * gamma_dtype.itemsize
    mu = 2 * gamma_max
    sigma = mu + chunks * channels * metadata_dtype.itemsize
    widths = sigma + chunks * channels * metadata_dtype.itemsize
    sink = widths + (channels // 4 if config.codec == "pair" else 0)
    codes = sink + sink_rows * channels * dtype.itemsize
    codes_bytes = ((tokens - sink_rows) * channels + 1) // 2
    return PageLayout(
        tokens, channels, chunks, sink_rows, dtype, gamma_dtype, metadata_dtype,
        gamma_max, mu, sigma, widths, sink, codes, codes_bytes,
    )  # fmt: skip


def read_part(payload: torch.Tensor, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` values of `dtype` from byte `offset` of a uint8 payload, copied (so that alignment does not matter)."""
    return payload[offset : offset + count * dtype.itemsize].clone().view(dtype)


def bad_metadata(anchor: torch.Tensor, layout: PageLayout) -> str | None:
    """The name of the first metadata field of an anchor payload that no encoder writes, or None if all are sound.

    gamma must be finite in T and ordered; fp32 mu lies in [-1, 1] and fp32 sigma in [0, 1] (any uint8 is in range);
    gamma and sigma are never -0.0; widths are 2 .. 6; sink rows are finite.
    """
    g0 = read_part(anchor, 0, layout.channels, layout.gamma_dtype)
    g1 = read_part(anchor, layout.gamma_max, layout.channels, layout.gamma_dtype)
    largest = torch.finfo(layout.dtype).max  # alg1's fp32 gamma must not exceed T either
    if not bool(((g0.abs() <= largest) & _no_negative_zero(g0)).all()):  # False for NaN as well
        return "gamma_min"
    if not bool(((g1 <= largest) & (g0 <= g1) & _no_negative_zero(g1)).all()):
        return "gamma_max"
    if layout.metadata_dtype == torch.float32:
        count = layout.chunks * layout.channels
        mu = read_part(anchor, layout.mu, count, torch.float32)
        sigma = read_part(anchor, layout.sigma, count, torch.float32)
        if not bool((mu.abs() <= 1).all()):
            return "mu"
        if not bool(((sigma >= 0) & (sigma <= 1) & _no_negative_zero(sigma)).all()):
            return "sigma"
    widths = read_part(anchor, layout.widths, layout.sink - layout.widths, torch.uint8)
    for nibbles in (widths & 15, widths >> 4):
        if not bool(((nibbles >= NARROWEST) & (nibbles <= WIDEST)).all()):
            return "widths"
    if not bool(read_part(anchor, layout.sink, layout.sink_rows * layout.channels, layout.dtype).isfinite().all()):
        return "sink"
    return None


def _no_negative_zero(x: torch.Tensor) -> torch.Tensor:
    # Instruction sets differ in the minimum and maximum of zeros of both signs, so decoding must not meet -0.0 there.
    # By its bits: to a thread that flushes subnormals (torch.set_flush_denormal) each of them equals 0.
    bits = x.view(torch.int32 if x.itemsize == 4 else torch.int16)
    return bits != torch.iinfo(bits.dtype).min
