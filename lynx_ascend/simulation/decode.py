"""D by steps: a batch that drafts, verifies and decodes, each step as long as what is in it."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from lynx_ascend.simulation.alone import Policy, cycle
from lynx_ascend.simulation.hardware import Work
from lynx_ascend.simulation.link import Flow
from lynx_ascend.simulation.methods import Method
from lynx_ascend.speculation.latency import time_left
from lynx_ascend.speculation.window import worth_drafting


@dataclass(eq=False)
class Request:
    """One request's way. Times in seconds; `tokens_at`: when how many tokens in all were with the client.

    Args:
        holds: drafts that would be accepted if that many were made.
    """

    number: int
    arrival: float
    work: Work
    output: int
    holds: int
    flows: list[Flow] = field(default_factory=list)
    sent_from: float | None = None
    ready_at: float | None = None  # the first stream is in place
    complete_at: float | None = None  # all streams are
    drafted: int = 0
    verified: bool = False
    tokens: int = 0
    tokens_at: list[tuple[float, int]] = field(default_factory=list)

    def give(self, now: float, tokens: int) -> None:
        """Tokens for the client; those beyond the last that it asked for are dropped."""
        self.tokens = min(self.output, self.tokens + tokens)
        self.tokens_at.append((now, self.tokens))

    @property
    def done(self) -> bool:
        """All tokens are there."""
        return self.tokens == self.output

    def time_to(self, n: int) -> float:
        """Seconds from its arrival to its n-th token, or its last one."""
        n = min(n, self.output)
        return next(at for at, count in self.tokens_at if count >= n) - self.arrival


@dataclass(frozen=True)
class Step:
    """One forward pass: its rows, by what they do."""

    start: float
    end: float
    drafting: int
    verifying: int
    decoding: int


@dataclass
class DecodeEngine:
    """D's scheduler. A request takes one of `slots` from its first stream's arrival to its end, parked or not."""

    method: Method
    policy: Policy
    beliefs: dict[int, tuple[float, ...]]
    slots: int
    rng: random.Random
    steps: list[Step] = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    ends_at: float | None = None
    _rows: tuple[list[Request], list[Request], list[Request]] = ([], [], [])

    def join(self, request: Request) -> None:
        """Its first stream is in place."""
        if not request.done:  # the token that was handed over may be all it asked for
            self.waiting.append(request)

    def start(self, now: float) -> None:
        """Begins a step, if none runs and anything is to be computed."""
        if self.ends_at is not None:
            return
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())
        if not self.method.split:
            verifying, decoding, asking = [], list(self.running), []
        else:
            complete = [r for r in self.running if r.complete_at is not None and r.complete_at <= now]
            verifying = [r for r in complete if not r.verified]
            decoding = [r for r in complete if r.verified]
            asking = [r for r in self.running if r not in complete]
        drafting: list[Request] = []
        busy = len(verifying) + len(decoding)
        for request in asking:  # each sees those before it that draft
            if self._drafts(request, now, others=busy + len(drafting)):
                drafting.append(request)
        self._rows = (drafting, verifying, decoding)
        if busy or drafting:
            self.ends_at = now + self._seconds()
            self.steps.append(Step(now, self.ends_at, *(len(rows) for rows in self._rows)))

    def finish(self) -> None:
        """Ends the step."""
        assert self.ends_at is not None
        now, self.ends_at = self.ends_at, None
        drafting, verifying, decoding = self._rows
        for request in drafting:
            request.drafted += 1
        for request in verifying:
            request.verified = True
            request.give(now, min(request.holds, request.drafted) + 1)
        for request in decoding:
            request.give(now, self._tokens())
        self.running = [r for r in self.running if not r.done]

    def _seconds(self) -> float:
        """A step's fixed part, each row's, and what verification adds: StepCosts as the formulas use them."""
        drafting, verifying, decoding = self._rows
        rows = [*drafting, *verifying, *decoding]
        fixed = max(r.work.costs.tpot - r.work.costs.row for r in rows)
        seconds = fixed + sum(r.work.costs.row for r in rows)
        for r in verifying:
            seconds += r.work.costs.verify - r.work.costs.tpot + r.drafted * r.work.costs.verify_draft
        if self.method.draft_model is not None:
            # Its own steps are taken for the batch at once; each row's drafts are verified.
            drafts = self.method.draft_model
            seconds += max(cycle(drafts, r.work) - r.work.costs.tpot for r in rows)
            seconds += sum(drafts.length * r.work.costs.verify_draft for r in rows[1:])
        return seconds

    def _tokens(self) -> int:
        drafts = self.method.draft_model
        if drafts is None:
            return 1
        accepted = 0
        while accepted < drafts.length and self.rng.random() < drafts.acceptance:
            accepted += 1
        return accepted + 1

    def _drafts(self, request: Request, now: float, others: int) -> bool:
        limit = self.policy.draft_limit(request.output)
        if not self.policy.adaptive:
            return request.drafted < limit
        survival = self.beliefs[request.work.tokens]
        left = _predicted(request, now)
        costs, drafted = request.work.costs, request.drafted
        if drafted >= limit:
            return False
        total = worth_drafting(survival, costs, t_residual=left, limit=limit, drafted=drafted, others=others)
        return total > drafted


def _predicted(request: Request, now: float) -> float:
    """Seconds to the Residual at the rate of this transfer so far, as a driver sees it."""
    assert request.sent_from is not None
    received = sum(flow.sent for flow in request.flows)
    left = sum(flow.total for flow in request.flows) - received
    wire = time_left(left, received, now - request.sent_from)
    return max(wire, (request.complete_at or now) - now)
