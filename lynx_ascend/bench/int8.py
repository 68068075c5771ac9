"""A plain INT8 quantiser in eager PyTorch, the yardstick for what a codec without kernels of its own reaches.

Asymmetric, with a scale and a minimum for each channel and 32 tokens: q = round((x - low) / scale), scale =
(high - low) / 255, in fp32. It works in place on its own fp32 copy and writes codes and values where they belong, with
no pass more than needed. It needs no block table and leaves out packing into payloads, both to its advantage.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 32
# Keeps a constant chunk's scale from being zero.
_TINY = torch.finfo(torch.float32).tiny


class Int8(NamedTuple):
    """Quantised values: codes uint8 [chunks, 32, C]; scale, low fp32 [chunks, 1, C]."""

    codes: Tensor
    scale: Tensor
    low: Tensor

    @classmethod
    def empty(cls, tokens: int, channels: int) -> Int8:
        """Room for [tokens, channels], touched; tokens is a multiple of 32."""
        chunks = tokens // CHUNK
        codes = torch.zeros(chunks, CHUNK, channels, dtype=torch.uint8)
        return cls(codes, torch.zeros(chunks, 1, channels), torch.zeros(chunks, 1, channels))

    def split(self, tokens: int) -> list[Int8]:
        """Views of `tokens` tokens each, a multiple of 32; the last may be shorter."""
        return [Int8(*parts) for parts in zip(*(torch.split(part, tokens // CHUNK) for part in self), strict=True)]


def quantise(x: Tensor, into: Int8) -> None:
    """Quantises bf16 [tokens, C], contiguous."""
    wide = x.view(into.codes.shape).float()
    torch.amin(wide, 1, keepdim=True, out=into.low)
    torch.amax(wide, 1, keepdim=True, out=into.scale)
    into.scale.sub_(into.low).div_(255).clamp_min_(_TINY)
    into.codes.copy_(wide.sub_(into.low).div_(into.scale).round_())


def dequantise(quantised: Int8, into: Tensor) -> None:
    """Writes the values to bf16 [tokens, C], contiguous."""
    into.view(quantised.codes.shape).copy_(quantised.codes.float().mul_(quantised.scale).add_(quantised.low))
