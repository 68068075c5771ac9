"""Fuzz targets: one function a parser, bytes in, nothing out; it returns, or what it raises is a defect.

What a parser may raise for bad input is caught here. What it accepts is checked: it must mean the same when it is
written again. `seeds` gives valid inputs to start from.
"""

from __future__ import annotations

import io
import itertools
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from lynx_ascend.codec.config import Stream
from lynx_ascend.frame import FrameError
from lynx_ascend.frame.files import read_frames
from lynx_ascend.paged import check_frame
from lynx_ascend.serving.options import LynxOptions, OptionError, RequestOptions
from lynx_ascend.serving.producer import Producer, PullError
from lynx_ascend.serving.transfer_params import RemotePrompt, TransferParamsError, wants_remote_decode
from lynx_ascend.transport import ProtocolError, StreamServer
from lynx_ascend.transport import messages as msg
from lynx_ascend.transport.sendqueue import Connection
from lynx_ascend.transport.tls import SenderChannel, TlsError

GOLDEN = Path(__file__).parent.parent / "golden"


def frame_file(data: bytes) -> None:
    """A file of frames, read in whole and read by headers alone."""
    for wanted in (None, lambda header: header.layer % 2 == 0):
        try:
            for frame in read_frames(io.BytesIO(data), wanted):
                check_frame(frame)
        except FrameError:
            continue


def from_receivers(data: bytes) -> None:
    """What a sender reads."""
    _messages(msg.sender_buffer(), data)


def from_senders(data: bytes) -> None:
    """What a receiver reads."""
    _messages(msg.receiver_buffer(), data)


def _messages(buffer: msg.MessageBuffer[Any], data: bytes) -> None:
    read, again = [], b""
    try:
        for start in range(0, len(data), 7):  # in pieces, as from a socket
            buffer.feed(data[start : start + 7])
            while (message := buffer.next()) is not None:
                read.append(message)
                again += msg.encode(message)
    except ProtocolError:
        pass
    other = type(buffer)(buffer._decoder)
    other.feed(again)
    assert [other.next() for _ in read] == read


class _Source:
    """Of a server that must not be moved by what strangers say."""

    def open(self, *args: Any) -> None:
        return

    def sent(self, *args: Any) -> None:
        return

    def cancelled(self, *args: Any) -> None:
        return


def conversation(data: bytes) -> None:
    """What a server does upon it: it may end the connection, and must go on serving."""
    server = _server()
    conn = Connection(_SOCKET, "peer", 0.0)
    try:
        conn.inbox.feed(data)
        while (message := conn.inbox.next()) is not None:
            server.handle(conn, message)
    except ProtocolError:
        pass
    server.on_disconnect(conn, "the input is over")
    assert server.queued_bytes() == 0 and conn not in server.queue.connections


_SOCKET = socket.socket()
_servers: list[StreamServer] = []


def _server() -> StreamServer:
    if not _servers:
        _servers.append(StreamServer("127.0.0.1", 0, _Source(), engine_id="P"))
    return _servers[0]


def close() -> None:
    """Ends what `conversation` has started."""
    while _servers:
        _servers.pop().close()


def pull_args(data: bytes) -> None:
    """What a decode instance asks of a producer for a prompt of 40 tokens."""
    try:
        args = msgspec.msgpack.decode(data, type=msg.Args)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # as the message that holds them would be refused
        return
    rates: list[float] = []
    sink: Any = SimpleNamespace(rate_limit=rates.append)
    held: Any = SimpleNamespace(order=SimpleNamespace(tokens=40))
    try:
        method, tokens = Producer._read_args(SimpleNamespace(), held, args, sink)  # type: ignore[arg-type]
    except PullError:
        return
    assert (
        method in ("bf16", "int8", "int4", "lynx", "alg1", "pair") and tokens == 40 and all(rate > 0 for rate in rates)
    )


def transfer_params(data: bytes) -> None:
    """`kv_transfer_params` of a request."""
    params = _json(data)
    wants_remote_decode(params)
    try:
        prompt = RemotePrompt.from_params(params)
    except TransferParamsError as error:
        assert "kv_transfer_params" in str(error)
        return
    assert prompt is None or RemotePrompt.from_params(prompt.to_params()) == prompt


def options(data: bytes) -> None:
    """`kv_connector_extra_config` of an engine."""
    config = _json(data)
    if not isinstance(config, dict):  # vLLM's own configuration wants an object
        return
    try:
        parsed = LynxOptions.parse(config)
    except OptionError as error:
        assert "kv_connector_extra_config" in str(error)
        return
    assert LynxOptions.parse(msgspec.structs.asdict(parsed)) == parsed
    assert 0 <= parsed.draft_cap <= 127 and 0 < parsed.stall < float("inf")


def request_options(data: bytes) -> None:
    """`vllm_xargs` of a request."""
    args = _json(data)
    if not isinstance(args, dict):
        return
    try:
        parsed = RequestOptions.parse(LynxOptions(request_bandwidth=True), args)
    except OptionError as error:
        assert "lynx_" in str(error)
        return
    assert 0 <= parsed.draft_cap <= 127 and (parsed.bandwidth is None or 1e-3 <= parsed.bandwidth <= 1e6)


def tls(data: bytes) -> None:
    """What a server that asks for TLS makes of a stranger's first bytes: never a message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        channel = SenderChannel(ours, _TLS)
        for start in range(0, len(data), 1000):
            theirs.sendall(data[start : start + 1000])
            try:
                assert channel.recv(1 << 16) == b""
            except (BlockingIOError, TlsError):
                continue


_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # without a certificate: a handshake that is whole is refused later


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _client_hello() -> bytes:
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="p")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a peer")


def seeds() -> dict[Callable[[bytes], None], list[bytes]]:
    """Valid inputs of each target."""
    hello = msg.Hello(msg.PROTOCOL_VERSION, "D", Stream.ANCHOR)
    pull = msg.Pull("t", 7, Stream.ANCHOR, {"method": "lynx", "tokens": 40, "bits_per_s": 1000})
    to_sender = [hello, pull, msg.Pull("u", 0, Stream.ANCHOR, b"\x00\xff"), msg.Cancel("t", 7)]
    to_receiver = [msg.HelloReply(1, "P"), msg.FrameHead("t", 7, 0, 9), msg.End("t", 7, 1, 9), msg.Fault("t", 7, "no")]
    said = [b"".join(map(msg.encode, to_sender)), *map(msg.encode, to_sender)]
    prompt = RemotePrompt("engine", "request", "127.0.0.1", 4321, 77)
    params = [prompt.to_params(), {"do_remote_decode": True}, {}]
    xargs = {"lynx_method": "int8", "lynx_draft_cap": 5, "lynx_window": "fixed", "lynx_bandwidth": 40.5}
    frames = [path.read_bytes() for path in sorted(GOLDEN.glob("*.anchor")) + sorted(GOLDEN.glob("*.residual"))]
    assert frames
    return {
        frame_file: [a + b for a, b in itertools.pairwise(frames)],
        from_receivers: said,
        from_senders: [b"".join(map(msg.encode, to_receiver)), *map(msg.encode, to_receiver)],
        conversation: said,
        pull_args: [msgspec.msgpack.encode(pull.args), msgspec.msgpack.encode(b"x")],
        transfer_params: list(map(msgspec.json.encode, params)),
        options: [msgspec.json.encode(LynxOptions(bandwidth=1.5, tls_cert="c", tls_key="k", tls_ca="a")), b"{}"],
        request_options: [msgspec.json.encode(xargs), b"{}"],
        tls: [_client_hello(), b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"],
    }
