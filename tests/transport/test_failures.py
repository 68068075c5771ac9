"""Transfers over real sockets when something goes wrong: each ends in a clear fault, and the others go on."""

import logging
import multiprocessing
import socket
import struct
import threading
import time

import pytest

from lynx_ascend.transport import PeerLost, Received, StreamFault, StreamServer, TransportError
from lynx_ascend.transport import messages as msg
from lynx_ascend.transport.peer import PeerConnection
from tests.transport.transport_rig import (
    ANCHOR,
    RESIDUAL,
    RawReceiver,
    RawSender,
    ScriptedSource,
    collect,
    end_of,
    eventually,
    faults_of,
    frames_of,
)

MB = 1_000_000
CAP = 64 * MB
PAGES = [bytes(50_000)] * 40  # 2 MB


def serve_until_killed(port_pipe) -> None:
    """Body of the process that is killed: streams without end, and never closes one."""

    def script(transfer_id, stream):
        while True:
            yield bytes(50_000)

    port_pipe.send(StreamServer("127.0.0.1", 0, ScriptedSource(script), 4e6, engine_id="killed").port)
    time.sleep(60)


def pull(client, port, transfer_id, *streams, generation=0, max_bytes=CAP, **options):
    for stream in streams:
        client.pull(("127.0.0.1", port), transfer_id, generation, stream, b"", max_bytes=max_bytes, **options)


@pytest.fixture
def raw_sender(cleanup):
    """raw_sender(script, reply) starts a RawSender; it is closed after the clients."""

    def make(script=lambda sock, message: None, reply=None):
        sender = RawSender(script, reply)
        cleanup.callback(sender.close)
        return sender

    return make


def on_pull(*messages):
    """A script that answers a Pull with these messages and raw bytes."""

    def script(sock, message):
        if isinstance(message, msg.Pull):
            sock.sendall(b"".join(m if isinstance(m, bytes) else msg.encode(m) for m in messages))

    return script


# The sender, with receivers that misbehave


def test_a_receiver_that_does_not_read_holds_up_nobody_and_is_given_up(serve, connect, cleanup):
    source = ScriptedSource(lambda transfer_id, _: PAGES * 4 if transfer_id == "stuck" else PAGES)
    server, client = serve(source, stall_s=1.0), connect()
    stuck = RawReceiver(server.port, "stuck", ANCHOR)
    cleanup.callback(stuck.sock.close)
    stuck.say(msg.Pull("stuck", 0, ANCHOR, b""))
    eventually(lambda: any(c.blocked_at for c in server.queue.connections), "the stuck receiver's socket is full")
    started = time.monotonic()
    pull(client, server.port, "t", ANCHOR, RESIDUAL)
    assert end_of(collect(client, 2), "t", RESIDUAL).nbytes == 2 * MB
    assert time.monotonic() - started < 0.5
    eventually(lambda: source.cancelled_transfers == [("stuck", 0)], "the stuck receiver is given up")
    eventually(lambda: server.queued_bytes() == 0, "its frames are freed")


def test_a_residual_that_is_never_pulled_is_given_up(serve, connect):
    class Both(ScriptedSource):
        def open(self, transfer_id, generation, stream, args, sink):
            for each in (RESIDUAL, ANCHOR):  # the anchor may be with the client before another is put
                sink.put(each, b"x")
                sink.close(each)

    source = Both(lambda *_: [])
    server, client = serve(source, stall_s=2.0), connect()
    pull(client, server.port, "t", ANCHOR)
    collect(client, 1)
    assert server.queued_bytes() > 0
    eventually(lambda: source.cancelled_transfers == [("t", 0)], "it is given up")
    assert server.queued_bytes() == 0


@pytest.mark.parametrize(
    ("wire", "named"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "outside 1 .. 65536"),
        (struct.pack("<I", 2**31), "message of 2147483648 bytes"),
        (struct.pack("<I", 3) + b"\xc1\xc1\xc1", "malformed"),
        (msg.encode(msg.Pull("t", 0, ANCHOR, b"")), "Pull before a Hello"),
        (msg.encode(msg.Hello(1, "x", RESIDUAL)) * 2, "second Hello"),
        (msg.encode(msg.Hello(1, "x", RESIDUAL)) + msg.encode(msg.Pull("t", 0, ANCHOR, b"")), "Pull of the anchor"),
    ],
)
def test_hostile_bytes_close_their_connection_only(serve, connect, caplog, wire, named):
    server, client = serve(ScriptedSource(lambda *_: PAGES), rate=10 * MB), connect()
    pull(client, server.port, "t", ANCHOR)
    with caplog.at_level(logging.ERROR), socket.create_connection(("127.0.0.1", server.port), 5) as hostile:
        name = "{}:{}".format(*hostile.getsockname())
        hostile.sendall(wire)
        hostile.settimeout(5)
        try:
            while hostile.recv(1000):
                pass
        except ConnectionResetError:
            pass
    assert end_of(collect(client, 1), "t", ANCHOR).nbytes == 2 * MB
    (logged,) = [record.getMessage() for record in caplog.records]
    assert named in logged
    assert name in logged
    assert str(server.port) in logged


