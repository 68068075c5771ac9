"""What a decode instance has learned of its steps and drafts, and what it therefore does with the next ones."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection

from lynx_ascend.serving.options import RequestOptions
from lynx_ascend.speculation.decoder import SpecDecoder
from lynx_ascend.speculation.steps import StepTimes
from lynx_ascend.speculation.survival import AcceptanceCurve
from lynx_ascend.speculation.window import worth_drafting

FIRST_TPOT = 0.03  # seconds; counts as one step, so that two steps of the engine outweigh it


class Policy:
    """Owns the estimators of lynx_ascend.speculation; asked and told by the scheduler, on its thread.

    Args:
        now: the clock, monotonic seconds.

    Attributes:
        times: what steps cost. curve: how far drafts hold.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.times = StepTimes(FIRST_TPOT)
        self.curve = AcceptanceCurve()
        self._begun: deque[float] = deque()  # steps whose output is not back
        self._ended = -math.inf

    # Steps.

    def begin_step(self) -> None:
        """The engine is about to schedule a step. Outputs come back in the order of these calls."""
        self._begun.append(self.now())

    def end_step(self, tokens: Collection[int], drafts: Collection[int]) -> float:
        """The output of the oldest step is back.

        With asynchronous scheduling a step is begun before the last one has ended: it takes from that one's end.

        Args:
            tokens: scheduled, of each request of the step. drafts: of those, of each request that was verified.

        Returns:
            The seconds that the step took.
        """
        now = self.now()
        seconds = now - max(self._begun.popleft(), self._ended)
        self._ended = now
        if seconds > 0 and tokens and sum(tokens) == len(tokens) + sum(drafts):  # no prefill
            if not drafts:
                self.times.on_step(seconds)
            elif len(drafts) == 1:
                self.times.on_verify(sum(drafts), seconds)
        return seconds

    # Drafts.

    def drafts_more(
        self, decoder: SpecDecoder, options: RequestOptions, *, t_residual: float, in_flight: int, others: int
    ) -> bool:
        """Whether the next step of a request that drafts is worth it; if not, ask again before the next one.

        Args:
            t_residual: seconds until the Residual is there; infinite if that is not known.
            in_flight: steps of it whose tokens are not back: they count as drafts.
            others: other requests that the engine's steps serve.
        """
        drafted = len(decoder.drafts) + in_flight
        if options.window == "fixed":
            return drafted < decoder.cap
        survival, costs, cap = self.curve.survival, self.times.costs, decoder.cap
        return drafted < worth_drafting(
            survival, costs, t_residual=t_residual, limit=cap, drafted=drafted, others=others
        )

    def on_verified(self, decoder: SpecDecoder, *, waited: bool) -> None:
        """A request was verified. waited: it was told at least once that a draft is not worth it."""
        if decoder.drafts or waited:
            self.curve.observe(decoder.accepted or 0, rejected=decoder.rejected)
