"""One request on a free link, by formula: the functions of speculation/ with each method's bytes and times."""

from __future__ import annotations

from dataclasses import dataclass

from lynx_ascend.simulation.hardware import Work
from lynx_ascend.simulation.methods import DraftModel, Method
from lynx_ascend.simulation.prefill import finished, releases, schedule
from lynx_ascend.speculation.break_even import expected
from lynx_ascend.speculation.latency import CodecTimes, Lynx, Monolithic, transfer_time
from lynx_ascend.speculation.window import FixedWindow, worth_drafting


@dataclass(frozen=True)
class Policy:
    """How a request is served.

    Args:
        survival: at i, the probability that the first i + 1 drafts are all accepted.
        cap: the most drafts; adaptive: as many of them as worth_drafting says.
        handover: P's first token goes to the client at the end of prefill.
    """

    survival: tuple[float, ...]
    cap: int = 64
    adaptive: bool = True
    handover: bool = False

    def draft_limit(self, output: int) -> int:
        """The most drafts of a request for `output` tokens."""
        return FixedWindow(self.cap).draft_cap(max(1, output - self.handover))


@dataclass(frozen=True)
class Alone:
    """The request's times, in seconds from its arrival at an idle P."""

    prefill: float
    after: Monolithic | Lynx
    handover: bool

    def time_to(self, n: int) -> float:
        """Seconds to the n-th token, n >= 1; a mean where acceptance is random."""
        n -= self.handover
        return self.prefill + (self.after.time_to(n) if n else 0.0)

    @property
    def first_draft(self) -> float:
        """Seconds to the first draft, which no client sees: what the paper calls the first token of Lynx."""
        if not isinstance(self.after, Lynx):
            raise ValueError("a method with one stream drafts nothing")
        return self.prefill + self.after.t_anchor + self.after.tpot


def alone(method: Method, work: Work, bandwidth: float, policy: Policy, output: int = 64) -> Alone:
    """One request for `output` tokens and nobody else; bandwidth in bits a second.

    Where acceptance is random, time_to is a mean: exact for n = output, close below it.
    """
    (parts,) = schedule([(0.0, work.tokens)], work.prefill)
    prefill = parts[-1].end
    released = releases(parts, work.prefill.layers) if method.layerwise else [(prefill, 1.0)]
    n = max(1, output - policy.handover)

    def left(seconds: float) -> float:
        """Of work of so many seconds, what goes on after prefill."""
        return finished(released, seconds) - prefill

    def wire(nbytes: float) -> float:
        """Bytes that take as long after prefill as those `nbytes` do that were not sent during it."""
        return left(transfer_time(nbytes, bandwidth)) * bandwidth / 8

    first, second = method.nbytes(work.nbytes)
    codec = work.codec if method.coded else CodecTimes()
    if not method.split:
        tpot, ready = work.costs.tpot, left(codec.full_decode)
        if method.draft_model is not None:
            drafts = method.draft_model
            tpot = cycle(drafts, work) * drafts.rounds(n) / n
            ready = max(ready, work.draft_prefill)
        times = CodecTimes(left(codec.encode), full_decode=ready)
        return Alone(prefill, Monolithic(wire(first), bandwidth, tpot, times), policy.handover)
    decoded = left(codec.anchor_decode)
    times = CodecTimes(left(codec.encode), decoded, left(codec.anchor_decode + codec.full_decode) - decoded)
    anchor = wire(first)
    lynx = Lynx(anchor, wire(first + second) - anchor, bandwidth, work.costs.tpot, work.costs.verify, 0, codec=times)
    limit = policy.draft_limit(output)
    if policy.adaptive:
        limit = worth_drafting(policy.survival, work.costs, t_residual=lynx.t_residual, limit=limit)
    return Alone(prefill, expected(lynx, work.costs, policy.survival, cap=limit, n=n), policy.handover)


def cycle(drafts: DraftModel, work: Work) -> float:
    """Seconds of one round of a draft model's proposals and the pass over them."""
    costs = work.costs
    return costs.tpot + drafts.length * (costs.verify_draft + drafts.step * costs.tpot)
