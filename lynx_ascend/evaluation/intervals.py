"""Means over prompts with their 95 % intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

Z = 1.96  # standard errors on either side


class Mean(NamedTuple):
    """A mean and the half-width of its 95 % interval; the latter is NaN for a single value."""

    value: float
    half: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        """Raises ValueError (statistics.StatisticsError) if there are none."""
        values = list(values)
        spread = Z * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan
        return cls(statistics.mean(values), spread)

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