def test_another_version_is_told_ours_and_served_nothing(serve, cleanup, caplog):
    server = serve(ScriptedSource(lambda *_: []))
    old = RawReceiver(server.port, "old", ANCHOR, version=99)
    cleanup.callback(old.sock.close)
    assert old.hear() == msg.HelloReply(msg.PROTOCOL_VERSION, "P")
    old.say(msg.Pull("t", 0, ANCHOR, b""))
    assert old.hear() is None
    assert "speaks protocol version 99" in caplog.text


def test_a_receiver_that_resets_frees_its_transfers_on_all_streams(serve, cleanup):
    source = ScriptedSource(lambda *_: PAGES)
    server = serve(source, rate=1 * MB)
    anchor, residual = (RawReceiver(server.port, "D", stream) for stream in (ANCHOR, RESIDUAL))
    cleanup.callback(anchor.sock.close)
    for raw, stream in ((anchor, ANCHOR), (residual, RESIDUAL)):
        raw.say(msg.Pull("t", 0, stream, b""))
    eventually(lambda: len(source.opened) == 2 and server.queued_bytes() > MB, "both streams are queued")
    residual.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    residual.sock.close()
    eventually(lambda: source.cancelled_transfers == [("t", 0)], "the source is told, once")
    eventually(lambda: server.queued_bytes() == 0, "what was queued is freed, once the frame under way is out")


def test_a_repeated_pull_and_a_stale_one(serve, cleanup):
    release = threading.Event()

    def script(transfer_id, stream):
        yield b"x"
        release.wait(5)

    source = ScriptedSource(script)
    server = serve(source)
    raw = RawReceiver(server.port, "D", ANCHOR)
    cleanup.callback(raw.sock.close)
    cleanup.callback(release.set)
    for generation in (5, 5, 4):
        raw.say(msg.Pull("t", generation, ANCHOR, b""))
    assert raw.hear() == msg.HelloReply(1, "P")
    heard = [raw.hear(), raw.hear()]
    assert msg.FrameHead("t", 5, 0, 1) in heard
    assert msg.Fault("t", 4, "pull is stale") in heard
    eventually(lambda: source.opened == [("t", 5, ANCHOR)], "one pull is served")


def test_an_occupied_port_and_an_impossible_address_are_named(serve):
    server = serve(ScriptedSource(lambda *_: []))
    assert server.port > 0
    with pytest.raises(TransportError, match=f"cannot listen on 127.0.0.1:{server.port}: .*in use"):
        StreamServer("127.0.0.1", server.port, ScriptedSource(lambda *_: []), engine_id="Q")
    with pytest.raises(TransportError, match=r"cannot listen on 127\.0\.0\.1:70000"):
        StreamServer("127.0.0.1", 70000, ScriptedSource(lambda *_: []), engine_id="Q")


def test_a_source_that_fails_tells_the_receiver_why(serve, connect):
    def script(transfer_id, stream):
        yield b"x"
        raise KeyError("no such request")

    server, client = serve(ScriptedSource(script)), connect()
    pull(client, server.port, "t", ANCHOR, RESIDUAL)
    faults = faults_of(collect(client, 2))
    assert set(faults) == {("t", ANCHOR), ("t", RESIDUAL)}
    assert all("KeyError: 'no such request'" in r and f"127.0.0.1:{server.port}" in r for r in faults.values())


