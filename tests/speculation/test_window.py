"""The window: its hard limits, the marginal rule on small cases, and that no other number of drafts is better."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.speculation.steps import StepCosts
from lynx_ascend.speculation.window import MAX_DRAFTS, FixedWindow, worth_drafting


def test_the_fixed_window_leaves_a_token_to_the_verify_pass() -> None:
    window = FixedWindow(64)
    assert [window.draft_cap(n) for n in (1, 2, 64, 65, 1000)] == [0, 1, 63, 64, 64]
    assert [window.draft_cap(1000, budget) for budget in (1, 2, 64, 65, 66)] == [0, 1, 63, 64, 64]
    assert FixedWindow(1000).draft_cap(1000) == MAX_DRAFTS
    with pytest.raises(ValueError, match="remaining"):
        window.draft_cap(0)
    with pytest.raises(ValueError, match="budget"):
        window.draft_cap(9, 0)
    with pytest.raises(ValueError, match="cap"):
        FixedWindow(-1)


HALVES = (0.5, 0.25, 0.125, 0.0625)


@pytest.mark.parametrize(
    ("arguments", "total"),
    [
        ({"t_residual": math.inf}, 4),  # waiting is free
        ({"t_residual": math.inf, "limit": 3}, 3),
        ({"t_residual": 2.0}, 2),  # the residual comes at the end of a step
        ({"t_residual": 1.875}, 2),  # the second step overruns by 0.125, and is worth 0.25
        ({"t_residual": 1.75}, 1),  # by 0.25: it is not worth more
        ({"t_residual": 0.5}, 0),
        ({"t_residual": 0.0}, 0),
        ({"t_residual": 0.875, "drafted": 1}, 2),  # one more, at 0.25
        ({"t_residual": 0.5, "drafted": 1}, 1),
        ({"t_residual": 0.5, "others": 1}, 1),  # the batch's step runs in any case
        ({"t_residual": 1.0, "others": 1}, 1),  # but the next one is the verify pass
        ({"t_residual": math.inf, "drafted": 4}, 4),
        ({"t_residual": math.inf, "drafted": 3, "limit": 2}, 3),  # the limit has shrunk: no more
    ],
)
def test_small_cases(arguments: dict[str, float], total: int) -> None:
    assert worth_drafting(HALVES, StepCosts(1.0, 1.0), **{"limit": 9, **arguments}) == total


def test_costs_end_the_draft_where_they_pass_its_value() -> None:
    def total(costs: StepCosts, others: int = 0) -> int:
        return worth_drafting(HALVES, costs, t_residual=math.inf, limit=9, others=others)

    assert total(StepCosts(1.0, 1.0, verify_draft=0.2)) == 2
    assert total(StepCosts(1.0, 1.0, verify_draft=0.2), others=1) == 1  # the other request waits for the pass too
    # A row costs the others 0.5 each: 0.25 * (1 + 0.5) < 0.5; where it is accepted it saves them a step with that row.
    assert total(StepCosts(1.0, 1.0, row=0.5), others=1) == 1
    assert total(StepCosts(1.0, 1.0, row=0.5)) == 4  # alone, a row costs nobody anything
    assert total(StepCosts(1.0, 1.0, verify_draft=0.5)) == 0


def test_bad_arguments_are_refused() -> None:
    for name in ("limit", "drafted", "others"):
        with pytest.raises(ValueError, match=name):
            worth_drafting(HALVES, StepCosts(1.0, 1.0), **{"t_residual": 1.0, "limit": 1, name: -1})


def _objective(
    survival: list[float], costs: StepCosts, t_residual: float, drafted: int, others: int, total: int
) -> float:
    """Request-seconds that `total` drafts win over `drafted`, added up as a whole rather than draft by draft."""
    more = total - drafted
    saved = sum(survival[drafted:total]) * (costs.tpot + others * costs.row)
    steps = more * others * costs.row
    verification = more * costs.verify_draft * (1 + others)
    waiting = max(0.0, more * costs.tpot - t_residual) if others == 0 else 0.0
    return saved - steps - verification - waiting


@given(st.data())
def test_no_other_number_of_drafts_wins_more(data: st.DataObject) -> None:
    # Eighths and whole steps: sums are exact.
    part = st.integers(0, 8).map(lambda i: i / 8)
    survival = sorted(data.draw(st.lists(part, min_size=0, max_size=20)), reverse=True)
    costs = StepCosts(1.0, 1.0, verify_draft=data.draw(part) / 4, row=data.draw(part))
    t_residual = data.draw(st.integers(0, 200)) / 8
    drafted, others, limit = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 3)), data.draw(st.integers(0, 25))
    total = worth_drafting(survival, costs, t_residual=t_residual, limit=limit, drafted=drafted, others=others)
    assert drafted <= total <= max(drafted, min(limit, len(survival)))
    assert (total - drafted - 1) * costs.tpot < t_residual or total == drafted
    won = [
        _objective(survival, costs, t_residual, drafted, others, t)
        for t in range(drafted, max(drafted, min(limit, len(survival), drafted + math.ceil(t_residual))) + 1)
    ]
    assert won[total - drafted] == max(won)
