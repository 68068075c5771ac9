"""The two threads of a StreamServer that touch sockets: one accepts and reads, one writes."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING

from lynx_ascend.transport import sockets
from lynx_ascend.transport.events import ProtocolError, TransportError
from lynx_ascend.transport.sendqueue import Connection, Outgoing
from lynx_ascend.transport.tls import SenderChannel, TlsError

if TYPE_CHECKING:
    from lynx_ascend.transport.sender import StreamServer

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
SWEEP_S = 0.5  # how often stalled peers are looked for
ACCEPT_PAUSE_S = 0.1  # after a failed accept (out of descriptors), so as not to spin


def listen(host: str, port: int) -> socket.socket:
    """A non-blocking listening socket.

    Raises:
        TransportError: names host, port and cause.
    """
    if not 0 <= port <= 65535:  # getaddrinfo would take it modulo 65536
        raise TransportError(f"cannot listen on {host}:{port}: the port is outside 0 .. 65535")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise TransportError(f"cannot listen on {host}:{port}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise TransportError(f"cannot listen on {host}:{port}: {error}") from error
    listener.setblocking(False)
    return listener


class _Loop(threading.Thread):
    """A daemon thread around a selector that other threads can wake."""

    def __init__(self, server: StreamServer, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._server = server
        self._selector = selectors.DefaultSelector()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)

    def select(self, timeout: float) -> list[Connection | None]:
        """The connections (None: the listener) that are ready, at most `timeout` seconds from now (inf: no limit)."""
        events = self._selector.select(None if math.isinf(timeout) else timeout)
        if any(key.fd == self._wake_fd for key, _ in events):
            os.eventfd_read(self._wake_fd)
        return [key.data for key, _ in events if key.fd != self._wake_fd]

    def signal(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """Wait for the thread, which sees `server.closing`, and free what it held."""
        self.signal()
        self.join()
        self._selector.close()
        os.close(self._wake_fd)


class ControlLoop(_Loop):
    """Accepts connections, reads control messages, notices peers that are gone."""

    def __init__(self, server: StreamServer, sender: SendLoop, listener: socket.socket) -> None:
        super().__init__(server, "lynx-send-control")
        self._sender = sender
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)
        self._count = 0

    def run(self) -> None:
        sweep_at = time.monotonic() + SWEEP_S
        while not self._server.closing:
            for conn in self.select(max(0.0, sweep_at - time.monotonic())):
                if conn is None:
                    self._accept()
                else:
                    self._read(conn)
            if time.monotonic() >= sweep_at:
                sweep_at = time.monotonic() + SWEEP_S
                for conn, reason in self._server.sweep():
                    self._drop(conn, reason)
        self._listener.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            logger.error("cannot accept on port %d: %s", self._server.port, error)
            time.sleep(ACCEPT_PAUSE_S)
            return
        if self._count >= MAX_CONNECTIONS:
            logger.error("%s refused: %d connections are open", sockets.address(sock), self._count)
            sock.close()
            return
        sock.setblocking(False)
        sockets.prepare(sock)
        tls = None if self._server.tls is None else SenderChannel(sock, self._server.tls)
        conn = Connection(sock, sockets.address(sock), time.monotonic(), tls=tls)
        with self._server.lock:
            self._server.queue.connections[conn] = None
        self._selector.register(sock, selectors.EVENT_READ, conn)
        self._count += 1

    def _read(self, conn: Connection) -> None:
        try:
            data = (conn.tls or conn.sock).recv(1 << 16)
            if not data:
                return self._drop(conn, "closed by the peer")
            conn.inbox.feed(data)
            while (message := conn.inbox.next()) is not None:
                self._server.handle(conn, message)
        except BlockingIOError:
            return
        except (ProtocolError, TlsError) as error:
            logger.error("%s on port %d: %s; connection closed", conn, self._server.port, error)
            if conn.tls is None or not conn.tls.refused:  # a refused one is left to close, until the sweep ends it
                self._drop(conn, str(error))
        except OSError as error:
            self._drop(conn, str(error))
        except Exception as error:  # such as no more threads: it ends this connection, never the server
            logger.exception("%s: cannot handle a message", conn)
            self._drop(conn, f"{type(error).__name__}: {error}")

    def _drop(self, conn: Connection, reason: str) -> None:
        """Forget the connection; the send loop closes its socket, which it may be writing to at this moment."""
        logger.info("connection of %s ended: %s", conn, reason)
        self._selector.unregister(conn.sock)
        self._count -= 1
        self._server.on_disconnect(conn, f"connection of {conn} ended: {reason}")
        self._sender.retire(conn)


class SendLoop(_Loop):
    """Writes what the queue picks, a piece at a time, and never waits for one receiver while another can take more."""

    def __init__(self, server: StreamServer) -> None:
        super().__init__(server, "lynx-send")
        self._retired: list[Connection] = []
        self._blocked: set[Connection] = set()
        self._asleep = False

    def wake(self) -> None:
        """The queue has changed. Cheap while the loop is busy anyway."""
        with self._server.lock:
            asleep, self._asleep = self._asleep, False
        if asleep:
            self.signal()

    def retire(self, conn: Connection) -> None:
        """Close this connection's socket when nothing is being written to it."""
        with self._server.lock:
            self._retired.append(conn)
        self.wake()

    def run(self) -> None:
        server = self._server
        while not server.closing:
            with server.lock:
                retired, self._retired = self._retired, []
                picked = server.queue.pick()
                self._asleep = isinstance(picked, float)
            for conn in retired:
                self._unblock(conn)
                conn.sock.close()
            if isinstance(picked, float):
                self._poll(0.0 if retired else picked)
            else:
                self._write(*picked)
                if self._blocked:
                    self._poll(0.0)

    def stop(self) -> None:
        """Wait for the thread and close all sockets, once the control loop has ended: it retires some to the last."""
        super().stop()
        for conn in [*self._retired, *self._server.queue.connections]:
            conn.sock.close()

    def _write(self, conn: Connection, out: Outgoing, limit: int) -> None:
        parts = out.piece(limit)
        wanted = sum(len(part) for part in parts)
        try:
            taken = (conn.tls or conn.sock).sendmsg(parts)
        except BlockingIOError:
            taken = 0
        except OSError as error:
            return self._break(conn, error)
        waits = taken < wanted or (conn.tls is not None and conn.tls.unsent)
        with self._server.lock:
            completed = self._server.queue.advance(conn, out, taken) if taken else None
            if taken:
                self._server.on_progress(completed)
            if waits:
                conn.blocked_at = time.monotonic()
        if waits:
            self._blocked.add(conn)
            self._selector.register(conn.sock, selectors.EVENT_WRITE, conn)

    def _poll(self, timeout: float) -> None:
        for conn in self.select(timeout):
            assert conn is not None
            try:
                if conn.tls is None or conn.tls.flush():
                    self._unblock(conn)
            except OSError as error:
                self._unblock(conn)
                self._break(conn, error)

    def _break(self, conn: Connection, error: OSError) -> None:
        """Nothing can be sent any more: the control loop reads the end of the connection and drops it."""
        logger.info("cannot send to %s: %s", conn, error)
        with contextlib.suppress(OSError):
            conn.sock.shutdown(socket.SHUT_RDWR)
        with self._server.lock:
            conn.blocked_at = time.monotonic()

    def _unblock(self, conn: Connection) -> None:
        if conn in self._blocked:
            self._blocked.discard(conn)
            self._selector.unregister(conn.sock)
            with self._server.lock:
                conn.blocked_at = None
