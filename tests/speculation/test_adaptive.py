"""The adaptive window against fixed ones, over links and contexts, by the latency model: what it can lose."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.speculation.break_even import expected
from lynx_ascend.speculation.latency import Lynx, kv_bytes
from lynx_ascend.speculation.steps import StepCosts
from lynx_ascend.speculation.survival import AcceptanceCurve
from lynx_ascend.speculation.window import FixedWindow, worth_drafting
from tests.speculation.curves import CURVES, accepted

TOKEN = kv_bytes(tokens=1, kv_heads=8, head_dim=128, layers=32)  # LLaMA 3.1 8B
FIXED = (16, 32, 64, 128)
COSTS = {
    "free verification": StepCosts(tpot=0.030, verify=0.030),
    "as on this CPU": StepCosts(tpot=0.027, verify=0.035, verify_draft=0.0021),  # docs/measurements.md
    "dear verification": StepCosts(tpot=0.030, verify=0.030, verify_draft=0.015),
}


def requests(costs: StepCosts) -> Iterator[Lynx]:
    for context in (4, 8, 16, 32, 64, 128):
        for gbit in (10, 25, 40, 50, 75, 100):
            nbytes = context * 1024 * TOKEN
            yield Lynx(nbytes * 4.65 / 16, nbytes * 4.01 / 16, gbit * 1e9, costs.tpot, costs.verify, accepted=0)


def plan(survival: tuple[float, ...], costs: StepCosts, lynx: Lynx, n: int) -> int:
    limit = FixedWindow(1000).draft_cap(n)
    return worth_drafting(survival, costs, t_residual=lynx.t_residual, limit=limit)


@pytest.mark.parametrize("n", [32, 64, 256])
@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("curve", CURVES)
def test_with_the_true_curve_no_fixed_window_is_faster(curve: str, costs: StepCosts, n: int) -> None:
    truth = CURVES[curve]
    won = []
    for lynx in requests(costs):
        adaptive = expected(lynx, costs, truth, cap=plan(truth, costs, lynx, n), n=n).time_to(n)
        fixed = [expected(lynx, costs, truth, cap=FixedWindow(cap).draft_cap(n), n=n).time_to(n) for cap in FIXED]
        assert adaptive <= min(fixed) + 1e-9
        won.append(min(fixed) - adaptive)
    if costs.verify_draft and curve != "perfect":
        assert max(won) > costs.tpot / 10  # on some link or context no fixed one comes near


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("seed", range(5))
def test_with_a_learned_curve_it_loses_little(curve: str, costs: StepCosts, seed: int) -> None:
    rng, truth, n = random.Random(seed), CURVES[curve], 256
    learned = AcceptanceCurve()
    mixture = list(requests(costs))
    for _ in range(150):  # it learns from the drafts that it chooses
        lynx = rng.choice(mixture)
        drafted, holds = plan(learned.survival, costs, lynx, n), accepted(truth, rng)
        learned.observe(min(drafted, holds), rejected=holds < drafted)
    worst = max(
        expected(lynx, costs, truth, cap=plan(learned.survival, costs, lynx, n), n=n).time_to(n)
        - min(expected(lynx, costs, truth, cap=FixedWindow(cap).draft_cap(n), n=n).time_to(n) for cap in FIXED)
        for lynx in mixture
    )
    # Two steps; eight where a draft costs half a step to verify: 20 seeds gave 1.3 and 7.4.
    assert worst <= costs.tpot * (8 if costs.verify_draft > 0.1 * costs.tpot else 2)


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
def test_it_finds_out_when_drafts_hold_again(costs: StepCosts) -> None:
    learned = AcceptanceCurve()

    def request(holds: int) -> int:
        drafted = worth_drafting(learned.survival, costs, t_residual=math.inf, limit=64)
        learned.observe(min(drafted, holds), rejected=holds < drafted)
        return drafted

    bad = [request(0) for _ in range(1000)]
    assert (sum(bad[-100:]) < 500) == (costs.verify_draft > 0)  # a draft that costs nothing need not hold
    assert max(request(64) for _ in range(1000)) == 64


def play(survival: tuple[float, ...], costs: StepCosts, residual: float, error: float, n: int) -> float:
    """The expected time to n from the anchor on, asking before each step with an arrival predicted wrongly."""
    now, drafted = 0.0, 0
    while now < residual:
        predicted = (residual - now) * error
        total = worth_drafting(survival, costs, t_residual=predicted, limit=n - 1, drafted=drafted)
        if total > drafted:
            now, drafted = now + costs.tpot, drafted + 1
        else:
            now = min(residual, now + costs.tpot / 8)  # asks again a little later
    verify = costs.verify + drafted * costs.verify_draft
    return now + verify + (n - 1 - sum(survival[:drafted])) * costs.tpot


@given(
    st.sampled_from(sorted(CURVES)),
    st.sampled_from(sorted(COSTS)),
    st.floats(0.001, 4.0),
    st.sampled_from([0.5, 0.8, 1.25, 2.0, math.inf]),
)
def test_a_wrong_prediction_costs_a_step_at_most(curve: str, name: str, residual: float, error: float) -> None:
    truth, costs, n = CURVES[curve], COSTS[name], 256
    right = play(truth, costs, residual, 1.0, n)
    assert play(truth, costs, residual, error, n) <= right + costs.tpot + 1e-9
