"""What the transport tests share: a scripted source, a collector of drained items, raw sockets that misbehave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport import Item, Received, Sink, StreamClient, StreamEnd, StreamFault, StreamStats
from lynx_ascend.transport import messages as msg

ANCHOR, RESIDUAL = Stream.ANCHOR, Stream.RESIDUAL
DEADLINE_S = 10.0

Key = tuple[str, int, Stream]


@dataclass
class ScriptedSource:
    """Writes the frames that `script` gives for (transfer_id, stream) and records what the server tells it."""

    script: Callable[[str, Stream], Iterable[bytes]]
    limits: dict[str, float] = field(default_factory=dict)
    opened: list[Key] = field(default_factory=list)
    args: list[object] = field(default_factory=list)
    sent_stats: dict[Key, list[StreamStats]] = field(default_factory=dict)
    cancelled_transfers: list[tuple[str, int]] = field(default_factory=list)

    def open(self, transfer_id: str, generation: int, stream: Stream, args: msg.Args, sink: Sink) -> None:
        self.opened.append((transfer_id, generation, stream))
        self.args.append(args)
        if transfer_id in self.limits:
            sink.rate_limit(self.limits[transfer_id])
        for frame in self.script(transfer_id, stream):
            sink.put(stream, frame)
        sink.close(stream)

    def sent(self, transfer_id: str, generation: int, stream: Stream, stats: StreamStats) -> None:
        self.sent_stats.setdefault((transfer_id, generation, stream), []).append(stats)

    def cancelled(self, transfer_id: str, generation: int) -> None:
        self.cancelled_transfers.append((transfer_id, generation))


def eventually(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fail the test if it does not come true."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.002)


def collect(client: StreamClient, finals: int, deadline_s: float = DEADLINE_S) -> list[Item]:
    """Drain until so many StreamEnd and StreamFault items have come."""
    items: list[Item] = []
    end = time.monotonic() + deadline_s
    while sum(not isinstance(item, Received) for item in items) < finals:
        assert time.monotonic() < end, f"only {[i for i in items if not isinstance(i, Received)]} in {deadline_s} s"
        client.wait(0.1)
        items += client.drain()
    return items


def frames_of(items: list[Item], transfer_id: str, stream: Stream) -> list[bytes]:
    """The frames of one stream, having checked that they are in sequence."""
    received = [i for i in items if isinstance(i, Received) and (i.transfer_id, i.stream) == (transfer_id, stream)]
    assert [i.sequence for i in received] == list(range(len(received)))
    return [bytes(i.frame) for i in received]


def end_of(items: list[Item], transfer_id: str, stream: Stream) -> StreamEnd:
    (end,) = [i for i in items if isinstance(i, StreamEnd) and (i.transfer_id, i.stream) == (transfer_id, stream)]
    return end


def faults_of(items: list[Item]) -> dict[tuple[str, Stream], str]:
    return {(i.transfer_id, i.stream): i.reason for i in items if isinstance(i, StreamFault)}


class RawReceiver:
    """A hand-driven receiver: says Hello, and then only what the test tells it to."""

    def __init__(self, port: int, engine_id: str, stream: Stream, version: int = msg.PROTOCOL_VERSION) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self.inbox = msg.receiver_buffer()
        self.say(msg.Hello(version, engine_id, stream))

    def say(self, message: msg.Message) -> None:
        self.sock.sendall(msg.encode(message))

    def hear(self) -> msg.ToReceiver | None:
        """The next message, its payload read and discarded; None when the sender has closed the connection."""
        message = self._next()
        left = message.nbytes if isinstance(message, msg.FrameHead) else 0
        while left:
            left -= len(self.inbox.take(left)) or len(self.sock.recv(left))
        return message

    def _next(self) -> msg.ToReceiver | None:
        while (message := self.inbox.next()) is None:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.inbox.feed(data)
        return message


class RawSender:
    """A hand-driven sender for one stream: accepts, answers the Hello, and then plays `script(sock, pull)` for each
    message that follows."""

    def __init__(self, script: Callable[[socket.socket, msg.ToSender], None], reply: bytes | None = None) -> None:
        self._script = script
        self._reply = msg.encode(msg.HelloReply(msg.PROTOCOL_VERSION, "raw")) if reply is None else reply
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard: list[msg.ToSender] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        with sock:
            inbox = msg.sender_buffer()
            try:
                while data := sock.recv(1 << 16):
                    inbox.feed(data)
                    while (message := inbox.next()) is not None:
                        self.heard.append(message)
                        if isinstance(message, msg.Hello):
                            sock.sendall(self._reply)
                        else:
                            self._script(sock, message)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the client did not close its connection"
