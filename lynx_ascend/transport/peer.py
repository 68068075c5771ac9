"""A receiver's connection to one sender for one stream: connects, shakes hands, reads frames into their buffers."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport import messages as msg
from lynx_ascend.transport import sockets
from lynx_ascend.transport.events import FaultKind, ProtocolError
from lynx_ascend.transport.staging import Rejected, Slot
from lynx_ascend.transport.tls import ReceiverChannel, TlsError

if TYPE_CHECKING:
    from lynx_ascend.transport.receiver import StreamClient

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S = 5  # a peer that takes no control message for so long is gone
READ_AHEAD = 4096  # bytes read at once while a message is awaited: its payload's start may be among them


Refusal = tuple[FaultKind, str]
Channel = socket.socket | ReceiverChannel


@dataclass(frozen=True, slots=True)
class Request:
    """A control message about a transfer. data: as encoded, b"" if only `engine_id` is to be checked (None: any)."""

    transfer_id: str
    generation: int
    data: bytes
    engine_id: str | None = None


class PeerConnection(threading.Thread):
    """One connection and the thread that reads it. It lives until it fails or is closed; it does not reconnect."""

    def __init__(self, client: StreamClient, host: str, port: int, stream: Stream) -> None:
        super().__init__(name=f"lynx-receive-{stream.name.lower()}", daemon=True)
        self.host, self.port, self.stream = host, port, stream
        self.engine_id: str | None = None  # known after the handshake
        self.ended: str | None = None  # why it ended
        self._client = client
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._sock: socket.socket | None = None
        self._channel: Channel | None = None  # where bytes go through: the socket, or TLS over it
        self._ready = False  # the handshake is done and what was said before it is sent
        self._early: list[Request] = []
        self._inbox = msg.receiver_buffer()
        self._scratch = memoryview(bytearray(READ_AHEAD))
        self._skip = memoryview(bytearray(64 << 10))

    def __str__(self) -> str:
        return f"{self.host}:{self.port} ({self.stream.name.lower()})"

    def send(self, request: Request) -> Refusal | None:
        """Send a request, after the handshake if that is still under way. Returns why it cannot be served, if so; a
        failure that shows later comes as `on_lost` or `fail` of the client."""
        with self._lock:
            if self.ended is not None:
                return FaultKind.CONNECTION, f"connection to {self} lost: {self.ended}"
            if not self._ready:
                self._early.append(request)
                return None
            return self._send_now(request)

    def close(self) -> None:
        """End the connection; the thread ends soon after."""
        self._closing.set()
        with self._lock:
            if self._sock is not None:
                _shutdown(self._sock)

    def run(self) -> None:
        reason = "closed"
        try:
            sock = self._connect()
            if sock is not None:
                channel = self._channel = self._secured(sock)
                self._handshake(sock, channel)
                while True:
                    self._receive(channel)
        except (ProtocolError, TlsError) as error:
            logger.error("%s: %s; connection closed", self, error)
            reason = str(error)
        except OSError as error:
            reason = str(error)
        except Exception as error:  # a defect here must surface as a fault of the transfers, not as a silent stall
            logger.exception("%s: the reader failed", self)
            reason = f"{type(error).__name__}: {error}"
        if self._closing.is_set():
            reason = "closed"
        with self._lock:
            self.ended = reason
            if self._sock is not None:
                self._sock.close()
        self._client.on_lost(self, reason)

    def _connect(self) -> socket.socket | None:
        """Connect, with the client's bounded retries. None: closed meanwhile."""
        client = self._client
        for attempt in range(1 + client.connect_retries):
            if self._closing.wait(0 if attempt == 0 else client.retry_s):
                return None
            try:
                sock = socket.create_connection((self.host, self.port), client.connect_timeout_s)
                break
            except OSError as error:
                failure = error
                logger.info("%s: attempt %d to connect failed: %s", self, attempt + 1, error)
        else:
            raise OSError(f"no connection in {1 + client.connect_retries} attempts: {failure}") from failure
        sockets.prepare(sock)
        sockets.mark(sock, self.stream)
        with self._lock:
            self._sock = sock
        return None if self._closing.is_set() else sock

    def _secured(self, sock: socket.socket) -> Channel:
        if self._client.tls is None:
            return sock
        context, name = self._client.tls
        return ReceiverChannel(sock, context, name, self._client.connect_timeout_s)

    def _handshake(self, sock: socket.socket, channel: Channel) -> None:
        hello = msg.Hello(msg.PROTOCOL_VERSION, self._client.engine_id, self.stream)
        channel.sendall(msg.encode(hello))  # the socket still has the connect timeout
        reply = self._next_message(channel)
        if not isinstance(reply, msg.HelloReply):
            raise ProtocolError(f"{type(reply).__name__} instead of a HelloReply")
        if reply.version != msg.PROTOCOL_VERSION:
            raise ProtocolError(f"the peer speaks protocol version {reply.version}, this is {msg.PROTOCOL_VERSION}")
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_TIMEOUT_S))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(2 * self._client.stall_s))
        self.engine_id = reply.engine_id
        self._client.on_connected(self, reply.engine_id)
        with self._lock:
            refused = [(request, no) for request in self._early if (no := self._send_now(request)) is not None]
            self._early.clear()
            self._ready = True
        for request, refusal in refused:
            self._client.fail(request.transfer_id, request.generation, *refusal)

    def _receive(self, channel: Channel) -> None:
        """Handle one message and the payload that follows it."""
        staging = self._client.staging
        message = self._next_message(channel)
        match message:
            case msg.FrameHead():
                self._receive_frame(channel, message)
            case msg.End(transfer_id, generation, frames, nbytes):
                try:
                    staging.end(transfer_id, generation, self.stream, frames, nbytes, self)
                except Rejected as rejected:
                    self._client.fail(transfer_id, generation, FaultKind.PROTOCOL, f"{self}: {rejected}")
            case msg.Fault(transfer_id, generation, reason):
                if staging.brings(self, transfer_id, generation):
                    self._client.fail(transfer_id, generation, FaultKind.PEER, f"{self}: {reason}")
            case _:
                raise ProtocolError("second HelloReply")

    def _receive_frame(self, channel: Channel, head: msg.FrameHead) -> None:
        staging, limit = self._client.staging, self._client.max_frame
        if head.nbytes > limit:
            raise ProtocolError(f"frame of {head.nbytes} bytes exceeds the cap of {limit}")
        slot: Slot | None = None
        try:
            slot = staging.open_frame(head.transfer_id, head.generation, self.stream, head.sequence, head.nbytes, self)
        except Rejected as rejected:
            self._client.fail(head.transfer_id, head.generation, FaultKind.PROTOCOL, f"{self}: {rejected}")
        got = self._inbox.take(head.nbytes)
        if slot is None:
            staging.count_dropped()
            left = head.nbytes - len(got)
            while left:
                left -= self._read(channel, self._skip[:left])
            return
        try:
            view = memoryview(slot.frame)
            view[: len(got)] = got
            filled = len(got)
            while filled < head.nbytes:
                filled += self._read(channel, view[filled:])
                staging.touch(slot)
        except BaseException:
            staging.abandon(slot)
            raise
        staging.commit(slot)

    def _next_message(self, channel: Channel) -> msg.ToReceiver:
        while (message := self._inbox.next()) is None:
            self._inbox.feed(self._scratch[: self._read(channel, self._scratch, idle=not self._inbox.pending())])
        return message

    def _read(self, channel: Channel, into: memoryview, idle: bool = False) -> int:
        """Wait for bytes: for ever between messages (`idle`). Within one, a peer that is silent for twice `stall_s` is
        gone, and the frame's memory must not wait for it; unless cancelled, its transfer has failed by itself before.
        """
        while True:
            try:
                nbytes = channel.recv_into(into)
            except BlockingIOError:  # SO_RCVTIMEO is over
                if idle:
                    continue
                raise OSError(f"silent for {2 * self._client.stall_s:g} s in the middle of a message") from None
            if not nbytes:
                raise OSError("closed by the peer")
            return nbytes

    def _send_now(self, request: Request) -> Refusal | None:
        if request.engine_id not in (None, self.engine_id):
            return FaultKind.ENGINE, f"{self} is now engine {self.engine_id!r}, not {request.engine_id!r}"
        assert self._sock is not None and self._channel is not None
        try:
            self._channel.sendall(request.data)
        except OSError:
            _shutdown(self._sock)  # the reader sees the end and reports the loss
        return None


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, max(int((seconds - whole) * 1e6), 0 if whole else 1))  # 0, 0 would mean for ever


def _shutdown(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # not connected any more: nothing left to end
