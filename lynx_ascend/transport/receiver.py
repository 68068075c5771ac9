"""The receiving side: pulls streams from senders and hands out what arrived, Anchor first, for the caller to drain."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport import messages as msg
from lynx_ascend.transport.events import FaultKind, Item, PeerConnected, PeerEvent, PeerLost, TransportError
from lynx_ascend.transport.peer import PeerConnection, Request
from lynx_ascend.transport.staging import Staging
from lynx_ascend.transport.tls import TlsConfig

logger = logging.getLogger(__name__)

Peer = tuple[str, int]


class StreamClient:
    """Pulls transfers from any number of senders.

    All methods are thread-safe and return at once, whatever the peers do; what goes wrong with a transfer comes out of
    `drain` as a StreamFault that names peer, port and stream.

    Args:
        engine_id: this receiver's name; unique among the receivers of a sender.
        on_event: told of connections made and lost, on the thread of the connection. Must not block.
        max_frame: cap in bytes of one frame, checked before its buffer is allocated.
        connect_timeout_s, connect_retries, retry_s: one attempt's limit, attempts after the first, pause between them.
        stall_s: a transfer without a byte on any stream for so long is failed. Must exceed the longest wait for a turn.
        tls: talk to senders with a certificate only, encrypted; None: in the clear.

    Raises:
        TransportError: a file of `tls` cannot be used.
    """

    def __init__(
        self,
        engine_id: str,
        on_event: Callable[[PeerEvent], None] | None = None,
        *,
        max_frame: int = 64 << 20,
        connect_timeout_s: float = 5.0,
        connect_retries: int = 2,
        retry_s: float = 0.2,
        stall_s: float = 30.0,
        tls: TlsConfig | None = None,
    ) -> None:
        self.engine_id = engine_id
        self.tls = None if tls is None else (tls.context(server=False), tls.name)
        self.max_frame = max_frame
        self.connect_timeout_s = connect_timeout_s
        self.connect_retries = connect_retries
        self.retry_s = retry_s
        self.staging = Staging()
        self._on_event = on_event
        self.stall_s = stall_s
        self._lock = threading.Lock()
        self._connections: dict[tuple[Peer, Stream], PeerConnection] = {}
        self._engines: dict[Peer, str] = {}  # the engine last met at each address
        self._closed = threading.Event()
        self._monitor = threading.Thread(target=self._watch, name="lynx-receive-monitor", daemon=True)
        self._monitor.start()

    def pull(
        self,
        peer: Peer,
        transfer_id: str,
        generation: int,
        stream: Stream,
        args: msg.Args,
        *,
        max_bytes: int,
        engine_id: str | None = None,
    ) -> None:
        """Ask a sender for one stream of a transfer. Its streams may be pulled in either order.

        Args:
            peer: host and port.
            generation: a newer one fails an older one that is not complete; a cancelled one cannot be pulled again.
            args: for the sender's source.
            max_bytes: cap on the stream's payload.
            engine_id: fail the transfer if the peer is now another engine.

        Raises:
            ValueError: the stream is under way already, or a newer generation of the transfer is; no such port; a
                transfer_id or generation that no message can name.
            TransportError: the client is closed, or the args do not fit a message.
        """
        self._begin(peer, transfer_id, generation, stream, max_bytes, engine_id, args)

    def expect(
        self,
        peer: Peer,
        transfer_id: str,
        generation: int,
        stream: Stream,
        *,
        max_bytes: int,
        engine_id: str | None = None,
    ) -> None:
        """Accept a stream that the sender pushes by itself, and connect for it. Arguments and errors as for `pull`."""
        self._begin(peer, transfer_id, generation, stream, max_bytes, engine_id, None)

    def cancel(self, transfer_id: str, generation: int) -> None:
        """Forget the transfer: nothing more of it is returned, staging is freed, the sender is told. Idempotent."""
        self._tell(self.staging.cancel(transfer_id, generation), transfer_id, generation)

    def decline(self, peer: Peer, transfer_id: str, *, engine_id: str | None = None) -> None:
        """Tell a sender that a transfer will not be pulled here, so that it need not keep what it has for it.

        Nothing is heard of it again: a peer that is not there, or is now another engine, keeps nothing for us.

        Raises:
            ValueError: no such port, or a transfer_id that no message can name. TransportError: the client is closed.
        """
        _check_port(peer)
        msg.check_transfer(transfer_id, 0)
        conn = self._connection((peer[0], peer[1]), Stream.ANCHOR)
        conn.send(Request(transfer_id, 0, msg.encode(msg.Cancel(transfer_id, 0)), engine_id))

    def drain(self, max_items: int | None = None, max_bytes: int | None = None) -> list[Item]:
        """What has arrived: faults, then all ANCHOR items, then RESIDUAL, then EXACT, each in order of arrival.

        Args:
            max_items, max_bytes: stop when so many items or payload bytes are taken; at least one item comes if there
                is one.
        """
        return self.staging.drain(max_items, max_bytes)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until `drain` has something to return; False after `timeout` seconds without."""
        return self.staging.wait(timeout)

    def staged_bytes(self) -> int:
        """Payload bytes received or being received, and not yet drained."""
        return self.staging.staged_bytes()

    def dropped_frames(self) -> int:
        """Frames that arrived for transfers that nobody wants (any more)."""
        return self.staging.dropped_frames()

    def close(self) -> None:
        """End all connections and threads. Transfers under way end with StreamFaults, which can still be drained.
        Waits for an attempt to connect that is under way, so at most about `connect_timeout_s`."""
        self._closed.set()
        with self._lock:
            connections = list(self._connections.values())
        for conn in connections:
            conn.close()
        for conn in connections:
            conn.join()
        self._monitor.join()

    # What connections call

    def on_connected(self, conn: PeerConnection, engine_id: str) -> None:
        """The handshake is done."""
        with self._lock:
            previous = self._engines.get((conn.host, conn.port))
            self._engines[conn.host, conn.port] = engine_id
        self._report(PeerConnected(conn.host, conn.port, conn.stream, engine_id, previous))

    def on_lost(self, conn: PeerConnection, reason: str) -> None:
        """The connection has ended: so have the transfers that need it."""
        with self._lock:
            key = (conn.host, conn.port), conn.stream
            if self._connections.get(key) is conn:
                del self._connections[key]
        for transfer in self.staging.carried_by(conn):
            lost = f"connection to {conn} lost: {reason}"
            self.fail(transfer.transfer_id, transfer.generation, FaultKind.CONNECTION, lost)
        self._report(PeerLost(conn.host, conn.port, conn.stream, reason))

    def fail(self, transfer_id: str, generation: int, kind: FaultKind, reason: str) -> None:
        """Turn a transfer into StreamFaults and tell its sender to stop."""
        self._tell(self.staging.fail(transfer_id, generation, kind, reason), transfer_id, generation)

    # Inside

    def _begin(
        self,
        peer: Peer,
        transfer_id: str,
        generation: int,
        stream: Stream,
        max_bytes: int,
        engine_id: str | None,
        args: msg.Args | None,
    ) -> None:
        _check_port(peer)
        msg.check_transfer(transfer_id, generation)
        data = b"" if args is None else msg.encode(msg.Pull(transfer_id, generation, stream, args))
        conn = self._connection((peer[0], peer[1]), stream)  # a list, as from JSON, will do too
        self.staging.begin(transfer_id, generation, stream, conn, max_bytes)
        refusal = conn.send(Request(transfer_id, generation, data, engine_id))
        if refusal is not None:
            self.fail(transfer_id, generation, *refusal)

    def _connection(self, peer: Peer, stream: Stream) -> PeerConnection:
        with self._lock:
            if self._closed.is_set():
                raise TransportError("the client is closed")
            conn = self._connections.get((peer, stream))
            if conn is None or conn.ended is not None:
                conn = PeerConnection(self, *peer, stream)
                try:
                    conn.start()
                except RuntimeError as error:  # no more threads
                    raise TransportError(f"cannot connect to {conn}: {error}") from error
                self._connections[peer, stream] = conn
            return conn

    def _tell(self, carriers: list[object], transfer_id: str, generation: int) -> None:
        for conn in dict.fromkeys(carriers):
            if isinstance(conn, PeerConnection):
                conn.send(Request(transfer_id, generation, msg.encode(msg.Cancel(transfer_id, generation))))

    def _report(self, event: PeerEvent) -> None:
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event failed")

    def _watch(self) -> None:
        while not self._closed.wait(min(0.5, self.stall_s / 4)):
            for transfer in self.staging.stalled(self.stall_s):
                streams = ", ".join(f"{i.carrier}" for i in transfer.streams.values() if i.end is None)
                reason = f"no progress for {self.stall_s} s; waiting for {streams or 'an anchor that was not pulled'}"
                self.fail(transfer.transfer_id, transfer.generation, FaultKind.STALLED, reason)


def _check_port(peer: Peer) -> None:
    if not 0 < peer[1] <= 65535:
        raise ValueError(f"port {peer[1]} of {peer[0]} is outside 1 .. 65535")
