"""What a sender has yet to send and the order in which it goes: Anchor first, across requests; no threads, no I/O."""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport.events import StreamStats
from lynx_ascend.transport.messages import MessageBuffer, ToSender, sender_buffer
from lynx_ascend.transport.shaper import TokenBucket

if TYPE_CHECKING:
    from lynx_ascend.transport.tls import SenderChannel

Rank = tuple[int, int]


@dataclass(eq=False, slots=True)
class Outgoing:
    """A message and the payload that follows it, sent as one unbroken run of bytes on its connection."""

    head: bytes
    payload: memoryview
    order: int  # position in the order of arrival over the whole sender
    queued_at: float
    lane: Lane | None = None  # None: a control message
    is_end: bool = False
    offset: int = 0

    @property
    def size(self) -> int:
        return len(self.head) + len(self.payload)

    def piece(self, limit: int) -> list[bytes | memoryview]:
        """The next bytes to send, at most `limit`."""
        head, start, stop = len(self.head), self.offset, min(self.size, self.offset + limit)
        parts: list[bytes | memoryview] = []
        if start < head:
            parts.append(self.head[start:stop])
        if stop > head:
            parts.append(self.payload[max(0, start - head) : stop - head])
        return parts


@dataclass(eq=False, slots=True)
class Lane:
    """One stream of one transfer. Its frames queue here, also before its connection is known."""

    transfer: Transfer
    stream: Stream
    conn: Connection | None = None
    waiting: deque[Outgoing] = field(default_factory=deque)
    queued: int = 0  # bytes not yet with the kernel
    frames: int = 0
    nbytes: int = 0
    closed: bool = False  # the source has written all
    done: bool = False  # the kernel has all
    served_at: float = 0.0
    first_at: float | None = None

    def stats(self, now: float) -> StreamStats:
        return StreamStats(self.frames, self.nbytes, now if self.first_at is None else self.first_at, now)


@dataclass(eq=False, slots=True)
class Transfer:
    """One generation of one transfer to one peer."""

    engine_id: str
    transfer_id: str
    generation: int
    touched_at: float
    lanes: dict[Stream, Lane] = field(default_factory=dict)
    bucket: TokenBucket | None = None
    writers: int = 0  # calls of the source that are still running
    ended: str | None = None  # why nothing more is accepted

    def lane(self, stream: Stream) -> Lane:
        return self.lanes.setdefault(stream, Lane(self, stream))

    @property
    def finished(self) -> bool:
        return self.writers == 0 and all(lane.done for lane in self.lanes.values())

    def __str__(self) -> str:
        return f"transfer {self.transfer_id!r} generation {self.generation}"


@dataclass(eq=False, slots=True)
class Connection:
    """One accepted connection: it carries one stream of one peer. `tls`: where the bytes go through, None: none."""

    sock: socket.socket
    peer: str
    accepted_at: float
    engine_id: str | None = None  # None until a valid Hello
    stream: Stream | None = None
    inbox: MessageBuffer[ToSender] = field(default_factory=sender_buffer)
    control: deque[Outgoing] = field(default_factory=deque)
    lanes: dict[Lane, None] = field(default_factory=dict)  # those with something waiting
    current: Outgoing | None = None  # partly sent: must be completed before anything else on this connection
    blocked_at: float | None = None  # since when the kernel takes no more
    tls: SenderChannel | None = None

    def __str__(self) -> str:
        return f"{self.peer} ({'no stream yet' if self.stream is None else self.stream.name.lower()})"


