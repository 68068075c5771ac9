"""What a codec is told: the streams it writes and the parameters that both sides must share."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


class Stream(IntEnum):
    """The streams of one transfer, in the order in which they are wanted. Values are those of the frame header."""

    ANCHOR = 0  # all that decoding can start on; a monolithic method sends everything here
    RESIDUAL = 1
    EXACT = 2


@dataclass(frozen=True)
class CodecConfig:
    """Parameters of the split codecs `grid` and `alg1` (docs/frame.md defines both).

    Args:
        codec: "grid" (the default) or "alg1" (the paper's Algorithm 1, made to fit 4 bits).
        alpha: the compander's a >= 0; 0 is linear. None: 0 for grid, 100 for alg1.
        center: what a chunk is centred on, "mean" or "midrange". None: midrange for grid, mean for alg1.
        chunk: tokens that share mu and sigma; page: tokens that share gamma. page is a multiple of chunk.
        sink_tokens: the first tokens of a sequence (absolute positions) that travel raw and have no codes.
        exact: also write the third stream, which restores the input bit for bit.

    Raises:
        ValueError: a value out of range or of another type, naming the field.
    """

    codec: Literal["grid", "alg1"] = "grid"
    alpha: float | None = None
    center: Literal["mean", "midrange"] | None = None
    chunk: int = 32
    page: int = 256
    sink_tokens: int = 4
    exact: bool = False

    def __post_init__(self) -> None:
        if self.codec not in ("grid", "alg1"):
            raise ValueError(f"codec: {self.codec!r} is neither 'grid' nor 'alg1'")
        if self.alpha is None:
            object.__setattr__(self, "alpha", 0.0 if self.codec == "grid" else 100.0)
        if self.center is None:
            object.__setattr__(self, "center", "midrange" if self.codec == "grid" else "mean")
        assert self.alpha is not None
        self._check_types()
        if not 0.0 <= self.alpha <= 1e6:  # nor is NaN
            raise ValueError(f"alpha: {self.alpha!r} is outside 0 .. 1e6")
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
