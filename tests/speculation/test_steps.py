"""Step costs: what is refused, and that running means find and follow the engine's times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.speculation.steps import StepCosts, StepTimes


def test_impossible_costs_are_refused() -> None:
    for name, value in (("tpot", 0.0), ("tpot", math.nan), ("verify", -1.0), ("verify_draft", math.inf), ("row", -0.1)):
        with pytest.raises(ValueError, match=f"{name}: "):
            StepCosts(**{"tpot": 1.0, "verify": 1.0, name: value})
    with pytest.raises(ValueError, match="tpot"):
        StepTimes(-1.0)
    with pytest.raises(ValueError, match="memory"):
        StepTimes(1.0, memory=0)
    times = StepTimes(1.0)
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="decode step"):
            times.on_step(wrong)
    for drafts, seconds in ((-1, 1.0), (1, -1.0), (1, math.nan), (1, math.inf)):
        with pytest.raises(ValueError, match="verify pass"):
            times.on_verify(drafts, seconds)
    assert times.costs == StepCosts(1.0, 1.0)


def test_means() -> None:
    times = StepTimes(1.0, row=0.25, memory=2)
    times.on_step(3.0)
    assert times.costs == StepCosts(2.0, 2.0, 0.0, 0.25)  # the guess weighs as one step
    times.on_verify(4, 4.0)
    assert times.costs == StepCosts(2.0, 2.0, 0.5, 0.25)
    times.on_verify(0, 9.0)  # no drafts, nothing learned
    times.on_verify(2, 1.0)  # a pass shorter than a step: drafts cost nothing, not less
    assert times.costs == StepCosts(2.0, 2.0, 0.25, 0.25)
    times.on_step(4.0)  # weighs a half, as memory is 2
    assert times.costs == StepCosts(3.0, 3.0, 0.25, 0.25)
    times.on_no_drafts()
    assert times.costs == StepCosts(3.0, 3.0, 0.125, 0.25)


@given(st.floats(1e-3, 1.0), st.floats(1e-3, 1.0), st.floats(0.0, 0.1), st.lists(st.integers(1, 127), min_size=400))
def test_costs_are_found_whatever_the_guess(guess: float, tpot: float, draft: float, lengths: list[int]) -> None:
    times = StepTimes(guess, memory=16)
    for drafts in lengths[:400]:
        times.on_step(tpot)
        times.on_verify(drafts, tpot + drafts * draft)
    assert times.costs.tpot == pytest.approx(tpot, rel=1e-6, abs=1e-9)
    assert times.costs.verify_draft == pytest.approx(draft, rel=1e-3, abs=1e-6)
