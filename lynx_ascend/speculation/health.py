"""Whether drafting still pays: a rolling mean of what requests won, a fallback to waiting, and probes for a return."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """A fallback (drafting is False) or a return, and the results that it rests on: Health's properties of these names.

    sample: how many they are.
    """

    drafting: bool
    sample: int
    steps_won: float
    acceptance: float | None


class Health:
    """Decides which requests draft, from what drafting won for the last ones.

    While it pays, all do. When the last `sample` requests lost on average, none does: they wait for both streams and
    decode on the same 8-bit cache. `interval` seconds later, and every `interval` from then on, the next `sample`
    requests draft as a probe; when the last `sample` results are above `margin` again, all do. A fallback is therefore
    followed by the next one after `interval` at the earliest, and probes never cease. Times are the caller's clock in
    seconds and do not decrease.

    Args:
        sample: requests that a decision rests on, >= 1.
        interval: seconds from a fallback to its first probe, and between probes, > 0.
        margin: decode steps that drafting must win on average for a return, >= 0; 0 is break-even.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(self, *, sample: int = 16, interval: float = 30.0, margin: float = 1.0) -> None:
        if sample < 1:
            raise ValueError(f"sample: {sample} requests is less than 1")
        if not interval > 0:
            raise ValueError(f"interval: {interval} seconds is not positive")
        if not margin >= 0:
            raise ValueError(f"margin: {margin} steps is negative")
        self._sample, self._interval, self._margin = sample, interval, margin
        self._last: deque[tuple[int, int, float]] = deque(maxlen=sample)  # drafted, accepted, steps won
        self._drafting = True
        self._may_return = self._next_probe = -math.inf
        self._probes = 0  # that may still be admitted

    @property
    def drafting(self) -> bool:
        """True while drafting pays; False while only probes draft."""
        return self._drafting

    @property
    def acceptance(self) -> float | None:
        """Accepted of drafted tokens, over the last requests; None if there are no drafts."""
        drafted = sum(drafts for drafts, _, _ in self._last)
        return sum(accepted for _, accepted, _ in self._last) / drafted if drafted else None

    @property
    def steps_won(self) -> float | None:
        """Mean decode steps that drafting won for the last requests, negative if it lost; None if there are none."""
        return sum(won for _, _, won in self._last) / len(self._last) if self._last else None

    def admit(self, now: float) -> bool:
        """Whether a request that arrives now is to draft."""
        if self._drafting:
            return True
        if now >= self._next_probe:
            self._next_probe = now + self._interval
            self._probes = self._sample
        if self._probes == 0:
            return False
        self._probes -= 1
        return True

    def observe(self, drafted: int, accepted: int, steps_won: float, now: float) -> Verdict | None:
        """A request that drafted was verified.

        Args:
            steps_won: latency.drafting_gain(...).total / TPOT.

        Returns:
            What changes by it; None: nothing.

        Raises:
            ValueError: not 0 <= accepted <= drafted, or steps_won is not finite.
        """
        if not 0 <= accepted <= drafted:
            raise ValueError(f"{accepted} accepted of {drafted} drafted tokens")
        if not math.isfinite(steps_won):
            raise ValueError(f"steps_won: {steps_won} is not finite")
        self._last.append((drafted, accepted, steps_won))
        won, acceptance = self.steps_won, self.acceptance
        if len(self._last) < self._sample or won is None:
            return None
        if self._drafting and won < 0:
            self._drafting = False
            self._may_return = self._next_probe = now + self._interval
            self._probes = 0
        elif not self._drafting and won > self._margin and now >= self._may_return:
            self._drafting = True
        else:
            return None
        self._last.clear()  # the next decision rests on results of its own
        return Verdict(self._drafting, self._sample, won, acceptance)