# The receiver, with senders that misbehave


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ([msg.FrameHead("t", 0, 1, 4), b"abcd"], "frame 1 came where 0 was due"),
        ([msg.FrameHead("t", 0, 0, 101), bytes(101)], "0 + 101 bytes exceed the stream's cap of 100"),
        ([msg.FrameHead("t", 0, 0, 2**50)], "frame of 1125899906842624 bytes exceeds the cap of 1000"),
        ([msg.FrameHead("t", 0, 0, 2), b"ab", msg.End("t", 0, 2, 4)], "End tells of 2 frames"),
        ([msg.Fault("t", 0, "out of pages")], "out of pages"),
        ([msg.HelloReply(1, "again")], "second HelloReply"),
        ([b"\xff\xff\xff\xff"], "message of 4294967295 bytes"),
    ],
)
def test_a_sender_that_breaks_the_protocol_gives_a_fault_that_names_it(raw_sender, connect, answer, named):
    sender = raw_sender(on_pull(*answer))
    client = connect(max_frame=1000, connect_retries=0)
    pull(client, sender.port, "t", ANCHOR, max_bytes=100)
    items = collect(client, 1)
    reason = faults_of(items)["t", ANCHOR]
    assert named in reason
    assert f"127.0.0.1:{sender.port} (anchor)" in reason
    assert client.staged_bytes() == 0


def test_a_transfer_that_breaks_its_promise_does_not_disturb_the_next_on_its_connection(raw_sender, connect):
    def script(sock, message):
        if isinstance(message, msg.Pull) and message.transfer_id == "bad":
            sock.sendall(msg.encode(msg.FrameHead("bad", 0, 7, 5000)) + bytes(5000))
        elif isinstance(message, msg.Pull):
            sock.sendall(msg.encode(msg.FrameHead("good", 0, 0, 2)) + b"ok" + msg.encode(msg.End("good", 0, 1, 2)) * 2)

    sender, client = raw_sender(script), connect()
    pull(client, sender.port, "bad", ANCHOR)
    assert "frame 7" in faults_of(collect(client, 1))["bad", ANCHOR]
    pull(client, sender.port, "good", ANCHOR)
    assert frames_of(collect(client, 1), "good", ANCHOR) == [b"ok"]
    assert msg.Cancel("bad", 0) in sender.heard
    assert client.drain() == []


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        (msg.encode(msg.HelloReply(2, "new")), "the peer speaks protocol version 2, this is 1"),
        (msg.encode(msg.End("t", 0, 0, 0)), "End instead of a HelloReply"),
        (b"220 smtp.example.org ESMTP\r\n", "message of"),
    ],
)
def test_a_peer_that_is_no_sender_of_ours_is_named(raw_sender, connect, reply, named):
    sender = raw_sender(reply=reply)
    client = connect()
    pull(client, sender.port, "t", RESIDUAL)
    reason = faults_of(collect(client, 1))["t", RESIDUAL]
    assert named in reason
    assert f"127.0.0.1:{sender.port} (residual)" in reason


def test_no_progress_is_a_fault(raw_sender, connect):
    sender = raw_sender(on_pull(msg.FrameHead("t", 0, 0, 10), b"half"))
    client = connect(stall_s=0.4)
    started = time.monotonic()
    pull(client, sender.port, "t", ANCHOR)
    reason = faults_of(collect(client, 1))["t", ANCHOR]
    assert f"no progress for 0.4 s; waiting for 127.0.0.1:{sender.port} (anchor)" in reason
    assert 0.4 <= time.monotonic() - started < 2.0
    eventually(lambda: msg.Cancel("t", 0) in sender.heard, "the sender is told")


@pytest.mark.parametrize("given_up", ["by the watch", "by the caller"])
def test_a_frame_that_never_ends_does_not_keep_its_memory(raw_sender, connect, given_up):
    sender = raw_sender(on_pull(msg.FrameHead("t", 0, 0, 100_000), b"half"))
    events: list[object] = []
    client = connect(stall_s=0.3, on_event=events.append)
    pull(client, sender.port, "t", ANCHOR)
    eventually(lambda: client.staged_bytes() == 100_000, "the frame is under way")
    if given_up == "by the caller":
        client.cancel("t", 0)
    else:
        assert "no progress" in faults_of(collect(client, 1))["t", ANCHOR]
    eventually(lambda: client.staged_bytes() == 0, "the frame is freed")
    eventually(lambda: any(isinstance(e, PeerLost) for e in events), "the silent peer is given up")
    assert "silent for 0.6 s in the middle of a message" in next(e.reason for e in events if isinstance(e, PeerLost))


def test_a_connection_may_be_idle_for_ever(serve, connect):
    server, client = serve(ScriptedSource(lambda *_: [b"x"])), connect(stall_s=0.1)
    pull(client, server.port, "first", ANCHOR)
    collect(client, 1)
    connections = dict(client._connections)
    time.sleep(0.6)
    pull(client, server.port, "second", ANCHOR)
    assert frames_of(collect(client, 1), "second", ANCHOR) == [b"x"]
    assert client._connections == connections


