"""A link that several transfers share, as fluid: strict priorities, equal shares within a class."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(eq=False)
class Flow:
    """One stream of one transfer.

    Args:
        priority: the lowest goes first; flows of one priority share.
        total: bytes in all. released: bytes that P has ready; sent: bytes that have arrived.
    """

    priority: tuple[int, int]
    total: float
    released: float = 0.0
    sent: float = 0.0
    done_at: float | None = None

    @property
    def backlog(self) -> float:
        """Bytes that are ready and not yet sent."""
        return self.released - self.sent


@dataclass(frozen=True)
class Served:
    """From start to end these flows got `each` bytes each."""

    start: float
    end: float
    flows: tuple[Flow, ...]
    each: float


@dataclass
class Link:
    """Bits a second, shared. Frames of one priority alternate (of 50 kB: fine enough to be taken as fluid), and a frame
    under way delays nobody. Left out is ageing: one frame of a Residual every 0.25 s while Anchors keep the link busy.

    record: keep what was served, for whoever wants to check it.
    """

    bandwidth: float
    record: bool = False
    now: float = 0.0
    served: list[Served] = field(default_factory=list)
    _waiting: dict[Flow, None] = field(default_factory=dict)

    def release(self, flow: Flow, nbytes: float) -> None:
        """`nbytes` more of a flow are ready, now."""
        flow.released = min(flow.total, flow.released + nbytes)
        if flow.total - flow.released < 1e-9 * flow.total:
            flow.released = flow.total
        if flow.backlog > 0:
            self._waiting[flow] = None

    def next_event(self) -> float:
        """When the first of the flows that are being served has nothing left to send; infinite on an idle link."""
        flows = self._first_class()
        if not flows:
            return math.inf
        return self.now + 8 * min(flow.backlog for flow in flows) * len(flows) / self.bandwidth

    def advance(self, until: float) -> None:
        """Sends up to `until`, which is not beyond next_event()."""
        flows = self._first_class()
        if flows:
            least = min(flow.backlog for flow in flows)
            ends = until >= self.next_event()
            each = least if ends else min(least, (until - self.now) * self.bandwidth / 8 / len(flows))
            for flow in flows:
                self._send(flow, each, until)
            if self.record:
                self.served.append(Served(self.now, until, tuple(flows), each))
        self.now = until

    def _send(self, flow: Flow, nbytes: float, now: float) -> None:
        flow.sent += nbytes
        if flow.backlog <= 1e-12 * flow.total:  # nothing is left but a rounding
            flow.sent = flow.released
            del self._waiting[flow]
            if flow.released == flow.total:
                flow.done_at = now

    def _first_class(self) -> list[Flow]:
        first = min((flow.priority for flow in self._waiting), default=None)
        return [flow for flow in self._waiting if flow.priority == first]
