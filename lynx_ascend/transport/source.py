"""The sender's two faces to the code that produces frames: what a source must offer, and the sink it writes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport.events import StreamStats
from lynx_ascend.transport.messages import Args

if TYPE_CHECKING:
    from lynx_ascend.transport.sender import StreamServer
    from lynx_ascend.transport.sendqueue import Transfer

Frame = bytes | bytearray | memoryview


class Source(Protocol):
    """Produces the frames that peers pull. Its methods are called from threads of the server, never from its I/O."""

    def open(self, transfer_id: str, generation: int, stream: Stream, args: Args, sink: Sink) -> None:
        """A peer pulled `stream`. Called on a thread of its own: encode here, or hand the sink to another thread.

        The streams of a transfer share one sink and may be pulled in either order; one call may write any of them (what
        has not been pulled yet waits), and a call that finds its stream already written just returns. Each stream ends
        with `sink.close(stream)`. An exception fails the transfer with its text.
        """

    def sent(self, transfer_id: str, generation: int, stream: Stream, stats: StreamStats) -> None:
        """The last byte of the stream is with the kernel. Exactly once for each completed stream."""

    def cancelled(self, transfer_id: str, generation: int) -> None:
        """The peer cancelled or is gone: stop encoding, free what is kept.

        Also of a transfer that was never pulled, and will not be, or that is over.
        """


class Sink:
    """Where a source writes the frames of one transfer. Thread-safe."""

    def __init__(self, server: StreamServer, transfer: Transfer) -> None:
        self._server = server
        self._transfer = transfer

    def put(self, stream: Stream, frame: Frame) -> None:
        """Queue one frame, which must not be changed afterwards. Blocks while more than the server's `anchor_window`
        bytes of the transfer's ANCHOR stream are queued; other streams never block.

        Raises:
            TransferClosed: the transfer is cancelled, failed or complete, or the stream is closed.
        """
        self._server.put(self._transfer, stream, frame)

    def close(self, stream: Stream) -> None:
        """All frames of the stream have been put. Closing twice is harmless.

        Raises:
            TransferClosed: as for `put`.
        """
        self._server.close_stream(self._transfer, stream)

    def fail(self, reason: str) -> None:
        """Give the transfer up: queued frames are dropped and the peer is told the reason."""
        self._server.fail(self._transfer, reason)

    def rate_limit(self, bytes_per_s: float | None) -> None:
        """Give this transfer a link of its own, besides the server's. None removes it."""
        self._server.limit(self._transfer, bytes_per_s)
