"""What a codec is told: the streams it writes and the parameters that both sides must share."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

MAX_PAIRED_HEAD = 2048  # head_dim of codec "pair": what its kernels take at a time


def head_problem(codec: str, head_dim: int) -> str | None:
    """Why a split codec cannot code heads of `head_dim` channels, to go behind "head_dim: "; None if it can."""
    if codec == "pair" and (head_dim % 4 or head_dim > MAX_PAIRED_HEAD):
        return f"{head_dim} is not a multiple of 4 up to {MAX_PAIRED_HEAD}, which codec 'pair' needs"
    return None


class Stream(IntEnum):
    """The streams of one transfer, in the order in which they are wanted. Values are those of the frame header."""

    ANCHOR = 0  # all that decoding can start on; a monolithic method sends everything here
    RESIDUAL = 1
    EXACT = 2


@dataclass(frozen=True)
class CodecConfig:
    """Parameters of the split codecs `grid`, `alg1` and `pair` (docs/frame.md defines them).

    Args:
        codec: "grid" (the default), "alg1" (the paper's Algorithm 1, made to fit 4 bits), or "pair" (the linear grid,
            with two channels sharing a byte of each stream; head_dim must be a multiple of 4).
        alpha: the compander's a >= 0; 0 is linear, as pair always is. None: 100 for alg1, otherwise 0.
        center: what a chunk is centred on, "mean" or "midrange". None: mean for alg1, otherwise midrange.
        chunk: tokens that share mu and sigma; page: tokens that share gamma. page is a multiple of chunk.
        sink_tokens: the first tokens of a sequence (absolute positions) that travel raw and have no codes.
        exact: also write the third stream, which restores the input bit for bit.

    Raises:
        ValueError: a value out of range or of another type, naming the field.
    """

    codec: Literal["grid", "alg1", "pair"] = "grid"
    alpha: float | None = None
    center: Literal["mean", "midrange"] | None = None
    chunk: int = 32
    page: int = 256
    sink_tokens: int = 4
    exact: bool = False

    def __post_init__(self) -> None:
        if self.codec not in ("grid", "alg1", "pair"):
            raise ValueError(f"codec: {self.codec!r} is none of 'grid', 'alg1', 'pair'")
        if self.alpha is None:
            object.__setattr__(self, "alpha", 100.0 if self.codec == "alg1" else 0.0)
        if self.center is None:
            object.__setattr__(self, "center", "mean" if self.codec == "alg1" else "midrange")
        assert self.alpha is not None
        self._check_types()
        if not 0.0 <= self.alpha <= 1e6:  # nor is NaN
            raise ValueError(f"alpha: {self.alpha!r} is outside 0 .. 1e6")
        if self.codec == "pair" and self.alpha != 0:
            raise ValueError(f"alpha: {self.alpha!r} is not 0: codec 'pair' is linear")
        # The frame carries alpha as fp32: rounding it here lets both sides hold the same config.
        object.__setattr__(self, "alpha", struct.unpack("<f", struct.pack("<f", self.alpha))[0])
        if self.center not in ("mean", "midrange"):
            raise ValueError(f"center: {self.center!r} is neither 'mean' nor 'midrange'")
        if not 1 <= self.chunk <= 1024:
            raise ValueError(f"chunk: {self.chunk} is outside 1 .. 1024")
        if not self.chunk <= self.page <= 32768 or self.page % self.chunk:
            raise ValueError(f"page: {self.page} is not a multiple of chunk ({self.chunk}) up to 32768")
        if not 0 <= self.sink_tokens <= self.page:
            raise ValueError(f"sink_tokens: {self.sink_tokens} is outside 0 .. page ({self.page})")

    def _check_types(self) -> None:
        # Exact types: to isinstance a bool is an int.
        for name in ("chunk", "page", "sink_tokens"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not an int")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float):
            raise ValueError(f"alpha: {self.alpha!r} is not a number")
        if type(self.exact) is not bool:
            raise ValueError(f"exact: {self.exact!r} is not a bool")