def test_nobody_listening_is_a_fault_after_bounded_retries(connect):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    events: list[object] = []
    client = connect(on_event=events.append, connect_retries=2, retry_s=0.05)
    pull(client, port, "t", ANCHOR)
    reason = faults_of(collect(client, 1))["t", ANCHOR]
    assert f"connection to 127.0.0.1:{port} (anchor) lost: no connection in 3 attempts" in reason
    eventually(lambda: [type(e) for e in events] == [PeerLost], "the loss is an event")


def test_another_engine_than_expected_is_refused(serve, connect):
    source = ScriptedSource(lambda *_: [b"x"])
    server, client = serve(source, engine_id="new"), connect()
    for attempt, how in enumerate(("before the handshake", "on the connection that is up")):
        pull(client, server.port, how, ANCHOR, engine_id="old", generation=attempt)
        assert "is now engine 'new', not 'old'" in faults_of(collect(client, 1))[how, ANCHOR]
    assert source.opened == []


def test_a_sender_killed_in_mid_stream(connect):
    forked = multiprocessing.get_context("fork")
    ours, theirs = forked.Pipe()
    process = forked.Process(target=serve_until_killed, args=(theirs,))
    process.start()
    with ours, theirs:
        port = ours.recv()
    client = connect()
    pull(client, port, "t", ANCHOR, RESIDUAL)
    eventually(lambda: client.staged_bytes() > 100_000, "frames arrive")
    process.kill()
    killed = time.monotonic()
    items = collect(client, 2)
    assert time.monotonic() - killed < 2.0
    process.join()
    process.close()
    faults = faults_of(items)
    assert set(faults) == {("t", ANCHOR), ("t", RESIDUAL)}
    assert all(f"connection to 127.0.0.1:{port}" in reason for reason in faults.values())
    eventually(lambda: client.staged_bytes() == 0, "the frames under way on both connections are freed")


# Cancelling


def test_cancel_in_mid_stream_frees_both_sides_and_keeps_the_connections(serve, connect):
    source = ScriptedSource(lambda transfer_id, _: PAGES if transfer_id == "long" else [b"x"])
    server, client = serve(source, rate=2 * MB, anchor_window=MB), connect()
    pull(client, server.port, "long", ANCHOR, RESIDUAL)
    eventually(lambda: client.staged_bytes() > 100_000, "frames arrive")
    client.cancel("long", 0)
    client.cancel("long", 0)
    eventually(lambda: source.cancelled_transfers == [("long", 0)], "the source is told, once")
    eventually(lambda: server.queued_bytes() == 0, "the sender's queue is freed")
    eventually(lambda: client.staged_bytes() == 0, "the receiver's staging is freed")
    connections = dict(client._connections)
    pull(client, server.port, "next", ANCHOR, RESIDUAL)
    items = collect(client, 2)
    assert {i.transfer_id for i in items} == {"next"}
    assert client._connections == connections
    assert client.dropped_frames() > 0
    assert ("long", 0, ANCHOR) not in source.sent_stats


def test_a_pull_that_comes_after_its_cancel_is_not_served(serve, cleanup):
    source = ScriptedSource(lambda *_: [b"x"])
    server = serve(source)
    anchor, residual = (RawReceiver(server.port, "D", stream) for stream in (ANCHOR, RESIDUAL))
    for raw in (anchor, residual):
        cleanup.callback(raw.sock.close)
        assert isinstance(raw.hear(), msg.HelloReply)
    anchor.say(msg.Cancel("t", 0))
    anchor.say(msg.Pull("probe", 0, ANCHOR, b""))
    assert isinstance(anchor.hear(), msg.FrameHead)  # so the Cancel has been read
    residual.say(msg.Pull("t", 0, RESIDUAL, b""))
    assert residual.hear() == msg.Fault("t", 0, "pull was cancelled")
    assert [key[0] for key in source.opened] == ["probe"]


def test_a_transfer_that_is_declined_is_told_to_its_source_once(serve, connect):
    source = ScriptedSource(lambda *_: [b"x"])
    server, client = serve(source), connect()
    for _ in range(2):
        client.decline(("127.0.0.1", server.port), "unwanted", engine_id="P")
    client.decline(("127.0.0.1", server.port), "of a server that is gone", engine_id="another")
    pull(client, server.port, "wanted", ANCHOR)
    assert frames_of(collect(client, 1), "wanted", ANCHOR) == [b"x"]
    eventually(lambda: source.cancelled_transfers, "the source is told")
    assert source.cancelled_transfers == [("unwanted", 0)] and [key[0] for key in source.opened] == ["wanted"]


