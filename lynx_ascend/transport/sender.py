"""The sending side: serves pulls from a source and sends by strict priority, one connection per stream and peer."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport import messages as msg
from lynx_ascend.transport import sockets
from lynx_ascend.transport.events import ProtocolError, TransferClosed, TransportError
from lynx_ascend.transport.sender_io import ControlLoop, SendLoop, listen
from lynx_ascend.transport.sendqueue import Connection, Lane, SendQueue, Transfer
from lynx_ascend.transport.shaper import TokenBucket
from lynx_ascend.transport.source import Frame, Sink, Source
from lynx_ascend.transport.tls import TlsConfig

logger = logging.getLogger(__name__)

TOMBSTONES = 4096  # cancelled transfers that are remembered, so that a Pull which arrives late is not served
MAX_PULLS = 1024  # calls of Source.open that may run at once


class StreamServer:
    """Serves transfers to any number of receivers.

    Args:
        host, port: where to listen; port 0 picks one (see `port`).
        source: what produces the frames.
        rate: bytes per second of the emulated link that all connections share; None is unlimited.
        engine_id: the name told to receivers. A restarted server has another one.
        ageing_s: after so long without a turn, a frame of a later stream goes as if it were an Anchor frame.
        anchor_window: bytes of a transfer's ANCHOR stream that may be queued before its source waits.
        stall_s: a peer that takes nothing for so long, or never pulls what waits for it, is given up.
        tls: serve only peers with a certificate, encrypted; None: whoever connects, in the clear.

    Raises:
        TransportError: the address cannot be listened on; names host and port. Or a file of `tls`.
        ValueError: rate is not positive.
    """

    def __init__(
        self,
        host: str,
        port: int,
        source: Source,
        rate: float | None = None,
        *,
        engine_id: str,
        ageing_s: float = 0.25,
        anchor_window: int = 4 << 20,
        stall_s: float = 30.0,
        tls: TlsConfig | None = None,
    ) -> None:
        self.engine_id = engine_id
        self.tls = None if tls is None else tls.context(server=True)
        self.stall_s = stall_s
        self.lock = threading.RLock()
        self.queue = SendQueue(TokenBucket(rate), ageing_s, time.monotonic)
        self.closing = False
        self._source = source
        self._anchor_window = anchor_window
        self._space = threading.Condition(self.lock)
        self._transfers: dict[tuple[str, str], Transfer] = {}
        self._cancelled: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        self._workers: set[threading.Thread] = set()
        self._callbacks = ThreadPoolExecutor(1, "lynx-send-callback")
        listener = listen(host, port)
        self.host, self.port = listener.getsockname()[:2]
        self._sender = SendLoop(self)
        self._control = ControlLoop(self, self._sender, listener)
        self._sender.start()
        self._control.start()

    # What users call

    def set_rate(self, rate: float | None) -> None:
        """Change the link's rate (bytes per second, None is unlimited) from now on."""
        with self.lock:
            self.queue.link.set_rate(rate)
        self._sender.wake()

    def queued_bytes(self) -> int:
        """Bytes of frames that are queued and not yet with the kernel, message heads included."""
        with self.lock:
            return self.queue.queued

    def push(
        self, peer_engine_id: str, transfer_id: str, generation: int, stream: Stream, frames: Iterable[Frame]
    ) -> None:
        """Send a whole stream over an already connected peer's connection, without a Pull. The peer must expect it.
        Returns when all is queued; an Anchor stream waits for room as `Sink.put` does.

        Raises:
            TransportError: that peer has no connection for that stream, or has a newer generation of the transfer.
            TransferClosed: the transfer was cancelled meanwhile, or has sent this stream already.
            ValueError: a transfer_id or generation that no message can name.
        """
        msg.check_transfer(transfer_id, generation)
        with self.lock:
            if self.closing:
                raise TransportError("the server is closed")
            conns = [c for c in self.queue.connections if (c.engine_id, c.stream) == (peer_engine_id, stream)]
            if not conns:
                raise TransportError(f"engine {peer_engine_id!r} has no {stream.name.lower()} connection to push over")
            transfer = self._open_transfer(peer_engine_id, transfer_id, generation)
            if transfer is None:
                raise TransportError(f"transfer {transfer_id!r} generation {generation} is stale")
            lane = transfer.lane(stream)
            if lane.conn is None:
                self.queue.bind(lane, conns[-1])
        try:
            for frame in frames:
                self.put(transfer, stream, frame)
            self.close_stream(transfer, stream)
        except Exception as error:
            self.fail(transfer, f"{type(error).__name__}: {error}")
            raise

    def close(self) -> None:
        """Stop serving: running transfers are cancelled, threads and sockets end. Idempotent."""
        with self.lock:
            if self.closing:
                return
            self.closing = True
            for transfer in list(self._transfers.values()):
                self._abort(transfer, "the sender is closing", tell_source=True)
            workers = list(self._workers)
        self._control.stop()
        self._sender.stop()
        for worker in workers:
            worker.join(5.0)
            if worker.is_alive():
                logger.warning("%s still runs: its source did not return", worker.name)
        self._callbacks.shutdown(wait=True)

    # What sinks call

    def put(self, transfer: Transfer, stream: Stream, frame: Frame) -> None:
        """See Sink.put."""
        payload = memoryview(frame).cast("B")
        with self.lock:
            lane = self._writable(transfer, stream)
            while stream is Stream.ANCHOR and lane.queued > self._anchor_window:
                self._space.wait()
                self._writable(transfer, stream)
            head = msg.FrameHead(transfer.transfer_id, transfer.generation, lane.frames, len(payload))
            self.queue.push(lane, msg.encode(head), payload)
            lane.frames += 1
            lane.nbytes += len(payload)
        self._sender.wake()

    def close_stream(self, transfer: Transfer, stream: Stream) -> None:
        """See Sink.close."""
        with self.lock:
            if (lane := transfer.lanes.get(stream)) is not None and lane.closed:
                return
            lane = self._writable(transfer, stream)
            end = msg.End(transfer.transfer_id, transfer.generation, lane.frames, lane.nbytes)
            self.queue.push(lane, msg.encode(end), memoryview(b""), is_end=True)
            lane.closed = True
        self._sender.wake()

    def fail(self, transfer: Transfer, reason: str) -> None:
        """See Sink.fail."""
        with self.lock:
            self._abort(transfer, reason, tell_source=False)

    def limit(self, transfer: Transfer, bytes_per_s: float | None) -> None:
        """See Sink.rate_limit."""
        with self.lock:
            transfer.bucket = None if bytes_per_s is None else TokenBucket(bytes_per_s)
        self._sender.wake()

    # What the loops call

    def handle(self, conn: Connection, message: msg.ToSender) -> None:
        """Act on a message from a receiver.

        Raises:
            ProtocolError: the message is not valid at this point.
        """
        with self.lock:
            if self.closing:
                return  # nothing new may start that close() would not see
            match message:
                case msg.Hello():
                    self._on_hello(conn, message)
                case _ if conn.engine_id is None:
                    raise ProtocolError(f"{type(message).__name__} before a Hello of version {msg.PROTOCOL_VERSION}")
                case msg.Pull():
                    self._on_pull(conn, conn.engine_id, message)
                case msg.Cancel():
                    self._on_cancel(conn.engine_id, message)

    def on_disconnect(self, conn: Connection, reason: str) -> None:
        """A connection is gone: so are the transfers that had not finished on it."""
        with self.lock:
            self.queue.disconnect(conn)
            for transfer in list(self._transfers.values()):
                if any(lane.conn is conn and not lane.done for lane in transfer.lanes.values()):
                    self._abort(transfer, reason, tell_source=True)

    def on_progress(self, completed: Lane | None) -> None:
        """The kernel took bytes; `completed` is a stream whose last byte was among them."""
        self._space.notify_all()
        if completed is not None:
            t, stats = completed.transfer, completed.stats(time.monotonic())
            self._callback(self._source.sent, t.transfer_id, t.generation, completed.stream, stats)
            self._forget_if_finished(t)

    def sweep(self) -> list[tuple[Connection, str]]:
        """Give up what nobody takes; returns connections to close and why."""
        now = time.monotonic()
        with self.lock:
            for t in list(self._transfers.values()):
                waiting = [lane for lane in t.lanes.values() if lane.waiting]
                if waiting and all(lane.conn is None for lane in waiting) and now - t.touched_at > self.stall_s:
                    self._abort(t, f"not pulled for {self.stall_s} s", tell_source=True)
            stalled = [c for c in self.queue.connections if c.blocked_at and now - c.blocked_at > self.stall_s]
            silent = [c for c in self.queue.connections if c.engine_id is None and now - c.accepted_at > self.stall_s]
        reasons = dict.fromkeys(stalled, f"took no byte for {self.stall_s} s")
        reasons |= dict.fromkeys(silent, f"no valid Hello within {self.stall_s} s")
        return list(reasons.items())

    # Inside, with the lock held

    def _on_hello(self, conn: Connection, hello: msg.Hello) -> None:
        if conn.engine_id is not None:
            raise ProtocolError("second Hello")
        if hello.version == msg.PROTOCOL_VERSION:
            conn.engine_id, conn.stream = hello.engine_id, hello.stream
            sockets.mark(conn.sock, hello.stream)
        else:
            logger.error("%s speaks protocol version %d, this is %d", conn, hello.version, msg.PROTOCOL_VERSION)
        self.queue.push_control(conn, msg.encode(msg.HelloReply(msg.PROTOCOL_VERSION, self.engine_id)))
        self._sender.wake()

    def _on_pull(self, conn: Connection, engine_id: str, pull: msg.Pull) -> None:
        if pull.stream is not conn.stream:
            raise ProtocolError(f"Pull of the {pull.stream.name.lower()} stream on this connection")
        reason = None
        if (engine_id, pull.transfer_id, pull.generation) in self._cancelled:
            reason = "was cancelled"
        elif len(self._workers) >= MAX_PULLS:
            reason = f"refused: {MAX_PULLS} pulls are running"
        elif (transfer := self._open_transfer(engine_id, pull.transfer_id, pull.generation)) is None:
            reason = "is stale"
        elif transfer.lane(pull.stream).conn is not None:
            logger.warning("%s pulled %s twice: ignored", conn, transfer)
            return
        else:
            self.queue.bind(transfer.lane(pull.stream), conn)
            self._sender.wake()
            transfer.writers += 1
            worker = threading.Thread(target=self._serve, args=(transfer, pull), name="lynx-source", daemon=True)
            self._workers.add(worker)
            worker.start()
        if reason is not None:
            self._send_fault(conn, pull.transfer_id, pull.generation, f"pull {reason}")

    def _on_cancel(self, engine_id: str, cancel: msg.Cancel) -> None:
        if (engine_id, cancel.transfer_id, cancel.generation) in self._cancelled:
            return
        self._cancelled[engine_id, cancel.transfer_id, cancel.generation] = None
        if len(self._cancelled) > TOMBSTONES:
            self._cancelled.popitem(last=False)
        transfer = self._transfers.get((engine_id, cancel.transfer_id))
        if transfer is None:  # never pulled, or over
            self._callback(self._source.cancelled, cancel.transfer_id, cancel.generation)
        elif transfer.generation == cancel.generation:
            self._abort(transfer, "cancelled by the receiver", tell_source=True, tell_peer=False)

    def _open_transfer(self, engine_id: str, transfer_id: str, generation: int) -> Transfer | None:
        """The live transfer of this generation, made if need be; supersedes an older one. None: a newer one lives."""
        key = engine_id, transfer_id
        live = self._transfers.get(key)
        if live is not None and live.generation > generation:
            return None
        if live is not None and live.generation < generation:
            self._abort(live, f"superseded by generation {generation}", tell_source=True)
            live = None
        if live is None:
            live = self._transfers[key] = Transfer(engine_id, transfer_id, generation, time.monotonic())
        return live

    def _writable(self, transfer: Transfer, stream: Stream) -> Lane:
        lane = transfer.lane(stream) if transfer.ended is None else None
        if lane is None or lane.closed:
            raise TransferClosed(f"{transfer}, {stream.name.lower()}: {transfer.ended or 'the stream is closed'}")
        return lane

    def _abort(self, transfer: Transfer, reason: str, *, tell_source: bool, tell_peer: bool = True) -> None:
        if transfer.ended is not None:
            return
        transfer.ended = reason
        del self._transfers[transfer.engine_id, transfer.transfer_id]
        self.queue.drop(transfer)
        self._space.notify_all()
        logger.info("%s to %s ended: %s", transfer, transfer.engine_id, reason)
        for lane in transfer.lanes.values():
            conn = lane.conn
            if tell_peer and conn is not None and conn in self.queue.connections and not lane.done:
                self._send_fault(conn, transfer.transfer_id, transfer.generation, reason)
        if tell_source:
            self._callback(self._source.cancelled, transfer.transfer_id, transfer.generation)

    def _forget_if_finished(self, transfer: Transfer) -> None:
        if transfer.finished and transfer.ended is None:
            transfer.ended = "complete"
            del self._transfers[transfer.engine_id, transfer.transfer_id]

    def _send_fault(self, conn: Connection, transfer_id: str, generation: int, reason: str) -> None:
        self.queue.push_control(conn, msg.encode(msg.Fault(transfer_id, generation, reason[: msg.MAX_REASON])))
        self._sender.wake()

    def _serve(self, transfer: Transfer, pull: msg.Pull) -> None:
        """Body of the thread that runs the source for one pull."""
        try:
            self._source.open(pull.transfer_id, pull.generation, pull.stream, pull.args, Sink(self, transfer))
        except TransferClosed as closed:
            self.fail(transfer, str(closed))  # does nothing if that is why the source stopped
        except Exception as error:  # whatever a source raises ends its transfer, never the server
            logger.exception("%s to %s: its source failed", transfer, transfer.engine_id)
            self.fail(transfer, f"{type(error).__name__}: {error}")
        with self.lock:
            transfer.writers -= 1
            self._forget_if_finished(transfer)
            self._workers.discard(threading.current_thread())

    def _callback(self, function: Callable[..., None], *args: object) -> None:
        def call() -> None:
            try:
                function(*args)
            except Exception:
                logger.exception("callback of the source failed")

        self._callbacks.submit(call)
