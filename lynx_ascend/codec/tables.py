"""Quantiser tables: thresholds, codes and levels of both split codecs, the same bits on every machine."""

from __future__ import annotations

import struct
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import torch

GRID_STEPS = 120  # grid: the index runs 0 .. 2 * 120, 120 is the chunk's centre
ALG1_STEPS = 112  # alg1: magnitudes 0 .. 112; 7 * 16, so that the anchor alone represents the largest exactly

# ln and exp of `decimal` are correctly rounded, so any precision well above binary64's gives the same tables; the
# surplus pays for the cancellation in (1 + a)^y - 1 when a is tiny.
_DIGITS = 100


class Tables(NamedTuple):
    """Lookup tables of one (codec, alpha), in grid units: a chunk's scale s is `steps` units.

    Attributes:
        thresholds: fp32 [n - 1], sorted; the index of z is the number of thresholds <= z.
        codes: uint8 [n]; index -> code byte, (residual nibble << 4) | anchor nibble.
        levels: fp32 [256]; code byte -> level.
        anchor_levels: fp32 [16]; anchor nibble, read as unsigned -> level when the residual is absent.
    """

    thresholds: torch.Tensor
    codes: torch.Tensor
    levels: torch.Tensor
    anchor_levels: torch.Tensor


def steps(codec: str) -> int:
    """N, the number of quantiser steps between a chunk's centre and its edge, of "grid" or "alg1"."""
    return {"grid": GRID_STEPS, "alg1": ALG1_STEPS}[codec]


def as_fp32(value: float) -> float:
    """The fp32 number nearest to `value` (half to even)."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def tables(codec: str, alpha: float) -> Tables:
    """Tables for `codec` ("grid" or "alg1") and the compander parameter `alpha` >= 0, rounded to fp32 as on the wire.

    The tensors are shared between callers: do not write to them.
    """
    return _tables(codec, as_fp32(alpha))


@lru_cache(maxsize=32)
def _tables(codec: str, alpha: float) -> Tables:
    thresholds, codes, index_of_code, level_of_index = {"grid": _grid, "alg1": _alg1}[codec](alpha)
    levels = [level_of_index[index_of_code[code]] for code in range(256)]
    return Tables(
        torch.tensor(thresholds, dtype=torch.float32),
        torch.tensor(codes, dtype=torch.uint8),
        torch.tensor(levels, dtype=torch.float32),
        torch.tensor(levels[:16], dtype=torch.float32),  # a residual nibble of zero is R = 0
    )


def _expand(alpha: float, numerators: list[float], steps: int) -> list[float]:
    """The inverse compander in grid units: steps * ((1 + a)^y - 1) / a at y = numerator / steps, 0 <= y <= 1.

    The result is rounded to binary64 here and to fp32 by the caller's tensor, both half to even.
    """
    if alpha == 0.0:
        return list(numerators)
    with localcontext() as context:
        context.prec = _DIGITS
        a = Decimal(alpha)
        log = (1 + a).ln()
        return [float(steps * ((Decimal(n) / steps * log).exp() - 1) / a) for n in numerators]


def _split(index: int) -> tuple[int, int]:
    """The round-half-down split of an index in 16ths: A, R with index = 16 * A - R and -8 <= R <= 7."""
    coarse = (index + 7) >> 4
    return coarse, 16 * coarse - index


def _signed(nibble: int) -> int:
    return nibble - 16 if nibble >= 8 else nibble


def _grid(alpha: float) -> tuple[list[float], list[int], list[int], list[float]]:
    n = GRID_STEPS
    magnitude = _expand(alpha, [float(m) for m in range(n + 1)], n)
    edge = _expand(alpha, [m + 0.5 for m in range(n)], n)
    thresholds = [-t for t in reversed(edge)] + edge
    if alpha == 0.0:  # a tie goes to the even neighbour: then the index is clamp(rne(z), -120, 120) + 120
        thresholds = [t if round(t + 0.5) % 2 == 0 else _next_fp32(t) for t in thresholds]
    splits = [_split(index) for index in range(2 * n + 1)]
    codes = [(r & 15) << 4 | (a - 8) & 15 for a, r in splits]
    index_of_code = [min(max(16 * (_signed(code & 15) + 8) - _signed(code >> 4), 0), 2 * n) for code in range(256)]
    return thresholds, codes, index_of_code, [-m for m in reversed(magnitude[1:])] + magnitude


def _alg1(alpha: float) -> tuple[list[float], list[int], list[int], list[float]]:
    n = ALG1_STEPS
    magnitude = _expand(alpha, [float(m) for m in range(n + 1)], n)
    edge = _expand(alpha, [m + 0.5 for m in range(n)], n)
    thresholds = [-t for t in reversed(edge)] + [0.0] + edge
    splits = [_split(m) for m in range(n + 1)]
    negative = [(r & 15) << 4 | (-v - 1) & 15 for v, r in splits]
    positive = [(r & 15) << 4 | v for v, r in splits]

    def index(code: int) -> int:
        coarse, r = _signed(code & 15), _signed(code >> 4)
        m = min(max(16 * (coarse if coarse >= 0 else -coarse - 1) - r, 0), n)
        return n + 1 + m if coarse >= 0 else n - m

    levels = [-m for m in reversed(magnitude[1:])] + [0.0, 0.0] + magnitude[1:]
    return thresholds, negative[::-1] + positive, [index(code) for code in range(256)], levels


def _next_fp32(value: float) -> float:
    return float(torch.nextafter(torch.tensor(value, dtype=torch.float32), torch.tensor(float("inf"))))