def test_declining_where_nobody_listens_harms_nothing(serve, connect):
    server, client = serve(ScriptedSource(lambda *_: [b"x"])), connect()
    client.decline(("127.0.0.1", 1), "unwanted")
    with pytest.raises(ValueError, match="port 0"):
        client.decline(("127.0.0.1", 0), "unwanted")
    with pytest.raises(ValueError, match="transfer_id"):
        client.decline(("127.0.0.1", server.port), "")
    pull(client, server.port, "wanted", ANCHOR)
    assert not faults_of(collect(client, 1))


def test_a_thread_that_cannot_be_started_is_an_error_and_leaves_no_dead_connection(serve, connect, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    server, client = serve(ScriptedSource(lambda *_: [b"x"])), connect()
    with monkeypatch.context() as none_left:
        none_left.setattr(PeerConnection, "start", start)
        with pytest.raises(TransportError, match=f"127.0.0.1:{server.port}.*new thread"):
            pull(client, server.port, "t", ANCHOR)
    pull(client, server.port, "t", ANCHOR)
    assert frames_of(collect(client, 1), "t", ANCHOR) == [b"x"]


def test_closing_the_server_stops_a_source_that_waits_for_room(serve, connect):
    source = ScriptedSource(lambda *_: PAGES)
    server, client = serve(source, rate=100_000, anchor_window=100_000), connect()
    pull(client, server.port, "t", ANCHOR)
    eventually(lambda: server.queued_bytes() > 100_000, "the source waits")
    started = time.monotonic()
    server.close()
    assert time.monotonic() - started < 1.0
    assert source.cancelled_transfers == [("t", 0)]
    assert not any(isinstance(i, Received) for i in collect(client, 1))


def test_closing_the_client_leaves_faults_to_be_drained(serve, connect):
    server, client = serve(ScriptedSource(lambda *_: PAGES), rate=100_000), connect()
    pull(client, server.port, "t", ANCHOR, RESIDUAL)
    time.sleep(0.1)
    client.close()
    assert set(faults_of(client.drain())) == {("t", ANCHOR), ("t", RESIDUAL)}
    with pytest.raises(TransportError, match="closed"):
        pull(client, server.port, "u", ANCHOR)


def test_a_transfer_that_no_message_can_name_is_refused_and_harms_no_other(serve, connect):
    server, client = serve(ScriptedSource(lambda *_: [b"x"])), connect()
    for transfer_id, generation, named in (
        ("", 0, "transfer_id: 0 characters"),
        ("t" * 513, 0, "transfer_id: 513 characters"),
        ("t", -1, "generation: -1"),
        ("t", 2**53 + 1, "generation: 9007199254740993"),
    ):
        with pytest.raises(ValueError, match=named):
            pull(client, server.port, transfer_id, ANCHOR, generation=generation)
        with pytest.raises(ValueError, match=named):
            server.push("D", transfer_id, generation, ANCHOR, [])
    with pytest.raises(TransportError, match="Pull: "):
        client.pull(("127.0.0.1", server.port), "t", 0, ANCHOR, {"bits_per_s": 2**64}, max_bytes=CAP)
    pull(client, server.port, "t" * 512, ANCHOR, generation=2**53)
    assert frames_of(collect(client, 1), "t" * 512, ANCHOR) == [b"x"]


@pytest.mark.parametrize(
    "message",
    [
        [msg.FrameHead("t", 0, 0, 4), b"evil"],
        [msg.FrameHead("t", 0, 7, 4), b"evil"],
        [msg.End("t", 0, 0, 0)],
        [msg.Fault("t", 0, "says a stranger")],
    ],
    ids=["frame", "broken promise", "end", "fault"],
)
def test_a_peer_has_no_say_in_a_transfer_that_another_one_brings(raw_sender, connect, message):
    """Whoever names a prefill instance in a request has us connect there: it must reach that request alone."""
    honest, evil, client = raw_sender(), raw_sender(on_pull(*message, msg.Fault("mine", 0, "done"))), connect()
    pull(client, honest.port, "t", ANCHOR)
    pull(client, evil.port, "mine", ANCHOR)
    assert [(item.transfer_id, type(item)) for item in collect(client, 1)] == [("mine", StreamFault)]
    assert [t.transfer_id for t in client.staging.stalled(-1.0)] == ["t"]
    assert client.drain() == [] and client.staged_bytes() == 0
