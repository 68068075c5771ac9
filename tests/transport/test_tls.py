"""Mutual TLS: the same streams between engines that trust each other, and a named refusal for all others."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lynx_ascend.transport import StreamClient, StreamServer, TransportError, sender_io
from lynx_ascend.transport import messages as msg
from lynx_ascend.transport.tls import SenderChannel, TlsConfig
from tests.certificates import Authority
from tests.transport.transport_rig import (
    ANCHOR,
    DEADLINE_S,
    RESIDUAL,
    RawReceiver,
    ScriptedSource,
    collect,
    end_of,
    eventually,
    faults_of,
    frames_of,
)

BYTES = os.urandom(3_000_000)
FRAMES = [BYTES[i : i + 100_000] for i in range(0, len(BYTES), 100_000)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def pair(serve: Callable[..., StreamServer], connect: Callable[..., StreamClient]) -> Any:
    """pair(theirs, ours): a server and a client with these files, or without TLS."""

    def make(theirs: TlsConfig | None, ours: TlsConfig | None, **options: Any) -> tuple[StreamServer, StreamClient]:
        source = ScriptedSource(lambda transfer, stream: FRAMES)
        server = serve(source, tls=theirs, **{"stall_s": 4.0, **options})
        return server, connect(connect_retries=0, connect_timeout_s=3.0, stall_s=4.0, tls=ours)

    return make


def pull(server: StreamServer, client: StreamClient, transfer: str = "t") -> None:
    for stream in (ANCHOR, RESIDUAL):
        client.pull(("127.0.0.1", server.port), transfer, 1, stream, b"", max_bytes=10 << 20)


def refusal(server: StreamServer, client: StreamClient) -> str:
    client.pull(("127.0.0.1", server.port), "t", 1, ANCHOR, b"", max_bytes=10 << 20)
    (reason,) = faults_of(collect(client, 1)).values()
    assert f"127.0.0.1:{server.port} (anchor)" in reason
    return reason


@pytest.mark.parametrize("rate", [None, 20e6], ids=["unlimited", "shaped"])
def test_both_streams_arrive(authority: Authority, pair: Any, rate: float | None) -> None:
    server, client = pair(authority.issue("p"), authority.issue("d"), rate=rate)
    for transfer in ("t", "u"):
        pull(server, client, transfer)
        items = collect(client, 2)
        for stream in (ANCHOR, RESIDUAL):
            assert frames_of(items, transfer, stream) == FRAMES
            assert end_of(items, transfer, stream).nbytes == len(BYTES)
    eventually(lambda: server.queued_bytes() == 0, "an empty queue")


def test_nothing_of_it_is_readable_on_the_wire(authority: Authority, pair: Any) -> None:
    server, client = pair(authority.issue("p"), authority.issue("d"))
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as relay:
        relay.settimeout(DEADLINE_S)
        client.pull(("127.0.0.1", relay.getsockname()[1]), "a telling name", 1, ANCHOR, b"", max_bytes=10 << 20)
        down, _ = relay.accept()
        with down, socket.create_connection(("127.0.0.1", server.port)) as up:
            for sock in (down, up):
                sock.setblocking(False)
            items: list[Any] = []
            while not any(not hasattr(item, "frame") for item in items):
                for source, sink in ((down, up), (up, down)):
                    try:
                        data = source.recv(1 << 16)
                    except BlockingIOError:
                        continue
                    seen += data
                    sink.setblocking(True)
                    sink.sendall(data)
                    sink.setblocking(False)
                items += client.drain()
    assert frames_of(items, "a telling name", ANCHOR) == FRAMES
    assert len(seen) > len(BYTES) and b"telling" not in seen and FRAMES[7][:64] not in seen


def test_a_receiver_that_reads_slowly_gets_all_and_holds_up_nobody(authority: Authority, pair: Any) -> None:
    """What the kernel does not take of a record is sent later, before anything else."""
    server, client = pair(authority.issue("p"), authority.issue("d"))
    context = authority.issue("slow").context(server=False)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        raw.settimeout(DEADLINE_S)
        raw.connect(("127.0.0.1", server.port))
        with context.wrap_socket(raw) as slow:
            inbox = msg.receiver_buffer()
            slow.sendall(msg.encode(msg.Hello(msg.PROTOCOL_VERSION, "slow", ANCHOR)))
            slow.sendall(msg.encode(msg.Pull("s", 1, ANCHOR, b"")))
            eventually(lambda: server.queued_bytes() > 0, "a queue")
            pull(server, client)
            assert len(collect(client, 2)) == 2 * (len(FRAMES) + 1)
            got = bytearray()
            while True:
                if (message := inbox.next()) is None:
                    inbox.feed(slow.recv(1 << 16))
                elif isinstance(message, msg.FrameHead):
                    left = message.nbytes
                    while left:
                        part = inbox.take(left) or slow.recv(left)
                        left -= len(part)
                        got += part
                elif isinstance(message, msg.End):
                    break
            assert bytes(got) == BYTES


class Reluctant:
    """A socket that takes ten bytes, then none, and so on, once the handshake is over."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._sends = sock, 0
        self.recv, self.shutdown = sock.recv, sock.shutdown

    def send(self, data: memoryview) -> int:
        self._sends += 1
        if self._sends <= 2:
            return self._sock.send(data)
        if self._sends % 2:
            raise BlockingIOError
        return self._sock.send(data[:10])


