"""Mutual TLS 1.3 for stream connections: the files, the contexts, and a channel for each side of a connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lynx_ascend.transport.events import TransportError

_RAW = 256 << 10  # bytes read from the kernel at once
_RECORD = b"\x16\x03"  # how a TLS client's first bytes begin
_NO_TLS = b"\x15\x03\x03\x00\x02\x02\x46"  # a fatal alert, protocol_version: what a peer without TLS is answered


class TlsError(OSError):
    """The peer cannot be trusted, or does not trust us, or speaks no TLS. The message says which."""


@dataclass(frozen=True)
class TlsConfig:
    """PEM files of one engine, the same for both roles.

    Attributes:
        cert, key: this engine's certificate (with what lies between it and the CA) and its private key, unencrypted.
        ca: the CAs whose certificates are accepted from peers. Whoever holds one may fetch any prompt: it is for these
            engines alone.
        name: DNS name that a sender's certificate must hold; None: the CA's word is enough.
    """

    cert: str
    key: str
    ca: str
    name: str | None = None

    def context(self, *, server: bool) -> ssl.SSLContext:
        """For the sender's side (`server`) or the receiver's.

        Raises:
            TransportError: a file is missing or unusable; names it.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = not server and self.name is not None
        context.verify_mode = ssl.CERT_REQUIRED
        if server:
            context.num_tickets = 0  # connections live long: nothing is resumed
        what = f"tls_cert {self.cert}, tls_key {self.key}"
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
            what = f"tls_ca {self.ca}"
            context.load_verify_locations(self.ca)
        except (OSError, ValueError) as error:
            raise TransportError(
                f"{what}: {error.strerror or error if isinstance(error, OSError) else error}"
            ) from None
        return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one without a passphrase")


class _Channel:
    """TLS over a connected socket. The engine's state is guarded by a lock that is never held during I/O, so that one
    thread may send while another one waits for bytes."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool, name: str | None = None) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server, server_hostname=name)

    def _shake(self) -> bool:
        """Goes on with the handshake; True when it is done. The lock is held.

        Raises:
            TlsError.
        """
        try:
            self._tls.do_handshake()
            return True
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsError(_explain(error)) from None

    def _encrypt(self, parts: Sequence[bytes | memoryview]) -> bytes:
        with self._lock:
            for part in parts:
                if part:
                    self._tls.write(part)
            return self._outgoing.read()


class ReceiverChannel(_Channel):
    """The receiver's side, over a blocking socket.

    Raises (on creation):
        TlsError: the handshake failed.
        OSError: the connection did, or `timeout` seconds were over.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str | None, timeout: float) -> None:
        super().__init__(sock, context, server=False, name=name)
        self._raw = memoryview(bytearray(_RAW))
        until = time.monotonic() + timeout
        done = False
        while not done:
            try:
                with self._lock:
                    done = self._shake()
            finally:  # on failure the peer is told why
                with contextlib.suppress(OSError):
                    sock.sendall(self._outgoing.read())
            if not done:
                if time.monotonic() > until:
                    raise TlsError("TLS handshake: not done in time")
                if not self._fill():
                    raise TlsError("TLS handshake: closed by the peer, which may not speak TLS")

    def recv_into(self, into: memoryview) -> int:
        """As of a socket: bytes read, 0 at the end of the connection.

        Raises:
            TlsError: what came is not from the peer, or the peer refuses our certificate.
        """
        while True:
            try:
                with self._lock:
                    nbytes: int = self._tls.read(len(into), into)  # type: ignore[assignment]  # typed as without a buffer
                    return nbytes
            except ssl.SSLWantReadError:
                pass
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0
            except ssl.SSLError as error:
                raise TlsError(_explain(error)) from None
            if not self._fill():
                return 0

    def sendall(self, data: bytes) -> None:
        """As of a socket. One caller at a time."""
        self._sock.sendall(self._encrypt([data]))

    def _fill(self) -> int:
        nbytes = self._sock.recv_into(self._raw)
        with self._lock:
            self._incoming.write(self._raw[:nbytes])
        return nbytes


class SenderChannel(_Channel):
    """The sender's side, over a non-blocking socket: one thread calls `recv`, another one `sendmsg` and `flush`."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(sock, context, server=True)
        self.refused = False  # the handshake failed: the peer has been told, and is to close
        self._shaken = False
        self._first = b""
        self._unsent = memoryview(b"")

    def recv(self, limit: int) -> bytes:
        """As of a socket; makes the handshake with the first bytes. Of a refused peer, which may still be sending, all
        is skipped until it closes: if we closed first it might never read why.

        Raises:
            TlsError: the peer is refused, or what it sends is not its own.
            BlockingIOError: nothing more for now.
        """
        raw = self._sock.recv(limit)
        if not raw:
            return b""
        if self.refused:
            raise BlockingIOError
        try:
            return self._take(raw, limit)
        except TlsError:
            if not self._shaken:
                self.refused = True
                with contextlib.suppress(OSError):
                    self._sock.send(self._outgoing.read())
                    self._sock.shutdown(socket.SHUT_WR)
            raise

    def sendmsg(self, parts: Sequence[bytes | memoryview]) -> int:
        """Takes all the bytes: what the kernel does not take at once waits for `flush`.

        Raises:
            BlockingIOError: earlier bytes still wait.
        """
        if not self.flush():
            raise BlockingIOError
        self._unsent = memoryview(self._encrypt(parts))
        self.flush()
        return sum(len(part) for part in parts)

    @property
    def unsent(self) -> bool:
        """Whether bytes wait for `flush`."""
        return bool(self._unsent)

    def flush(self) -> bool:
        """Sends what waits; True when nothing waits any more."""
        while self._unsent:
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def _take(self, raw: bytes, limit: int) -> bytes:
        if not self._shaken:
            self._first = (self._first + raw)[: len(_RECORD)]
            if not _RECORD.startswith(self._first):
                self._outgoing.write(_NO_TLS)
                raise TlsError(
                    "TLS handshake: the peer does not speak TLS (tls_cert, tls_key, tls_ca are not set there)"
                )
        with self._lock:
            self._incoming.write(raw)
            if not self._shaken:
                self._shaken = self._shake()
                # The first bytes on this connection, few enough for any socket's buffer; nobody else sends before them.
                self._sock.send(self._outgoing.read())
            data = bytearray()
            try:
                while self._shaken:
                    if not (piece := self._tls.read(limit)):
                        break
                    data += piece
            except ssl.SSLWantReadError:
                pass
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return bytes(data)
            except ssl.SSLError as error:
                raise TlsError(_explain(error)) from None
        if not data:
            raise BlockingIOError
        return bytes(data)


_UNKNOWN_CA = range(18, 22)  # X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT .. X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE
_WORDS = {
    "CERTIFICATE_REQUIRED": "the peer wants a certificate from us",
    "UNKNOWN_CA": "the peer does not know the CA of our certificate (its tls_ca)",
    "CERTIFICATE_EXPIRED": "our certificate has expired, says the peer",
    "BAD_CERTIFICATE": "the peer refuses our certificate",
    "CERTIFICATE_UNKNOWN": "the peer refuses our certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer shows no certificate",
    "PROTOCOL_VERSION": "the peer does not speak TLS 1.3",
}


def _explain(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        unknown = " (its CA is not in our tls_ca)" if error.verify_code in _UNKNOWN_CA else ""
        return f"TLS: the peer's certificate is refused: {error.verify_message}{unknown}"
    reason = error.reason or str(error)
    known = next((text for word, text in _WORDS.items() if word in reason), None)
    return f"TLS: {known} ({reason})" if known else f"TLS: {reason}"