class SendQueue:
    """Strict priority with ageing over all lanes and connections of a sender. Not thread-safe: the sender guards it.

    Order: control messages, then Anchor frames of any transfer, then Residual, then Exact; within a class in order of
    arrival. A lane of a later stream that has been passed over for `ageing_s` has its next frame sent as if it were an
    Anchor frame; then its wait starts anew, so that a long Residual never overtakes an Anchor by more than that frame.

    While a peer's Anchor connection takes no more, later streams to that peer wait as well (up to their ageing): on a
    real link TCP would else share the bandwidth evenly between the two connections. Other peers are not affected.

    Args:
        link: the bucket that all connections share.
        ageing_s: seconds.
        clock: monotonic seconds; the same as the link's.
    """

    def __init__(self, link: TokenBucket, ageing_s: float, clock: Callable[[], float]) -> None:
        self.link = link
        self.queued = 0  # bytes of all lanes not yet with the kernel
        self.connections: dict[Connection, None] = {}
        self._ageing_s = ageing_s
        self._clock = clock
        self._order = 0
        self._idle = True

    def push(self, lane: Lane, head: bytes, payload: memoryview, is_end: bool = False) -> None:
        """Append a frame (or the End) to a lane."""
        out = self._outgoing(head, payload)
        out.lane, out.is_end = lane, is_end
        if not lane.waiting:
            lane.served_at = out.queued_at
            bucket = lane.transfer.bucket
            if bucket is not None and not any(other.queued for other in lane.transfer.lanes.values()):
                bucket.restart()
        lane.waiting.append(out)
        lane.queued += out.size
        self.queued += out.size
        if lane.conn is not None:
            lane.conn.lanes[lane] = None

    def push_control(self, conn: Connection, message: bytes) -> None:
        """Queue a control message: it goes before all frames, and is not shaped."""
        conn.control.append(self._outgoing(message, memoryview(b"")))

    def bind(self, lane: Lane, conn: Connection) -> None:
        """Give a lane its connection; what waits in it may go from now on."""
        lane.conn = conn
        if lane.waiting:
            conn.lanes[lane] = None

    def drop(self, transfer: Transfer) -> None:
        """Forget what waits of a transfer. A frame that is partly sent is completed, for the framing's sake."""
        for lane in transfer.lanes.values():
            dropped = sum(out.size for out in lane.waiting)
            lane.waiting.clear()
            lane.queued -= dropped
            self.queued -= dropped
            if lane.conn is not None:
                lane.conn.lanes.pop(lane, None)

    def disconnect(self, conn: Connection) -> None:
        """Forget a connection. Its transfers are dropped by the caller."""
        self.connections.pop(conn, None)
        if conn.current is not None and conn.current.lane is not None:
            self._account(conn.current.lane, conn.current.size - conn.current.offset)
        conn.current = None

    def pick(self) -> tuple[Connection, Outgoing, int] | float:
        """What to send next and at most how many bytes of it, or for how many seconds nothing may go (inf: nothing to
        send). What is picked has become its connection's current message."""
        now = self._clock()
        best: tuple[Rank, Connection, Outgoing] | None = None
        wait = math.inf
        full = {c.engine_id for c in self.connections if c.stream is Stream.ANCHOR and c.blocked_at is not None}
        for conn in self.connections:
            if conn.blocked_at is not None:
                continue
            for rank, out in self._heads(conn, now):
                if rank[0] > 0 and conn.engine_id in full:
                    wait = min(wait, self._ageing_s)
                    continue
                delay = self._own_delay(out, rank, now)
                if delay > 0:
                    wait = min(wait, delay)
                elif best is None or rank < best[0]:
                    best = rank, conn, out
        if best is None:
            self._idle = True
            return wait
        if self._idle:
            self._idle = False
            self.link.restart()
        _, conn, out = best
        limit = self.link.piece()
        if out.lane is not None and (delay := self.link.delay(min(limit, out.size - out.offset))) > 0:
            return min(wait, delay)
        if conn.current is None:
            self._start(conn, out, now)
        return conn, out, limit

    def advance(self, conn: Connection, out: Outgoing, nbytes: int) -> Lane | None:
        """The kernel took `nbytes` of what was picked. Returns the lane if that completed its stream."""
        out.offset += nbytes
        lane = out.lane
        if lane is not None:
            self.link.take(nbytes)
            if conn.current is out:  # else the connection is gone, and with it what was left to account
                self._account(lane, nbytes)
            lane.transfer.touched_at = self._clock()
        if out.offset < out.size:
            return None
        conn.current = None
        if lane is not None:
            lane.served_at = self._clock()
        if lane is None or not out.is_end or lane.transfer.ended is not None:
            return None
        lane.done = True
        return lane

    def _outgoing(self, head: bytes, payload: memoryview) -> Outgoing:
        self._order += 1
        return Outgoing(head, payload, self._order, self._clock())

    def _account(self, lane: Lane, nbytes: int) -> None:
        lane.queued -= nbytes
        self.queued -= nbytes

    def _heads(self, conn: Connection, now: float) -> Iterator[tuple[Rank, Outgoing]]:
        """The candidates of a connection: its current message alone, else a control message, else each lane's first."""
        if conn.current is not None:
            yield self._rank(conn.current, now), conn.current
        elif conn.control:
            yield self._rank(conn.control[0], now), conn.control[0]
        else:
            for lane in conn.lanes:
                yield self._rank(lane.waiting[0], now), lane.waiting[0]

    def _rank(self, out: Outgoing, now: float) -> Rank:
        lane = out.lane
        if lane is None:
            return -1, out.order
        if lane.stream is Stream.ANCHOR or now - lane.served_at > self._ageing_s:
            return 0, out.order
        return int(lane.stream), out.order

    def _own_delay(self, out: Outgoing, rank: Rank, now: float) -> float:
        """Seconds for which the transfer's own rate limit holds back a frame (inf: an earlier stream of it goes first).
        A frame is held as a whole: once begun, it would block the other transfers of its connection."""
        lane = out.lane
        if lane is None or lane.transfer.bucket is None or out.offset or (lane.conn and lane.conn.current is out):
            return 0.0
        for other in lane.transfer.lanes.values():
            usable = other.conn is not None and other.conn.blocked_at is None and other.waiting
            if usable and self._rank(other.waiting[0], now) < rank:
                return math.inf
        return lane.transfer.bucket.delay(out.size)

    def _start(self, conn: Connection, out: Outgoing, now: float) -> None:
        conn.current = out
        lane = out.lane
        if lane is None:
            conn.control.popleft()
            return
        lane.waiting.popleft()
        if not lane.waiting:
            conn.lanes.pop(lane)
        if lane.first_at is None and not out.is_end:
            lane.first_at = now
        if lane.transfer.bucket is not None:
            lane.transfer.bucket.take(out.size)
