"""How many tokens a request drafts: at most (FixedWindow), and as many as are worth it (worth_drafting)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lynx_ascend.speculation.steps import StepCosts

MAX_DRAFTS = 127  # with the token that follows them, the 128 of vLLM's rejection sampler (MAX_SPEC_LEN)


@dataclass(frozen=True)
class FixedWindow:
    """The paper's policy: the same cap for every request.

    Raises:
        ValueError: cap is negative.
    """

    cap: int = 64

    def __post_init__(self) -> None:
        if self.cap < 0:
            raise ValueError(f"cap: {self.cap} is negative")

    def draft_cap(self, remaining: int, budget: int | None = None) -> int:
        """The cap of a request that may still generate `remaining` >= 1 tokens.

        One less than that: the verify pass adds a token to the accepted drafts. budget: the most tokens that the engine
        schedules in a step; the pass takes one more than there are drafts.

        Raises:
            ValueError: remaining or budget is less than 1.
        """
        if remaining < 1:
            raise ValueError(f"remaining: {remaining} tokens leave nothing to generate")
        if budget is not None and budget < 1:
            raise ValueError(f"budget: {budget} tokens leave nothing to schedule")
        cap = min(self.cap, MAX_DRAFTS, remaining - 1)
        return cap if budget is None else min(cap, budget - 1)


def worth_drafting(
    survival: Sequence[float],
    costs: StepCosts,
    *,
    t_residual: float,
    limit: int,
    drafted: int = 0,
    others: int = 0,
) -> int:
    """How many tokens a request should have drafted when its Residual arrives; docs/policies.md derives the rule.

    Drafts are added while one more is worth more than it costs. Asked again before each step, with what is known then.

    Args:
        survival: at i, the probability that the first i + 1 drafts are all accepted; not increasing.
        costs: of the engine's steps at its present batch.
        t_residual: seconds from now until the Residual is there; infinite if that is not known.
        limit: the most drafts, as FixedWindow.draft_cap gives it.
        drafted: tokens drafted so far.
        others: other requests in the engine's batch.

    Returns:
        The total, `drafted` and those still to come: more than `drafted` means draft now.

    Raises:
        ValueError: limit, drafted or others is negative.
    """
    if min(limit, drafted, others) < 0:
        raise ValueError(f"limit {limit}, drafted {drafted}, others {others}: one is negative")
    total = drafted
    while total < min(limit, len(survival)):
        begins = (total - drafted) * costs.tpot
        if begins >= t_residual:
            break  # the verify pass takes the place of this step
        # Alone, the verify pass waits for the step. In a batch the step runs in any case.
        overrun = max(0.0, begins + costs.tpot - t_residual) if others == 0 else 0.0
        value = survival[total] * (costs.tpot + others * costs.row)
        cost = others * costs.row + (1 + others) * costs.verify_draft + overrun
        if value <= cost:
            break
        total += 1
    return total
