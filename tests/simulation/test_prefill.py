"""P's steps: what is computed when, whatever arrives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.simulation.alone import Policy
from lynx_ascend.simulation.prefill import PrefillCosts, finished, releases, schedule
from lynx_ascend.simulation.simulate import Arrival, Simulation
from tests.simulation.settings import BY_NAME, LINK, certain, holds, work


def test_prompts_share_steps_by_hand() -> None:
    costs = PrefillCosts(token=0.01, step=0.5, chunk=100)
    parts = schedule([(0.0, 150), (1.0, 30), (1.2, 40), (9.0, 10)], costs)
    # 100 tokens of the first take 1.5 s; its other 50 leave room for the second's 30 and for 20 of the third's 40.
    found = [[(part.start, part.end, part.share) for part in prompt] for prompt in parts]
    assert found[0] == [pytest.approx((0.0, 1.5, 100 / 150)), pytest.approx((1.5, 3.0, 50 / 150))]
    assert found[1] == [pytest.approx((1.5, 3.0, 1.0))]
    assert found[2] == [pytest.approx((1.5, 3.0, 0.5)), pytest.approx((3.0, 3.7, 0.5))]
    assert found[3] == [pytest.approx((9.0, 9.6, 1.0))]


def test_short_prompts_that_share_a_step_share_its_overhead() -> None:
    asked = [Arrival(0.0, 100, 1)] * 8
    ends = []
    for chunk in (100, 400, 800):
        simulation = Simulation(
            BY_NAME["int8"], lambda tokens, chunk=chunk: work(tokens, per_token=1e-6, step=0.5, chunk=chunk),  # type: ignore[misc]
            LINK, certain(0), Policy(holds(0), handover=True), slots=8,
        )  # fmt: skip
        ends.append([r.time_to(1) for r in simulation.run(asked).requests])
    assert ends[0] == pytest.approx([0.6 * i for i in range(1, 9)])
    assert ends[1] == pytest.approx([0.9] * 4 + [1.8] * 4)
    assert ends[2] == pytest.approx([1.3] * 8)


@given(
    asked=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 300)), min_size=1, max_size=12).map(sorted),
    chunk=st.integers(1, 400),
    attention=st.sampled_from([0.0, 1e-5]),
    step=st.sampled_from([0.0, 0.05]),
)
def test_all_is_computed_once_in_turn(
    asked: list[tuple[float, int]], chunk: int, attention: float, step: float
) -> None:
    costs = PrefillCosts(0.001, attention, step, chunk)
    parts = schedule(asked, costs)
    steps: dict[tuple[float, float], float] = {}
    for (arrival, tokens), prompt in zip(asked, parts, strict=True):
        assert sum(part.share for part in prompt) == pytest.approx(1) and prompt[0].start >= arrival
        for part in prompt:
            key = (part.start, part.end)
            steps[key] = steps.get(key, 0.0) + tokens * part.share
    assert all(tokens <= chunk + 1e-6 for tokens in steps.values())
    times = sorted(steps)
    assert all(before[1] <= after[0] for before, after in pairwise(times))
    ends = [prompt[-1].end for prompt in parts]
    assert ends == sorted(ends)
    # Every token's seconds, and a step's own for each step: nothing is counted twice.
    spent = sum(end - start for start, end in times)
    assert spent == pytest.approx(len(steps) * step + sum(costs.tokens(0, tokens) for _, tokens in asked))
    assert schedule(asked[:1], costs)[0][-1].end - asked[0][0] == pytest.approx(costs.alone(asked[0][1]))


def test_work_waits_for_what_it_works_on() -> None:
    (parts,) = schedule([(1.0, 100)], PrefillCosts(token=0.04, chunk=50, layers=2))
    released = releases(parts, 2)
    assert released == [(2, 0.25), (3, 0.25), (4, 0.25), (5, 0.25)]
    assert finished(released, 0.4) == 5.1  # the last quarter alone is left
    assert finished(released, 12) == 14  # from the first quarter on without a pause
    assert finished(released, 12, free=3) == 15


def test_prompts_of_two_instances_are_refused() -> None:
    simulation = Simulation(
        BY_NAME["int8"], lambda tokens: work(tokens, prefill=tokens / 1e5), LINK, certain(0), Policy(holds(0))
    )
    with pytest.raises(ValueError, match="prefill: the prompts have different costs"):
        simulation.run([Arrival(0, 100, 1), Arrival(0, 200, 1)])
    for wrong in ({"chunk": 0}, {"layers": 0}):
        with pytest.raises(ValueError, match="one is less than 1"):
            PrefillCosts(**wrong)
