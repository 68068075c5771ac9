"""A TCP relay between a decode and a prefill instance that damages one stream: real sockets, real faults."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Literal

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport.messages import Hello, sender_buffer

Fault = Literal["flip", "cut", "stall", "none"]


class Relay:
    """Listens on a port of its own and forwards to `port`; `fault` strikes `stream` at byte `offset` to the receiver.

    flip inverts one bit of one byte; cut closes the connection; stall forwards nothing more.
    """

    def __init__(self, port: int, stream: Stream = Stream.ANCHOR, fault: Fault = "none", offset: int = 0) -> None:
        self._target, self._stream, self._fault, self._offset = port, stream, fault, offset
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.struck = threading.Event()
        self._sockets: list[socket.socket] = []
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):  # close alone would not end a recv that another thread is in
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                receiver, _ = self._listener.accept()
            except OSError:
                return
            sender = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [receiver, sender]
            threading.Thread(target=self._serve, args=(receiver, sender), daemon=True).start()

    def _serve(self, receiver: socket.socket, sender: socket.socket) -> None:
        buffer, hello = sender_buffer(), None
        while hello is None:
            data = receiver.recv(4096)
            if not data:
                return
            sender.sendall(data)
            buffer.feed(data)
            hello = buffer.next()
        assert isinstance(hello, Hello)
        threading.Thread(target=self._forward, args=(receiver, sender), daemon=True).start()
        self._forward(sender, receiver, damage=hello.stream is self._stream)

    def _forward(self, source: socket.socket, target: socket.socket, damage: bool = False) -> None:
        seen = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                at = self._offset - seen
                seen += len(data)
                if damage and not self.struck.is_set() and self._fault != "none" and at < len(data):
                    self.struck.set()
                    if self._fault != "flip":
                        target.sendall(data[:at])
                    if self._fault == "cut":
                        break
                    if self._fault == "stall":
                        while not self._closed.is_set():
                            time.sleep(0.05)
                        break
                    data = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
