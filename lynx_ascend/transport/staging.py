"""What a receiver has been promised and what has arrived, in the order in which it is to be used; no sockets."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport.events import FaultKind, Item, Received, StreamEnd, StreamFault

ANCHORED = 4096  # transfers whose anchor is complete that are remembered, for a residual pulled only later


@dataclass(eq=False, slots=True)
class Incoming:
    """One stream of a transfer on its way in. `carrier` is the connection that brings it."""

    transfer: Transfer
    stream: Stream
    carrier: Hashable
    max_bytes: int
    frames: int = 0
    nbytes: int = 0
    first_at: float | None = None
    end: StreamEnd | None = None


@dataclass(eq=False, slots=True)
class Transfer:
    """The streams of one transfer that were asked for and not yet returned to the end."""

    transfer_id: str
    generation: int
    touched_at: float
    streams: dict[Stream, Incoming] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Slot:
    """A frame being received into `frame`."""

    incoming: Incoming
    sequence: int
    frame: bytearray


class Rejected(Exception):
    """A peer broke the promise of a transfer (size, order, totals): that transfer fails, its connection goes on."""


class Staging:
    """Transfers, their frames and the drain order. Thread-safe.

    Items come out Anchor before Residual before Exact, over all transfers, in order of arrival within a stream; the end
    of a stream never before the end of the same transfer's Anchor. Faults come first.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._transfers: dict[str, Transfer] = {}
        self._anchored: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._faults: deque[StreamFault] = deque()
        self._queues: dict[Stream, deque[Received | StreamEnd]] = {stream: deque() for stream in Stream}
        self._staged = 0
        self._dropped = 0

    def begin(self, transfer_id: str, generation: int, stream: Stream, carrier: Hashable, max_bytes: int) -> None:
        """Expect a stream. An older generation of the transfer fails: whoever waits for it must hear that it is over.

        Raises:
            ValueError: the stream is expected already, or a newer generation is.
        """
        with self._lock:
            transfer = self._transfers.get(transfer_id)
            if transfer is not None and transfer.generation > generation:
                raise ValueError(f"generation {generation} of {transfer_id!r}: {transfer.generation} is under way")
            if transfer is not None and transfer.generation < generation:
                reason = f"superseded by generation {generation}"
                self.fail(transfer_id, transfer.generation, FaultKind.SUPERSEDED, reason)
                transfer = None
            if transfer is None:
                transfer = self._transfers[transfer_id] = Transfer(transfer_id, generation, self._clock())
            if stream in transfer.streams:
                raise ValueError(f"{stream.name.lower()} of {transfer_id!r} generation {generation} is under way")
            transfer.streams[stream] = Incoming(transfer, stream, carrier, max_bytes)

    def open_frame(
        self, transfer_id: str, generation: int, stream: Stream, sequence: int, nbytes: int, carrier: Hashable
    ) -> Slot | None:
        """Room for an announced frame, counted as staged from now on; None if nobody wants it from this carrier.

        Raises:
            Rejected: out of order, or more bytes than the stream may have.
        """
        with self._lock:
            incoming = self._find(transfer_id, generation, stream)
            if incoming is None or incoming.carrier is not carrier:
                return None
            if sequence != incoming.frames:
                raise Rejected(f"frame {sequence} came where {incoming.frames} was due")
            if incoming.nbytes + nbytes > incoming.max_bytes:
                raise Rejected(f"{incoming.nbytes} + {nbytes} bytes exceed the stream's cap of {incoming.max_bytes}")
            incoming.frames += 1
            incoming.nbytes += nbytes
            self._touch(incoming)
            self._staged += nbytes
        return Slot(incoming, sequence, bytearray(nbytes))

    def touch(self, slot: Slot) -> None:
        """Bytes of an open frame have arrived."""
        slot.incoming.transfer.touched_at = self._clock()

    def commit(self, slot: Slot) -> None:
        """The frame is complete."""
        incoming, transfer = slot.incoming, slot.incoming.transfer
        with self._lock:
            if self._find(transfer.transfer_id, transfer.generation, incoming.stream) is not incoming:
                return self.abandon(slot)
            self._touch(incoming)
            now = transfer.touched_at
            name = transfer.transfer_id, transfer.generation, incoming.stream
            self._queues[incoming.stream].append(Received(*name, slot.sequence, slot.frame, now))
            self._news.notify_all()

    def abandon(self, slot: Slot) -> None:
        """The frame will not be completed, or is no longer wanted."""
        with self._lock:
            self._staged -= len(slot.frame)
            self._dropped += 1

    def end(
        self, transfer_id: str, generation: int, stream: Stream, frames: int, nbytes: int, carrier: Hashable
    ) -> None:
        """The peer says the stream is complete. Late, repeated, or of another carrier's stream: ignored.

        Raises:
            Rejected: the totals differ from what arrived.
        """
        with self._lock:
            incoming = self._find(transfer_id, generation, stream)
            if incoming is None or incoming.carrier is not carrier:
                return
            if (frames, nbytes) != (incoming.frames, incoming.nbytes):
                got = f"{incoming.frames} frames of {incoming.nbytes} bytes in all arrived"
                raise Rejected(f"End tells of {frames} frames of {nbytes} bytes in all, {got}")
            self._touch(incoming)
            first, last = incoming.first_at, incoming.transfer.touched_at
            first = last if first is None else first
            incoming.end = StreamEnd(transfer_id, generation, stream, frames, nbytes, first, last)
            if stream is Stream.ANCHOR:
                self._anchored[transfer_id, generation] = None
                if len(self._anchored) > ANCHORED:
                    self._anchored.popitem(last=False)
            if (transfer_id, generation) in self._anchored:
                self._release(incoming.transfer)

    def fail(self, transfer_id: str, generation: int, kind: FaultKind, reason: str) -> list[Hashable]:
        """Give up all streams of a transfer that are not complete. Returns their carriers (none: it was not known)."""
        with self._lock:
            transfer = self._transfers.get(transfer_id)
            if transfer is None or transfer.generation != generation:
                return []
            del self._transfers[transfer_id]
            for stream in transfer.streams:
                self._discard(transfer_id, generation, stream)
                self._faults.append(StreamFault(transfer_id, generation, stream, kind, reason))
            self._news.notify_all()
            return [incoming.carrier for incoming in transfer.streams.values()]

    def cancel(self, transfer_id: str, generation: int) -> list[Hashable]:
        """Forget a transfer and all that is staged of it, without a word. Returns the carriers of what was due."""
        with self._lock:
            for stream in Stream:
                self._discard(transfer_id, generation, stream)
            self._anchored.pop((transfer_id, generation), None)
            named = transfer_id, generation
            self._faults = deque(f for f in self._faults if (f.transfer_id, f.generation) != named)
            transfer = self._transfers.get(transfer_id)
            if transfer is None or transfer.generation != generation:
                return []
            del self._transfers[transfer_id]
            return [incoming.carrier for incoming in transfer.streams.values()]

    def carried_by(self, carrier: Hashable) -> list[Transfer]:
        """Transfers that still need bytes from a carrier."""
        with self._lock:
            return [
                transfer
                for transfer in self._transfers.values()
                if any(i.carrier is carrier and i.end is None for i in transfer.streams.values())
            ]

    def brings(self, carrier: Hashable, transfer_id: str, generation: int) -> bool:
        """Whether a stream of the transfer is due from a carrier: no other one has a say in it."""
        with self._lock:
            transfer = self._transfers.get(transfer_id)
            if transfer is None or transfer.generation != generation:
                return False
            return any(incoming.carrier is carrier for incoming in transfer.streams.values())

    def stalled(self, stall_s: float) -> list[Transfer]:
        """Transfers of which no byte, on any stream, has come for `stall_s` seconds."""
        with self._lock:
            limit = self._clock() - stall_s
            return [transfer for transfer in self._transfers.values() if transfer.touched_at < limit]

    def drain(self, max_items: int | None, max_bytes: int | None) -> list[Item]:
        """Take what is ready, in drain order, until a limit is reached; at least one item if there is one."""
        items: list[Item] = []
        nbytes = 0
        with self._lock:
            while (max_items is None or len(items) < max(1, max_items)) and (max_bytes is None or nbytes < max_bytes):
                if self._faults:
                    items.append(self._faults.popleft())
                    continue
                queue = next((q for q in self._queues.values() if q), None)
                if queue is None:
                    break
                item = queue.popleft()
                items.append(item)
                if isinstance(item, Received):
                    nbytes += len(item.frame)
            self._staged -= nbytes
        return items

    def wait(self, timeout: float | None) -> bool:
        """Wait until there is something to drain; False after `timeout` seconds without."""
        with self._lock:
            return self._news.wait_for(lambda: bool(self._faults or any(self._queues.values())), timeout)

    def staged_bytes(self) -> int:
        """Payload bytes of frames that are complete or being received and not yet drained."""
        with self._lock:
            return self._staged

    def count_dropped(self) -> None:
        """A frame was skipped because nobody wants it."""
        with self._lock:
            self._dropped += 1

    def dropped_frames(self) -> int:
        """Frames that arrived for cancelled, failed, unknown or superseded transfers."""
        with self._lock:
            return self._dropped

    def _find(self, transfer_id: str, generation: int, stream: Stream) -> Incoming | None:
        transfer = self._transfers.get(transfer_id)
        if transfer is None or transfer.generation != generation:
            return None
        incoming = transfer.streams.get(stream)
        return None if incoming is None or incoming.end is not None else incoming

    def _touch(self, incoming: Incoming) -> None:
        now = self._clock()
        incoming.transfer.touched_at = now
        if incoming.first_at is None:
            incoming.first_at = now

    def _release(self, transfer: Transfer) -> None:
        """The anchor is complete: queue the ends that have come, and forget the transfer when nothing is left of it."""
        for stream in sorted(transfer.streams):
            end = transfer.streams[stream].end
            if end is not None:
                self._queues[stream].append(end)
                del transfer.streams[stream]
        if not transfer.streams:
            del self._transfers[transfer.transfer_id]
        self._news.notify_all()

    def _discard(self, transfer_id: str, generation: int, stream: Stream) -> None:
        kept: deque[Received | StreamEnd] = deque()
        for item in self._queues[stream]:
            if (item.transfer_id, item.generation) != (transfer_id, generation):
                kept.append(item)
            elif isinstance(item, Received):
                self._staged -= len(item.frame)
                self._dropped += 1
        self._queues[stream] = kept
