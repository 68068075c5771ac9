"""Codec `pair`: two channels share a byte of each stream, and the one with the larger scale has more of its bits.

A head's channels are four quarters: a channel of the first is paired with one of the second, a channel of the third
with one of the fourth. Where RoPE rotates by halves, that pairs high frequencies, whose keys vary a lot within a page,
with low ones, whose keys hardly do. docs/frame.md has the definition.
"""

from __future__ import annotations

import torch
from torch import Tensor

BIAS = 127  # of a code byte: the index from the chunk's centre, -126 .. 126, plus this
NARROWEST, EVEN, WIDEST = 2, 4, 6  # bits of a channel in the anchor; its partner has the rest of 8
# How many times its partner's scale a channel's must exceed for a fifth and a sixth bit (measured: docs/ablation.md).
FIFTH, SIXTH = 1.5, 6.0


def halves(x: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """The first and the second channel of every pair, [..., C / 2] each, of [..., C]."""
    quarters = x.reshape(*x.shape[:-1], 2 * x.shape[-1] // head_dim, 2, head_dim // 4)
    return quarters.select(-2, 0).flatten(-2), quarters.select(-2, 1).flatten(-2)


def whole(first: Tensor, second: Tensor, head_dim: int) -> Tensor:
    """[..., C] from both halves."""
    shape = (*first.shape[:-1], 4 * first.shape[-1] // head_dim, head_dim // 4)
    return torch.stack([first.reshape(shape), second.reshape(shape)], -2).flatten(-3)


def choose_widths(sigma: Tensor, half: Tensor, head_dim: int) -> Tensor:
    """How many anchor bits the first channel of every pair gets: uint8 [C / 2], 2 .. 6.

    Args:
        sigma: uint8 [chunks, C]. half: fp32 [C], half of the page's range.
    """
    first, second = halves(sigma.int().sum(0).float() * half, head_dim)
    width = EVEN + (first > FIFTH * second).int() + (first > SIXTH * second).int()
    return (width - (second > FIFTH * first).int() - (second > SIXTH * first).int()).to(torch.uint8)


def steps(width: Tensor, head_dim: int) -> Tensor:
    """N of every channel, fp32 [C]: quantiser steps between a chunk's centre and its edge, 128 - 128 / 2^bits."""
    bits = whole(width, 8 - width, head_dim)
    return (128 - (128 >> bits.int())).float()


def split(codes: Tensor, width: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Anchor and residual bytes, uint8 [tokens, C / 2] each, of code bytes [tokens, C].

    Of the first channel's byte the anchor has the upper `width` bits, in its own lower ones; of the second's the upper
    8 - width, in place. The residual has the others.
    """
    first, second = (part.int() for part in halves(codes, head_dim))
    low = (1 << width.int()) - 1
    turned = first << width.int() | first >> (8 - width.int())  # by `width` bits to the left; beyond 8 bits cut below
    return ((turned & low) | (second & ~low)).to(torch.uint8), ((turned & ~low & 255) | (second & low)).to(torch.uint8)


def join(anchor: Tensor, residual: Tensor | None, width: Tensor, head_dim: int) -> Tensor:
    """Code bytes from what `split` gave; without a residual those in the middle of what it may say."""
    w = width.int()
    low = (1 << w) - 1
    coarse = anchor.int()
    fine = (low >> 1) | ((127 >> w) << w) if residual is None else residual.int()
    turned, second = (coarse & low) | (fine & ~low), (fine & low) | (coarse & ~low)
    first = turned >> w | turned << (8 - w)
    return whole((first & 255).to(torch.uint8), second.to(torch.uint8), head_dim)
