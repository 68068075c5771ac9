"""What a decode instance has learned of its steps and drafts, and what it therefore does with the next ones."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection

from lynx_ascend.serving.metadata import Progress
from lynx_ascend.serving.options import LynxOptions, RequestOptions
from lynx_ascend.speculation.break_even import KVCosts, Method, choose
from lynx_ascend.speculation.decoder import SpecDecoder
from lynx_ascend.speculation.health import Health
from lynx_ascend.speculation.latency import drafting_gain, transfer_time
from lynx_ascend.speculation.steps import StepTimes
from lynx_ascend.speculation.survival import AcceptanceCurve
from lynx_ascend.speculation.window import worth_drafting

logger = logging.getLogger("vllm.lynx_ascend.policy")
N = 64  # the token by whose time methods are compared
LINKS = 256  # prefill hosts whose link is remembered: requests name them
LINK_MEMORY = 8  # transfers after which a measured rate weighs 1/e
FIRST_TPOT = 0.03  # seconds; counts as one step, so that two steps of the engine outweigh it


class Policy:
    """Owns the estimators of lynx_ascend.speculation; asked and told by the scheduler, on its thread.

    Args:
        now: the clock, monotonic seconds.

    Attributes:
        times: what steps cost. curve: how far drafts hold. health: whether drafting pays; None: not asked.
        kv: what a token's KV costs; None: the worker has not said it yet.
        links: bits a second that a request gets from a prefill host, of the last transfers.
    """

    def __init__(self, options: LynxOptions, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.times = StepTimes(FIRST_TPOT)
        self.curve = AcceptanceCurve()
        self.health = Health() if options.health else None
        self.kv: KVCosts | None = None
        self.links: dict[str, float] = {}
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

    # Methods.

    def on_transfer(self, host: str, progress: Progress) -> None:
        """A transfer from a prefill host is complete."""
        if progress.seconds > 0:
            rate = 8 * progress.received / progress.seconds
            known = self.links.get(host, rate)
            self.links.pop(host, None)
            self.links[host] = known + (rate - known) / LINK_MEMORY
            if len(self.links) > LINKS:
                del self.links[next(iter(self.links))]  # the one that served longest ago

    def choose(self, host: str, tokens: int, max_tokens: int, cap: int, options: RequestOptions) -> Method:
        """The method that is expected to reach the request's last token, or its N-th, first.

        Lynx where nothing has been measured yet.

        Args:
            host: of the prefill instance. tokens: of the prompt.
            cap: the most drafts; 0 for a request that cannot draft.
        """
        link = self.links.get(host) if options.bandwidth is None else options.bandwidth * 1e6
        if link is None or self.kv is None:
            return "lynx"
        costs = self.times.costs
        method = choose(tokens, link, self.kv, costs, self.curve.survival, n=min(max_tokens, N), cap=cap).method
        if method == "8bit" and cap and transfer_time(tokens * self.kv.residual, link) > costs.tpot:
            self._on_no_drafts()
        return method

    # Drafts.

    def admits(self) -> bool:
        """Whether a request that arrives now, and could draft, is to; if not it waits for both streams."""
        if self.health is None or self.health.admit(self.now()):
            return True
        self._on_no_drafts()
        return False

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

    def on_verified(self, decoder: SpecDecoder, *, waited: bool, overrun: float) -> None:
        """A request was verified.

        Args:
            waited: it was told at least once that a draft is not worth it.
            overrun: seconds by which its drafts delayed the verify pass.
        """
        accepted, drafted = decoder.accepted or 0, len(decoder.drafts)
        if drafted:
            self.curve.observe(accepted, rejected=decoder.rejected)
        elif waited:
            self._on_no_drafts()
        if not drafted or self.health is None:
            return
        # The pass may have shared its step with a prefill or another pass: what passes cost on average is fairer.
        costs = self.times.costs
        verify = costs.verify + drafted * costs.verify_draft
        won = drafting_gain(accepted, costs.tpot, verify, n=accepted + 1, last_step=overrun)
        verdict = self.health.observe(drafted, accepted, won.total / costs.tpot, self.now())
        if verdict is not None:
            logger.warning(
                "%s: the last %d requests that drafted won %.1f decode steps on average, %.0f %% of drafts accepted",
                "drafting pays again" if verdict.drafting else "drafting does not pay, requests wait for both streams",
                verdict.sample,
                verdict.steps_won,
                100 * (verdict.acceptance or 0),
            )

    def _on_no_drafts(self) -> None:
        """A request has the time for a draft and makes none: what speaks against drafts fades, and they come back."""
        self.curve.observe(0, rejected=False)
        self.times.on_no_drafts()
