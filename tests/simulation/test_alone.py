"""One request: the events against the formulas, and the formulas by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_ascend.simulation.alone import Policy, alone
from lynx_ascend.simulation.methods import DraftModel, Method
from lynx_ascend.simulation.prefill import PrefillCosts
from lynx_ascend.simulation.simulate import Arrival, Simulation
from lynx_ascend.speculation.latency import CodecTimes, Lynx, Monolithic
from tests.simulation.settings import BY_NAME, LINK, METHODS, certain, holds, work


@settings(deadline=None)
@given(
    method=st.sampled_from(METHODS),
    tokens=st.integers(20, 5000),
    prefill=st.sampled_from([1e-5, 1e-3, 4e-3]),
    codec=st.sampled_from([0.0, 0.1, 3.0]),
    attention=st.sampled_from([0.0, 1e-6]),
    step=st.sampled_from([0.0, 0.05]),
    chunk=st.sampled_from([64, 700, 8192]),
    layers=st.integers(1, 40),
    kept=st.integers(0, 100),
    cap=st.integers(0, 80),
    handover=st.booleans(),
    arrival=st.floats(0, 10),
    n=st.integers(1, 160),
)
def test_events_give_what_the_formulas_say(
    method: Method,
    tokens: int,
    prefill: float,
    codec: float,
    attention: float,
    step: float,
    chunk: int,
    layers: int,
    kept: int,
    cap: int,
    handover: bool,
    arrival: float,
    n: int,
) -> None:
    costs = work(
        tokens, prefill=prefill, codec=codec, attention=attention, step=step, chunk=chunk, layers=layers
    )  # fmt: skip
    policy = Policy(holds(kept), cap, adaptive=False, handover=handover)
    formula = alone(method, costs, LINK, policy, n)
    run = Simulation(method, lambda _: costs, LINK, certain(kept), policy).run([Arrival(arrival, tokens, n)])
    (request,) = run.requests
    if isinstance(formula.after, Lynx):
        # A residual that comes at the very end of a step may, by a rounding, allow one more or not.
        steps = formula.after.t_residual / formula.after.tpot
        if abs(steps - round(steps)) < 1e-6:
            return
        assert request.drafted == formula.after.drafted
    assert request.time_to(n) == pytest.approx(formula.time_to(n), rel=1e-9)
    if handover:
        seconds = costs.prefill.alone(tokens)
        assert (request.time_to(1), formula.time_to(1)) == pytest.approx((seconds, seconds))


@settings(deadline=None)
@given(st.integers(100, 5000), st.integers(0, 80), st.sampled_from([0.0, 0.001, 0.02]))
def test_the_adaptive_window_plans_alike(tokens: int, kept: int, verify_draft: float) -> None:
    costs = work(tokens, verify_draft=verify_draft)
    policy = Policy(holds(kept))
    formula = alone(BY_NAME["lynx"], costs, LINK, policy)
    run = Simulation(BY_NAME["lynx"], lambda _: costs, LINK, certain(kept), policy).run([Arrival(0, tokens, 64)])
    assert isinstance(formula.after, Lynx)
    assert run.requests[0].drafted == formula.after.drafted <= kept
    assert run.requests[0].time_to(64) == pytest.approx(formula.time_to(64), rel=1e-9)


def test_layer_wise_by_hand() -> None:
    # Four layers of 1 s prefill, each with 3 s of wire: from 1 s to 13 s, 9 s after prefill.
    costs = replace(work(1000), prefill=PrefillCosts(token=4e-3, layers=4), nbytes=12e6, codec=CodecTimes())
    after = alone(BY_NAME["bf16, layer-wise"], costs, LINK, Policy(holds(0))).after
    assert after == Monolithic(9e6, LINK, 0.03)
    lynx = alone(Method("lynx", 8, 8, layerwise=True), costs, LINK, Policy(holds(0), cap=0)).after
    assert isinstance(lynx, Lynx)
    assert (lynx.t_anchor, lynx.t_anchor + lynx.t_residual) == (3, 9)


def test_raw_bf16_needs_no_codec_and_a_slow_codec_delays_the_others() -> None:
    slow = work(100, codec=9.0)
    policy = Policy(holds(0))
    assert alone(BY_NAME["bf16"], slow, LINK, policy).time_to(1) == pytest.approx(0.1 + 0.1 + 0.03)
    assert alone(BY_NAME["int8"], slow, LINK, policy).time_to(1) == pytest.approx(0.1 + 9 + 0.03)


def test_a_draft_model_gives_its_mean_rate() -> None:
    drafts = DraftModel(length=3, acceptance=0.5, step=0.2)
    # A pass gives 1, 2, 3 or 4 tokens with 1/2, 1/4, 1/8 and 1/8: by hand for two and three, 15/8 in the long run.
    assert [drafts.rounds(n) for n in range(4)] == [0, 1, 1.5, 2]
    assert drafts.rounds(1000) - drafts.rounds(985) == pytest.approx(8)
    costs = work(1000)
    method = Method("int8, draft model", 8, draft_model=drafts)
    after = alone(method, costs, LINK, Policy(holds(0))).after
    assert after.tpot == pytest.approx((0.03 + 3 * (0.001 + 0.2 * 0.03)) * drafts.rounds(64) / 64)
    runs = [
        Simulation(method, lambda _: costs, LINK, certain(0), Policy(holds(0)), seed=seed)
        .run([Arrival(0, 1000, 8)])
        .requests[0]
        .time_to(8)
        for seed in range(400)
    ]
    # With eight tokens a run's time has a standard deviation of 3 % here, the mean of 400 one of 0.15 %.
    assert sum(runs) / 400 == pytest.approx(alone(method, costs, LINK, Policy(holds(0)), 8).time_to(8), rel=0.006)


def test_the_first_draft_is_no_token() -> None:
    costs = work(1000)
    request = alone(BY_NAME["lynx"], costs, LINK, Policy(holds(10)))
    assert request.first_draft == pytest.approx(1.0 + 1e6 * 5 / 16 / 1e6 + 0.03)
    assert request.first_draft < request.time_to(1)
    with pytest.raises(ValueError, match="drafts nothing"):
        _ = alone(BY_NAME["int8"], costs, LINK, Policy(holds(0))).first_draft
