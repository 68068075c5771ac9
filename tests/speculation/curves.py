"""Acceptance curves that the policies are tested on, and drafts drawn from them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lynx_ascend.simulation.acceptance import geometric, published


def mixed() -> tuple[float, ...]:
    """Heavy-tailed, as on real texts: half of the prompts hold long, half not."""
    return tuple((a + b) / 2 for a, b in zip(geometric(0.99), geometric(0.8), strict=True))


CURVES = {"published": published(), "mixed": mixed(), "poor": geometric(0.5), "perfect": geometric(1.0)}


def accepted(survival: Sequence[float], rng: random.Random) -> int:
    """How many drafts hold in one request, by inversion."""
    u = rng.random()
    return sum(u < s for s in survival)
