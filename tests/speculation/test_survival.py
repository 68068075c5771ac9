"""The acceptance curve: exact counts, censoring, forgetting, shrinkage."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.speculation.survival import AcceptanceCurve
from lynx_ascend.speculation.window import MAX_DRAFTS
from tests.speculation.curves import CURVES, accepted, geometric


def test_one_request_by_hand() -> None:
    curve = AcceptanceCurve(prior=0.5, weight=1, memory=math.inf)
    assert curve.survival[:3] == (0.5, 0.25, 0.125)
    curve.observe(1, rejected=True)
    # (1 + 1/2) / 2 accepted at the first position, (0 + 1/2) / 2 at the second, then the prior.
    assert curve.survival[:3] == (0.75, 0.1875, 0.09375)


def test_requests_without_drafts_fade_what_was_seen() -> None:
    curve = AcceptanceCurve(prior=0.5, weight=1, memory=2)
    curve.observe(1, rejected=True)
    curve.observe(0, rejected=False)
    assert curve.survival[:2] == (1 / 1.5, 0.5 / 1.5 / 1.5)  # each count is a half
    for _ in range(60):
        curve.observe(0, rejected=False)
    assert curve.survival == pytest.approx(AcceptanceCurve(prior=0.5).survival)


@pytest.mark.parametrize("name", CURVES)
def test_it_finds_the_curve_from_drafts_of_any_length(name: str) -> None:
    rng, truth = random.Random(1), CURVES[name]
    curve = AcceptanceCurve(memory=math.inf)
    for _ in range(4000):
        drafted, holds = rng.randint(1, MAX_DRAFTS), accepted(truth, rng)
        curve.observe(min(drafted, holds), rejected=holds < drafted)
    assert max(abs(a - b) for a, b in zip(curve.survival, truth, strict=True)) < 0.05


def test_short_drafts_say_nothing_of_positions_beyond() -> None:
    rng, truth = random.Random(2), geometric(0.9)
    curve = AcceptanceCurve(memory=math.inf)
    for _ in range(2000):
        holds = accepted(truth, rng)
        curve.observe(min(8, holds), rejected=holds < 8)
    assert curve.survival[7] == pytest.approx(0.9**8, abs=0.03)
    assert curve.survival[31] == pytest.approx(curve.survival[7] * 0.99**24)  # the prior


def test_it_forgets() -> None:
    curve = AcceptanceCurve(memory=16)
    for _ in range(500):
        curve.observe(64, rejected=False)
    assert curve.survival[19] > 0.95
    for _ in range(64):
        curve.observe(0, rejected=True)
    assert curve.survival[0] < 0.25  # the prior keeps 4 of 20, what was before a 60th
    for _ in range(64):
        curve.observe(8, rejected=False)
    assert curve.survival[7] > 0.75


@given(st.lists(st.tuples(st.integers(0, MAX_DRAFTS - 1), st.booleans()), max_size=40))
def test_it_is_a_survival_curve_whatever_it_sees(requests: list[tuple[int, bool]]) -> None:
    curve = AcceptanceCurve(memory=4)
    for held, rejected in requests:
        curve.observe(held, rejected=rejected)
    assert len(curve.survival) == MAX_DRAFTS
    assert all(1 >= a >= b > 0 for a, b in zip(curve.survival, curve.survival[1:], strict=False))


def test_bad_arguments_are_refused() -> None:
    for name, value in (("prior", 0.0), ("prior", 1.0), ("weight", 0.0), ("memory", 0.5), ("memory", math.nan)):
        with pytest.raises(ValueError, match=name):
            AcceptanceCurve(**{name: value})
    for held, rejected in ((-1, False), (MAX_DRAFTS + 1, False), (MAX_DRAFTS, True)):
        with pytest.raises(ValueError, match="outside"):
            AcceptanceCurve().observe(held, rejected=rejected)
