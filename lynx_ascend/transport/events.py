"""What the transport tells its users: received frames, ends, faults, peers that come and go, and its errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lynx_ascend.codec.config import Stream


class TransportError(RuntimeError):
    """The transport cannot do what was asked; the message names peer, port, stream or transfer."""


class TransferClosed(TransportError):
    """The transfer was cancelled, failed or complete when its source went on writing."""


class ProtocolError(TransportError):
    """Bytes from a peer that are no valid message, or a valid one at the wrong time. The connection is closed."""


@dataclass(frozen=True, slots=True)
class StreamStats:
    """What was sent of one stream.

    nbytes counts payload only; first_at and last_at are time.monotonic() seconds when the first and last piece
    were handed to the kernel (equal, and the time of the End, for a stream without frames).
    """

    frames: int
    nbytes: int
    first_at: float
    last_at: float


@dataclass(frozen=True, slots=True)
class Received:
    """One frame, complete, in the order of its stream. received_at: time.monotonic() seconds at its last byte."""

    transfer_id: str
    generation: int
    stream: Stream
    sequence: int
    frame: bytearray
    received_at: float


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """All frames of the stream have been returned. Times are time.monotonic() seconds of its first and last byte."""

    transfer_id: str
    generation: int
    stream: Stream
    frames: int
    nbytes: int
    first_at: float
    last_at: float


class FaultKind(StrEnum):
    """What went wrong with a stream: a word to count by, beside the reason for people."""

    CONNECTION = "connection"  # it could not be made, or was lost
    STALLED = "stalled"  # no byte for too long
    PEER = "peer"  # the sender gave the transfer up
    ENGINE = "engine"  # another engine answers at that address now
    PROTOCOL = "protocol"  # the sender broke a promise: order, size, totals
    SUPERSEDED = "superseded"  # by a newer generation


@dataclass(frozen=True, slots=True)
class StreamFault:
    """The stream will not complete; nothing more of it is returned."""

    transfer_id: str
    generation: int
    stream: Stream
    kind: FaultKind
    reason: str


Item = Received | StreamEnd | StreamFault


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """A connection is up. previous_engine_id differs from engine_id when the peer has restarted meanwhile."""

    host: str
    port: int
    stream: Stream
    engine_id: str
    previous_engine_id: str | None


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A connection failed or could not be made."""

    host: str
    port: int
    stream: Stream
    reason: str


PeerEvent = PeerConnected | PeerLost
