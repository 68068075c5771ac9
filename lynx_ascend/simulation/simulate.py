"""Many requests: P prefills them in turn, their caches share a link, D batches them. Deterministic by seed."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from lynx_ascend.simulation.acceptance import Acceptance
from lynx_ascend.simulation.alone import Policy
from lynx_ascend.simulation.decode import DecodeEngine, Request, Step
from lynx_ascend.simulation.hardware import Work
from lynx_ascend.simulation.link import Flow, Link
from lynx_ascend.simulation.methods import Method
from lynx_ascend.simulation.prefill import Part, finished, releases, schedule
from lynx_ascend.speculation.latency import CodecTimes


@dataclass(frozen=True)
class Arrival:
    """A request: when (seconds), prompt tokens, tokens to generate."""

    at: float
    tokens: int
    output: int


def poisson(rate: float, requests: int, tokens: Sequence[int], output: int, seed: int) -> list[Arrival]:
    """`requests` arrivals, `rate` a second on average, each with one of the prompt lengths.

    Raises:
        ValueError: an argument is not positive.
    """
    if not 0 < rate < math.inf or min(requests, output, *tokens) < 1:
        raise ValueError(f"rate {rate}, requests {requests}, tokens {tokens}, output {output}: one is not positive")
    rng, now, found = random.Random(seed), 0.0, []
    for _ in range(requests):
        now += rng.expovariate(rate)
        found.append(Arrival(now, rng.choice(tokens), output))
    return found


@dataclass(frozen=True)
class Outcome:
    """What a run gave: requests in the order of arrival, D's steps, and the link as it ended."""

    requests: list[Request]
    steps: list[Step]
    link: Link


class Simulation:
    """One method under one load.

    Args:
        work: what a prompt of so many tokens costs.
        bandwidth: bits a second that all transfers share.
        acceptance: how far drafts hold, by context; also what the adaptive window believes.
        slots: requests that D serves at once.
        seed: of what random acceptance draws.
        in_order: the link serves one request after the other, its Anchor first; else, as lynx_ascend/transport does,
            the Anchors of all requests, which share it, before any Residual, one after the other.
        record: keep what the link served.

    A cold P prefills in chunks, first come, first served. P's and D's codecs serve one transfer after the other. A step
    costs what the prompt's length says; the few tokens that are added to it while decoding are not counted.
    """

    def __init__(
        self,
        method: Method,
        work: Callable[[int], Work],
        bandwidth: float,
        acceptance: Acceptance,
        policy: Policy,
        *,
        slots: int = 32,
        seed: int = 0,
        in_order: bool = False,
        record: bool = False,
    ) -> None:
        if not 0 < bandwidth < math.inf:
            raise ValueError(f"bandwidth: {bandwidth} bits a second is not positive and finite")
        if slots < 1:
            raise ValueError(f"slots: {slots} leave no request running")
        self._method, self._work, self._acceptance, self._policy = method, work, acceptance, policy
        self._in_order = in_order
        self._rng = random.Random(seed)
        self._link = Link(bandwidth, record)
        self._engine = DecodeEngine(method, policy, {}, slots, random.Random(seed + 1))
        self._events: list[tuple[float, int, Callable[[float], object]]] = []
        self._order = count()
        self._encoder_free = self._decoder_free = 0.0
        self._sending: dict[Request, tuple[float, float]] = {}  # when the codecs are done: first stream, all

    def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        """Serves them all.

        Raises:
            ValueError: an arrival with no tokens, or out of order; prompts with different costs of prefill.
        """
        requests: list[Request] = []
        for before, arrival in zip([0.0, *(a.at for a in arrivals)], arrivals, strict=False):
            if arrival.at < before or min(arrival.tokens, arrival.output) < 1:
                raise ValueError(f"{arrival}: out of order, or without tokens")
            survival = self._acceptance.at(arrival.tokens)
            self._engine.beliefs[arrival.tokens] = survival
            u = self._rng.random()  # one draw a request, whatever the method: all methods meet the same luck
            holds = sum(u < s for s in survival)
            request = Request(len(requests), arrival.at, self._work(arrival.tokens), arrival.output, holds)
            requests.append(request)
        self._prefill(requests)
        while (now := self._next()) < math.inf:
            self._link.advance(now)
            self._receive()
            while self._events and self._events[0][0] <= now:
                heapq.heappop(self._events)[2](now)
            if self._engine.ends_at is not None and self._engine.ends_at <= now:
                self._engine.finish()
            self._engine.start(now)
        return Outcome(requests, self._engine.steps, self._link)

    def _next(self) -> float:
        event = self._events[0][0] if self._events else math.inf
        step = math.inf if self._engine.ends_at is None else self._engine.ends_at
        return min(event, step, self._link.next_event())

    def _at(self, time: float, action: Callable[[float], object]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def _prefill(self, requests: Sequence[Request]) -> None:
        """P knows nothing of what comes after it: its steps are planned at once."""
        if not requests:
            return
        costs = requests[0].work.prefill
        if any(request.work.prefill != costs for request in requests):
            raise ValueError("prefill: the prompts have different costs, but one instance prefills them")
        for request, parts in zip(
            requests, schedule([(r.arrival, r.work.tokens) for r in requests], costs), strict=True
        ):
            self._transfer(request, parts)

    def _transfer(self, request: Request, parts: Sequence[Part]) -> None:
        end = parts[-1].end
        released = releases(parts, request.work.prefill.layers) if self._method.layerwise else [(end, 1.0)]
        nbytes = self._method.nbytes(request.work.nbytes)
        request.flows = [Flow(self._priority(request, i), size) for i, size in enumerate(nbytes) if size > 0]
        if self._policy.handover:
            self._at(end, lambda now: request.give(now, 1))
        self._at(released[0][0], lambda now: self._send(request, now, released))
        for at, share in released:
            self._at(at, lambda _, share=share: self._release(request, share))  # type: ignore[misc]

    def _priority(self, request: Request, stream: int) -> tuple[int, int]:
        if self._in_order:
            return request.number, stream
        return stream, request.number if stream else 0  # Anchors alternate, Residuals were queued one after the other

    def _release(self, request: Request, share: float) -> None:
        for flow in request.flows:
            self._link.release(flow, flow.total * share)

    def _send(self, request: Request, now: float, released: Sequence[tuple[float, float]]) -> None:
        """Reserves the codecs of both sides; the link has the flows."""
        request.sent_from = now
        codec = request.work.codec if self._method.coded else CodecTimes()
        encoded = self._encoder_free = finished(released, codec.encode, self._encoder_free)
        anchor = codec.anchor_decode if self._method.split else codec.full_decode
        whole = anchor + (codec.full_decode if self._method.split else 0.0)
        first = max(encoded, finished(released, anchor, self._decoder_free))
        self._decoder_free = finished(released, whole, self._decoder_free)
        if self._method.draft_model is not None:
            first = max(first, released[-1][0] + request.work.draft_prefill)
        self._sending[request] = (first, self._decoder_free if self._method.split else first)

    def _receive(self) -> None:
        """Streams that are on D: in place when its codec is done too."""
        for request, (first, whole) in list(self._sending.items()):
            arrived = [flow.done_at for flow in request.flows]
            if arrived[0] is not None and request.ready_at is None:
                request.ready_at = max(arrived[0], first)
                self._at(request.ready_at, lambda _, ready=request: self._engine.join(ready))  # type: ignore[misc]
            if arrived[-1] is not None:
                assert request.ready_at is not None
                request.complete_at = max(arrived[-1], request.ready_at, whole)
                self._at(request.complete_at, lambda _: None)  # a step may start then
                del self._sending[request]
