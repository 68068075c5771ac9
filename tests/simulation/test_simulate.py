"""Many requests: what is conserved, whatever the load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lynx_ascend.simulation.alone import Policy
from lynx_ascend.simulation.link import Flow, Link, Served
from lynx_ascend.simulation.load import read_trace
from lynx_ascend.simulation.methods import Method
from lynx_ascend.simulation.prefill import releases, schedule
from lynx_ascend.simulation.simulate import Arrival, Outcome, Simulation, poisson
from tests.simulation.settings import BY_NAME, LINK, METHODS, certain, holds, work

arrivals = st.lists(
    st.tuples(st.floats(0, 3), st.sampled_from([50, 400, 2000]), st.integers(1, 100)), min_size=1, max_size=12
).map(lambda found: [Arrival(*one) for one in sorted(found)])


def simulate(
    method: Method, asked: list[Arrival], kept: int = 20, slots: int = 4, seed: int = 0, **policy: bool
) -> Outcome:
    simulation = Simulation(
        method,
        lambda tokens: work(tokens, codec=0.01, step=0.01, chunk=700),
        LINK,
        certain(kept),
        Policy(holds(kept), **policy),
        slots=slots,
        seed=seed,
        record=True,
    )
    return simulation.run(asked)


@settings(max_examples=150, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    asked=arrivals,
    kept=st.integers(0, 70),
    slots=st.integers(1, 6),
    adaptive=st.booleans(),
    handover=st.booleans(),
)
def test_nothing_is_lost(
    method: Method, asked: list[Arrival], kept: int, slots: int, adaptive: bool, handover: bool
) -> None:
    run = simulate(method, asked, kept, slots, adaptive=adaptive, handover=handover)
    assert [(r.arrival, r.work.tokens, r.output) for r in run.requests] == [(a.at, a.tokens, a.output) for a in asked]
    for request in run.requests:
        assert request.done and request.tokens_at[-1][1] == request.output
        times, counts = zip(*request.tokens_at, strict=True)
        assert list(times) == sorted(times) and list(counts) == sorted(set(counts))
        # Bytes: all of each stream, as the method says.
        assert sum(flow.sent for flow in request.flows) == pytest.approx(sum(method.nbytes(request.work.nbytes)))
        # No token but a handed-over one before all streams are there.
        assert request.complete_at is not None
        assert request.tokens_at[handover][0] > request.complete_at if len(times) > handover else handover
        assert request.drafted <= max(0, min(64, request.output - handover - 1))
        if not method.split:
            assert request.drafted == 0
    # The link: what was served in each interval is its bandwidth, and adds up to all bytes.
    served = sum(s.each * len(s.flows) for s in run.link.served)
    assert served == pytest.approx(sum(flow.total for r in run.requests for flow in r.flows))
    for s in run.link.served:
        assert s.each * len(s.flows) == pytest.approx((s.end - s.start) * LINK / 8, abs=1e-3)
    # D: steps do not overlap, and hold no more rows than there are slots.
    for before, after in zip(run.steps, run.steps[1:], strict=False):
        assert after.start >= before.end
    for step in run.steps:
        assert 1 <= step.drafting + step.verifying + step.decoding <= slots
    assert sum(step.drafting for step in run.steps) == sum(r.drafted for r in run.requests)
    verified = sum(r.complete_at is not None and not (handover and r.output == 1) for r in run.requests)
    assert sum(step.verifying for step in run.steps) == (verified if method.split else 0)


@settings(max_examples=60, deadline=None)
@given(asked=arrivals, layerwise=st.booleans())
@example([Arrival(0.0, 2000, 1)] * 4 + [Arrival(1.0, 50, 1), Arrival(1.0, 400, 1)], True)
def test_no_residual_moves_while_an_anchor_waits(asked: list[Arrival], layerwise: bool) -> None:
    run = simulate(BY_NAME["lynx, layer-wise" if layerwise else "lynx"], asked)
    anchors = [request.flows[0] for request in run.requests]
    released: dict[Flow, float] = dict.fromkeys(anchors, 0.0)
    expected = iter(sorted(_releases(run, layerwise)))
    coming = next(expected, None)
    sent: dict[Flow, float] = dict.fromkeys(anchors, 0.0)
    seen = 0
    for served in run.link.served:
        if served.end - served.start < 1e-9:  # between two times that differ by their rounding
            continue
        while coming is not None and coming[0] <= served.start + 1e-12:
            released[anchors[coming[1]]] += coming[2]
            coming = next(expected, None)
        if any(flow.priority[0] == 1 for flow in served.flows):
            seen += 1
            assert all(flow.priority[0] == 1 for flow in served.flows)
            assert all(released[flow] - sent[flow] < 1e-6 * flow.total for flow in anchors)
        else:
            for flow in served.flows:
                sent[flow] += served.each
    assert seen


def _releases(run: Outcome, layerwise: bool) -> list[tuple[float, int, float]]:
    """When P had how much of whose Anchor, as test_prefill.py has it."""
    costs = run.requests[0].work.prefill
    planned = schedule([(request.arrival, request.work.tokens) for request in run.requests], costs)
    return [
        (at, request.number, request.flows[0].total * share)
        for request, parts in zip(run.requests, planned, strict=True)
        for at, share in (releases(parts, costs.layers) if layerwise else [(parts[-1].end, 1.0)])
    ]


def test_two_anchors_share_and_a_residual_waits() -> None:
    link = Link(8.0, record=True)  # a byte a second
    first, second, residual = Flow((0, 0), 4), Flow((0, 0), 2), Flow((1, 0), 3)
    for flow in (first, residual):
        link.release(flow, flow.total)
    link.advance(2)
    link.release(second, 2)
    assert link.next_event() == 6  # both have 2 left, and half the link
    link.advance(4)
    assert (first.sent, second.sent, residual.sent) == (3, 1, 0)
    link.advance(6)
    assert (first.done_at, second.done_at, residual.sent) == (6, 6, 0)
    link.advance(link.next_event())
    assert (link.now, residual.done_at, link.next_event()) == (9, 9, float("inf"))
    assert link.served[-1] == Served(6, 9, (residual,), 3)


def test_a_batch_by_hand() -> None:
    # Two prompts arrive together, without prefill or codec; 0.05 s of int8 each share the link: both at 0.1 s.
    policy = Policy(holds(0))
    simulation = Simulation(BY_NAME["int8"], lambda _: work(100, prefill=0.0), LINK, certain(0), policy)
    run = simulation.run([Arrival(0, 100, 2)] * 2)
    # A step of two rows takes 0.03 + 0.002 s.
    assert [r.time_to(1) for r in run.requests] == pytest.approx([0.132, 0.132])
    assert [r.time_to(2) for r in run.requests] == pytest.approx([0.164, 0.164])


def test_a_parked_request_costs_no_row() -> None:
    # The cap is reached long before the Residual: nothing is computed in between.
    run = simulate(BY_NAME["lynx"], [Arrival(0, 2000, 10)], adaptive=False)
    assert run.requests[0].drafted == 9
    assert [(s.drafting, s.verifying, s.decoding) for s in run.steps] == [(1, 0, 0)] * 9 + [(0, 1, 0)]
    assert run.steps[9].start - run.steps[8].end > 0.1


def test_in_order_of_requests_or_all_anchors_first() -> None:
    # Two prompts without prefill, at once; 0.3125 s of Anchor and 0.25 s of Residual each.
    def run(in_order: bool) -> Outcome:
        simulation = Simulation(
            BY_NAME["lynx"], lambda _: work(1000, prefill=0.0), LINK, certain(0), Policy(holds(0)), in_order=in_order
        )
        return simulation.run([Arrival(0, 1000, 2)] * 2)

    complete = [[r.complete_at for r in run(in_order).requests] for in_order in (False, True)]
    assert complete[0] == pytest.approx([0.875, 1.125])
    assert complete[1] == pytest.approx([0.5625, 1.125])


def test_the_seed_decides() -> None:
    asked = poisson(2.0, 30, [400, 2000], 32, seed=3)
    assert asked == poisson(2.0, 30, [400, 2000], 32, seed=3) != poisson(2.0, 30, [400, 2000], 32, seed=4)
    assert {a.tokens for a in asked} == {400, 2000}
    times = [[r.time_to(32) for r in simulate(BY_NAME["lynx"], asked, seed=seed).requests] for seed in (0, 0)]
    assert times[0] == times[1]


def test_methods_meet_the_same_luck() -> None:
    asked = poisson(2.0, 30, [400], 32, seed=3)
    runs = [simulate(BY_NAME[name], asked, seed=5) for name in ("int8", "lynx")]
    assert [r.holds for r in runs[0].requests] == [r.holds for r in runs[1].requests]


def test_bad_input_is_refused(tmp_path: Path) -> None:
    for rate, requests, tokens in ((0.0, 1, [1]), (1.0, 0, [1]), (1.0, 1, [0])):
        with pytest.raises(ValueError, match="not positive"):
            poisson(rate, requests, tokens, 1, 0)
    with pytest.raises(ValueError, match="slots: 0"):
        simulate(BY_NAME["lynx"], [], slots=0)
    for wrong in ([Arrival(1, 1, 1), Arrival(0, 1, 1)], [Arrival(0, 0, 1)], [Arrival(0, 1, 0)]):
        with pytest.raises(ValueError, match="out of order, or without tokens"):
            simulate(BY_NAME["lynx"], wrong)
    path = tmp_path / "trace.jsonl"
    lines = [{"at": 2, "tokens": 5, "output": 3}, {"at": 1, "tokens": 4, "output": 2}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_trace(path) == [Arrival(1.0, 4, 2), Arrival(2.0, 5, 3)]
    path.write_text('{"at": 0}\n')
    with pytest.raises(ValueError, match="line 1: KeyError"):
        read_trace(path)
