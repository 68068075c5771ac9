"""Means over prompts with their 95 % intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Z = 1.96  # standard errors on either side, of a normal distribution
# The same of Student's distribution with 1, 2, ... 30 degrees of freedom: its 97.5 % quantile.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def student(freedom: int) -> float:
    """Standard errors on either side of a mean's 95 % interval, by its degrees of freedom (values less 1), at least 1;
    exact to 0.1 %."""
    return _T[freedom - 1] if freedom <= len(_T) else Z + (Z**3 + Z) / (4 * freedom)


class Mean(NamedTuple):
    """A mean and the half-width of its 95 % interval (Student's); the latter is NaN for a single value."""

    value: float
    half: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        """Raises ValueError (statistics.StatisticsError) if there are none."""
        values = list(values)
        n, half = len(values), math.nan
        if n > 1:
            half = student(n - 1) * statistics.stdev(values) / n**0.5
        return cls(statistics.mean(values), half)

    def text(self, sign: str = "") -> str:
        """To one decimal."""
        return f"{self.value:{sign}.1f} ± {self.half:.1f}"


class Ratio(NamedTuple):
    """A geometric mean of ratios, and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Iterable[float], below: Iterable[float]) -> Ratio:
        """Of above / below, pair by pair, all positive."""
        log = Mean.of(math.log(a / b) for a, b in zip(above, below, strict=True))
        return cls(math.exp(log.value), math.exp(log.value - log.half), math.exp(log.value + log.half))


class Interval(NamedTuple):
    """A value and its 95 % interval; low and high are NaN where there is none."""

    value: float
    low: float
    high: float

    @classmethod
    def of_share(cls, held: Sequence[float]) -> Interval:
        """The share of 1 among 0 and 1, with Wilson's interval, which holds near both too.

        Raises:
            ValueError: empty, or another value.
        """
        if not held or not set(held) <= {0, 1}:
            raise ValueError("held: empty, or not of 0 and 1")
        n, share = len(held), sum(held) / len(held)
        centre = share + Z * Z / (2 * n)
        half = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
        scale = 1 + Z * Z / n
        return cls(share, max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))

    @classmethod
    def of_mean(cls, values: Sequence[float]) -> Interval:
        """The mean of values in 0 .. 1, with its interval (Student's) cut to 0 .. 1.

        Raises:
            ValueError: there are none.
        """
        value, half = Mean.of(values)
        if math.isnan(half):
            return cls(value, half, half)
        return cls(value, max(0.0, value - half), min(1.0, value + half))

    def text(self) -> str:
        """In per cent, to one decimal."""
        interval = "" if math.isnan(self.low) else f" ({100 * self.low:.1f} .. {100 * self.high:.1f})"
        return f"{100 * self.value:.1f}{interval}"
