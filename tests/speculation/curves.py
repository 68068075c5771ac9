"""Acceptance curves that the policies are tested on, and drafts drawn from them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lynx_ascend.speculation.window import MAX_DRAFTS


def published() -> tuple[float, ...]:
    """The paper's: all of the first 10 drafts hold in 88 %, of the first 20 in 70 %; as steep beyond as between."""
    fall = (0.70 / 0.88) ** 0.1
    return tuple(0.88 ** (i / 10) if i <= 10 else 0.88 * fall ** (i - 10) for i in range(1, MAX_DRAFTS + 1))


def geometric(acceptance: float) -> tuple[float, ...]:
    """Each draft holds with the same probability."""
    return tuple(acceptance**i for i in range(1, MAX_DRAFTS + 1))


def mixed() -> tuple[float, ...]:
    """Heavy-tailed, as on real texts: half of the prompts hold long, half not."""
    return tuple((a + b) / 2 for a, b in zip(geometric(0.99), geometric(0.8), strict=True))


CURVES = {"published": published(), "mixed": mixed(), "poor": geometric(0.5), "perfect": geometric(1.0)}


def accepted(survival: Sequence[float], rng: random.Random) -> int:
    """How many drafts hold in one request, by inversion."""
    u = rng.random()
    return sum(u < s for s in survival)
