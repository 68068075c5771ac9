"""Split-stream transport over TCP: opaque frames of several streams, Anchor first (docs/transport.md)."""

from lynx_ascend.transport.events import (
    FaultKind,
    Item,
    PeerConnected,
    PeerEvent,
    PeerLost,
    ProtocolError,
    Received,
    StreamEnd,
    StreamFault,
    StreamStats,
    TransferClosed,
    TransportError,
)
from lynx_ascend.transport.receiver import StreamClient
from lynx_ascend.transport.sender import StreamServer
from lynx_ascend.transport.shaper import TokenBucket
from lynx_ascend.transport.source import Sink, Source

__all__ = [
    "FaultKind",
    "Item",
    "PeerConnected",
    "PeerEvent",
    "PeerLost",
    "ProtocolError",
    "Received",
    "Sink",
    "Source",
    "StreamClient",
    "StreamEnd",
    "StreamFault",
    "StreamServer",
    "StreamStats",
    "TokenBucket",
    "TransferClosed",
    "TransportError",
]
