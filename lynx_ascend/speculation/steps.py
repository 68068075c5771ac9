"""What an engine's steps cost: one more decode step, one more row in it, one more draft in a verify pass."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class StepCosts:
    """Seconds of an engine's steps.

    Args:
        tpot: one decode step, > 0.
        verify: the commit and a verify pass without drafts.
        verify_draft: what each draft adds to the pass.
        row: what one more request adds to a decode step of the batch.

    Raises:
        ValueError: tpot is not positive, another cost is negative, or one is not finite.
    """

    tpot: float
    verify: float
    verify_draft: float = 0.0
    row: float = 0.0

    def __post_init__(self) -> None:
        for name in ("tpot", "verify", "verify_draft", "row"):
            value = getattr(self, name)
            if not (0 <= value < math.inf) or (name == "tpot" and value == 0):
                raise ValueError(f"{name}: {value} seconds is no cost of a step")


class StepTimes:
    """StepCosts as an engine shows them: running means that forget.

    A verify pass is taken as one decode step and a share for each draft, so that its commit is spread over the drafts.

    Args:
        tpot: a first guess, seconds; it weighs as one step. row: as in StepCosts, which is not measured here.
        memory: steps (and verify passes) after which an observation weighs 1/e, >= 1.

    Raises:
        ValueError: what StepCosts refuses, or memory < 1.
    """

    def __init__(self, tpot: float, *, row: float = 0.0, memory: int = 64) -> None:
        if memory < 1:
            raise ValueError(f"memory: {memory} steps is less than 1")
        self._costs = StepCosts(tpot=tpot, verify=tpot, row=row)
        self._memory = memory
        self._steps, self._passes = 1, 0

    @property
    def costs(self) -> StepCosts:
        """The present estimate."""
        return self._costs

    def on_step(self, seconds: float) -> None:
        """A step that decoded only: no prefill, no verify pass.

        Raises:
            ValueError: seconds are not positive or not finite.
        """
        if not 0 < seconds < math.inf:
            raise ValueError(f"{seconds} seconds are no decode step")
        self._steps = min(self._steps + 1, self._memory)
        tpot = self._costs.tpot + (seconds - self._costs.tpot) / self._steps
        self._costs = StepCosts(tpot, tpot, self._costs.verify_draft, self._costs.row)

    def on_verify(self, drafts: int, seconds: float) -> None:
        """A step with one verify pass over `drafts` drafts; one without drafts tells nothing.

        Raises:
            ValueError: drafts or seconds are negative or not finite.
        """
        if drafts < 0 or not 0 <= seconds < math.inf:
            raise ValueError(f"{drafts} drafts in {seconds} seconds are no verify pass")
        if drafts == 0:
            return
        self._passes = min(self._passes + 1, self._memory)
        old = self._costs
        share = max(0.0, seconds - old.tpot) / drafts
        verify_draft = old.verify_draft + (share - old.verify_draft) / self._passes
        self._costs = StepCosts(old.tpot, old.verify, verify_draft, old.row)

    def on_no_drafts(self) -> None:
        """A request that had the time for a draft made none: what drafts cost in a verify pass fades.

        Without drafts there is no pass to measure, and a wrong price would keep them away for ever.
        """
        old = self._costs
        self._costs = StepCosts(old.tpot, old.verify, old.verify_draft * (1 - 1 / self._memory), old.row)