def test_what_the_kernel_does_not_take_is_sent_later(
    authority: Authority, pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last bytes, which nothing follows."""
    monkeypatch.setattr(sender_io, "SenderChannel", lambda sock, context: SenderChannel(Reluctant(sock), context))
    server, client = pair(authority.issue("p"), authority.issue("d"))
    server._source.script = lambda transfer, stream: [b"some", b"frames"]
    pull(server, client)
    items = collect(client, 2)
    assert frames_of(items, "t", ANCHOR) == frames_of(items, "t", RESIDUAL) == [b"some", b"frames"]


def test_a_receiver_that_stops_reading_is_given_up(authority: Authority, pair: Any) -> None:
    server, _ = pair(authority.issue("p"), None, stall_s=0.5)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        raw.settimeout(DEADLINE_S)
        raw.connect(("127.0.0.1", server.port))
        with authority.issue("slow").context(server=False).wrap_socket(raw) as slow:
            slow.sendall(msg.encode(msg.Hello(msg.PROTOCOL_VERSION, "slow", ANCHOR)))
            slow.sendall(msg.encode(msg.Pull("s", 1, ANCHOR, b"")))
            eventually(lambda: server.queued_bytes() > 0, "a queue")
            eventually(lambda: not server.queue.connections, "the connection's end")


def test_another_ca(authority: Authority, pair: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stranger = Authority(tmp_path, "stranger")
    caplog.set_level(logging.INFO)
    # Each side refuses the other's certificate; the receiver looks first.
    reason = refusal(*pair(authority.issue("p"), stranger.issue("d")))
    assert "its CA is not in our tls_ca" in reason
    eventually(lambda: "does not know the CA of our certificate" in caplog.text, "the sender's log")
    # The receiver knows the sender's CA, but its own certificate is the stranger's.
    own = stranger.issue("d")
    reason = refusal(*pair(authority.issue("p"), TlsConfig(own.cert, own.key, str(authority.file))))
    assert "the peer does not know the CA of our certificate" in reason
    assert "its CA is not in our tls_ca" in caplog.text


def test_expired(authority: Authority, pair: Any) -> None:
    good, old = authority.issue("good"), authority.issue("old", days=-1)
    assert "the peer's certificate is refused: certificate has expired" in refusal(*pair(old, good))
    assert "our certificate has expired, says the peer" in refusal(*pair(good, old))


def test_no_certificate(authority: Authority, pair: Any, caplog: pytest.LogCaptureFixture) -> None:
    server, _ = pair(authority.issue("p"), None)
    context = ssl.create_default_context(cafile=str(authority.file))
    context.check_hostname = False
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as raw, context.wrap_socket(raw) as sock:
        eventually(lambda: "the peer shows no certificate" in caplog.text, "the sender's log")
        for _ in range(3):  # it is still writing, and must not be kept from reading why that is in vain
            sock.sendall(msg.encode(msg.Hello(msg.PROTOCOL_VERSION, "D", ANCHOR)))
            time.sleep(0.05)
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            sock.recv(100)


def test_the_name_is_checked_where_asked(authority: Authority, pair: Any) -> None:
    server, client = pair(authority.issue("p"), authority.issue("d", check="p"))
    pull(server, client)
    assert faults_of(collect(client, 2)) == {}
    reason = refusal(*pair(authority.issue("p"), authority.issue("d", check="q")))
    assert "Hostname mismatch, certificate is not valid for 'q'" in reason


def test_one_side_without_tls(authority: Authority, pair: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert "the peer speaks TLS, and tls_cert, tls_key and tls_ca are not set here" in refusal(
        *pair(authority.issue("p"), None)
    )
    eventually(lambda: "the peer does not speak TLS" in caplog.text, "the sender's log")
    caplog.clear()
    assert "closed by the peer, which may not speak TLS" in refusal(*pair(None, authority.issue("d")))
    eventually(lambda: "the peer speaks TLS" in caplog.text, "the sender's log")


def test_old_tls_is_refused(authority: Authority, pair: Any) -> None:
    server, _ = pair(authority.issue("p"), None)
    context = authority.issue("d").context(server=False)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as raw, pytest.raises(ssl.SSLError):
        context.wrap_socket(raw)


@pytest.mark.parametrize("said", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "a byte", "a beginning"])
def test_a_silent_client_is_given_up(authority: Authority, pair: Any, said: bytes) -> None:
    server, client = pair(authority.issue("p"), authority.issue("d"), stall_s=0.5)
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as silent:
        silent.sendall(said)
        assert silent.recv(100) == b""  # closed
    pull(server, client)
    assert faults_of(collect(client, 2)) == {}


def test_a_refused_client_cannot_stay(authority: Authority, pair: Any) -> None:
    server, _ = pair(authority.issue("p"), None, stall_s=0.5)
    plain = RawReceiver(server.port, "D", ANCHOR)
    with pytest.raises(msg.ProtocolError, match="speaks TLS"):
        plain.hear()
    eventually(lambda: not server.queue.connections, "the connection's end")
    plain.sock.close()


def test_a_silent_sender_is_given_up(authority: Authority, pair: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        _, client = pair(None, authority.issue("d"))
        client.pull(mute.getsockname(), "t", 1, ANCHOR, b"", max_bytes=100)
        (reason,) = faults_of(collect(client, 1)).values()
        assert "timed out" in reason


def test_garbage_in_the_middle_ends_the_connection(authority: Authority, pair: Any) -> None:
    server, client = pair(authority.issue("p"), authority.issue("d"))
    context = authority.issue("d").context(server=False)
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as raw:
        sock = context.wrap_socket(raw, do_handshake_on_connect=False)
        sock.do_handshake()
        sock.sendall(msg.encode(msg.Hello(msg.PROTOCOL_VERSION, "D2", ANCHOR)))
        eventually(lambda: any(c.engine_id == "D2" for c in server.queue.connections), "the Hello")
        os.write(sock.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
        eventually(lambda: not any(c.engine_id == "D2" for c in server.queue.connections), "its end")
        sock.close()
    pull(server, client)
    assert faults_of(collect(client, 2)) == {}


@pytest.mark.parametrize("missing", ["cert", "key", "ca"])
def test_a_file_that_cannot_be_used_is_named(authority: Authority, tmp_path: Path, missing: str) -> None:
    files = authority.issue("p")
    for path in (tmp_path / "none.pem", tmp_path / "junk.pem"):
        if path.name == "junk.pem":
            path.write_text("no certificate")
        config = TlsConfig(**{**{k: getattr(files, k) for k in ("cert", "key", "ca")}, missing: str(path)})
        for make in (
            lambda config=config: StreamServer(
                "127.0.0.1", 0, ScriptedSource(lambda *a: []), engine_id="P", tls=config
            ),
            lambda config=config: StreamClient("D", tls=config),
        ):
            with pytest.raises(TransportError, match=f"tls_{missing} {path}"):
                make()
