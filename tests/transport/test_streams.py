"""Transfers over real sockets when all goes well: content, order, priority, overlap, rates, marks."""

import socket
import threading
import time

import pytest

from lynx_ascend.transport import PeerConnected, Received, StreamEnd, TransferClosed, TransportError
from tests.transport.transport_rig import ANCHOR, RESIDUAL, ScriptedSource, collect, end_of, eventually, frames_of

MB = 1_000_000
CAP = 64 * MB


def pull(client, server, transfer_id, *streams, generation=0, args=b"", **options):
    for stream in streams:
        peer = ("127.0.0.1", server.port)
        client.pull(peer, transfer_id, generation, stream, args, max_bytes=CAP, **options)


def test_frames_arrive_whole_and_in_order_for_several_requests(serve, connect):
    def script(transfer_id, stream):
        for i in range(40):
            yield f"{transfer_id} {stream.name} {i} ".encode() * (1 + 997 * i % 5000)

    source = ScriptedSource(script)
    server, client = serve(source), connect()
    for transfer_id in "abcd":
        pull(client, server, transfer_id, *((RESIDUAL, ANCHOR) if transfer_id in "ac" else (ANCHOR, RESIDUAL)))
    items = collect(client, 8)
    for transfer_id in "abcd":
        for stream in (ANCHOR, RESIDUAL):
            expected = list(script(transfer_id, stream))
            assert frames_of(items, transfer_id, stream) == expected
            end = end_of(items, transfer_id, stream)
            assert (end.frames, end.nbytes) == (40, sum(map(len, expected)))
            assert end.first_at <= end.last_at <= time.monotonic()
        ends = [i.stream for i in items if isinstance(i, StreamEnd) and i.transfer_id == transfer_id]
        assert ends == [ANCHOR, RESIDUAL]
    eventually(lambda: len(source.sent_stats) == 8, "every stream is reported as sent")
    assert all(len(stats) == 1 and stats[0].frames == 40 for stats in source.sent_stats.values())
    assert source.cancelled_transfers == []
    assert (client.staged_bytes(), server.queued_bytes()) == (0, 0)


def test_args_reach_the_source_and_empty_streams_and_frames_are_legal(serve, connect):
    source = ScriptedSource(lambda transfer_id, stream: [b""] if stream is ANCHOR else [])
    server, client = serve(source), connect()
    pull(client, server, "t", ANCHOR, args={"blocks": "1,2", "tokens": 300})
    pull(client, server, "t", RESIDUAL, args=b"\x00raw")
    items = collect(client, 2)
    assert {"blocks": "1,2", "tokens": 300} in source.args
    assert b"\x00raw" in source.args
    assert frames_of(items, "t", ANCHOR) == [b""]
    assert end_of(items, "t", RESIDUAL).frames == 0


def test_one_open_may_write_both_streams_before_the_other_is_pulled(serve, connect):
    class Both(ScriptedSource):
        def open(self, transfer_id, generation, stream, args, sink):
            if stream is RESIDUAL:
                return
            for i in range(5):
                sink.put(ANCHOR, b"a%d" % i)
                sink.put(RESIDUAL, b"r%d" % i)
            sink.close(ANCHOR)
            sink.close(RESIDUAL)

    server, client = serve(Both(lambda *_: [])), connect()
    pull(client, server, "t", ANCHOR)
    first = collect(client, 1)
    assert frames_of(first, "t", ANCHOR) == [b"a%d" % i for i in range(5)]
    assert server.queued_bytes() > 0
    pull(client, server, "t", RESIDUAL)
    assert frames_of(collect(client, 1), "t", RESIDUAL) == [b"r%d" % i for i in range(5)]
    # The receiver may have the last byte before the sender has counted it.
    eventually(lambda: server.queued_bytes() == 0, "everything is counted as sent")


def test_push_needs_no_pull(serve, connect):
    source = ScriptedSource(lambda *_: [])
    server, client = serve(source), connect("decode")
    for stream in (ANCHOR, RESIDUAL):
        client.expect(("127.0.0.1", server.port), "t", 3, stream, max_bytes=CAP)
    eventually(lambda: [c.engine_id for c in server.queue.connections] == ["decode"] * 2, "both streams are connected")
    server.push("decode", "t", 3, RESIDUAL, [b"r"])
    server.push("decode", "t", 3, ANCHOR, [b"a", b"b"])
    items = collect(client, 2)
    assert frames_of(items, "t", ANCHOR) == [b"a", b"b"]
    assert frames_of(items, "t", RESIDUAL) == [b"r"]
    assert source.opened == []
    with pytest.raises(TransportError, match="engine 'nobody' has no anchor connection"):
        server.push("nobody", "t", 3, ANCHOR, [])
    server.push("decode", "unwanted", 0, ANCHOR, [b"x"])
    eventually(lambda: client.dropped_frames() == 1, "a frame that nobody expects is counted")
    assert client.drain() == []


def test_the_anchor_connection_is_marked_and_the_residual_is_not(serve, connect):
    server, client = serve(ScriptedSource(lambda *_: [b"x"])), connect()
    pull(client, server, "t", ANCHOR, RESIDUAL)
    collect(client, 2)
    ends = [(c.sock, c.stream) for c in server.queue.connections]
    ends += [(c._sock, c.stream) for c in client._connections.values()]
    assert len(ends) == 4
    for sock, stream in ends:
        tos = sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)
        priority = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)
        assert (tos, priority) == ((0xB8, 6) if stream is ANCHOR else (0, 0))


def test_an_anchor_does_not_wait_for_the_residual_of_another_request(serve, connect):
    sizes = {("big", RESIDUAL): 40, ("late", ANCHOR): 8}
    source = ScriptedSource(lambda *key: [bytes(50_000)] * sizes.get(key, 0))
    server, client = serve(source, rate=4 * MB), connect()
    pull(client, server, "big", ANCHOR, RESIDUAL)
    collect(client, 1)  # the (empty) anchor
    time.sleep(0.1)
    started = time.monotonic()
    pull(client, server, "late", ANCHOR)
    items = collect(client, 1)
    took = end_of(items, "late", ANCHOR).last_at - started
    assert 0.09 < took < 0.16, "400 KB at 4 MB/s take 0.1 s by themselves"
    rest = collect(client, 1)
    assert end_of(rest, "big", RESIDUAL).frames == 40
    assert end_of(rest, "big", RESIDUAL).last_at > started + took


@pytest.mark.parametrize(("ageing_s", "overtaken"), [(0.05, True), (30.0, False)])
def test_a_steady_flow_of_anchors_does_not_starve_a_residual(serve, connect, ageing_s, overtaken):
    class Mixed(ScriptedSource):
        def open(self, transfer_id, generation, stream, args, sink):
            if stream is RESIDUAL:
                return
            for i in range(40):
                sink.put(ANCHOR, bytes(20_000))
                if i in (10, 11):
                    sink.put(RESIDUAL, bytes(20_000))
            sink.close(ANCHOR)
            sink.close(RESIDUAL)

    server, client = serve(Mixed(lambda *_: []), rate=2 * MB, ageing_s=ageing_s), connect()
    pull(client, server, "t", RESIDUAL, ANCHOR)
    items = collect(client, 2)
    residuals = [i.received_at for i in items if isinstance(i, Received) and i.stream is RESIDUAL]
    assert (residuals[1] < end_of(items, "t", ANCHOR).last_at) is overtaken


def test_encoding_overlaps_sending_and_anchors_hold_back_their_source(serve, connect):
    page, pages, encode_s = 50_000, 16, 0.03
    encoded: list[float] = []
    queued: list[int] = []

    def script(transfer_id, stream):
        for _ in range(pages):
            time.sleep(encode_s)
            encoded.append(time.monotonic())
            queued.append(server.queued_bytes())
            yield bytes(page)

    server = serve(ScriptedSource(script), rate=page / 0.04, anchor_window=2 * page)
    client = connect()
    started = time.monotonic()
    pull(client, server, "t", ANCHOR)
    items = collect(client, 1)
    took = end_of(items, "t", ANCHOR).last_at - started
    assert took < 0.04 * pages + encode_s + 0.15, "one after the other would take 0.07 s a page"
    received = [i.received_at for i in items if isinstance(i, Received)]
    assert all(encoded[i + 1] < received[i] for i in range(2, pages - 1))
    assert max(queued) <= 2 * page + page + 1000


def test_residual_frames_do_not_hold_back_their_source(serve, connect):
    put_in: list[float] = []

    class Bulk(ScriptedSource):
        def open(self, transfer_id, generation, stream, args, sink):
            started = time.monotonic()
            for _ in range(20):
                sink.put(RESIDUAL, bytes(20_000))
            put_in.append(time.monotonic() - started)
            sink.fail("enough seen")

    server, client = serve(Bulk(lambda *_: []), rate=100_000, anchor_window=1), connect()
    pull(client, server, "t", RESIDUAL)
    collect(client, 1)
    assert put_in[0] < 0.5, "400 KB at 100 KB/s would take 4 s"
    eventually(lambda: server.queued_bytes() < 25_000, "queued frames of a failed transfer are dropped")


def test_the_measured_rate_is_the_set_rate(serve, connect):
    source = ScriptedSource(lambda *_: [bytes(50_000)] * 80)
    server, client = serve(source, rate=6 * MB), connect()
    pull(client, server, "warm", RESIDUAL)
    collect(client, 0)
    client.cancel("warm", 0)
    errors = []
    for attempt in range(3):  # another process may hold the CPU for a while: once must be right
        cpu, started = time.process_time(), time.monotonic()
        pull(client, server, f"t{attempt}", ANCHOR)
        took = end_of(collect(client, 1), f"t{attempt}", ANCHOR).last_at - started
        cpu = time.process_time() - cpu
        errors.append(4 * MB / took / (6 * MB) - 1)
        if abs(errors[-1]) < 0.02 and cpu < 0.25 * took:
            return
    pytest.fail(f"relative errors {errors}, CPU {cpu:.2f} s in {took:.2f} s")


def test_the_rate_can_be_changed_while_sending(serve, connect):
    server = serve(ScriptedSource(lambda *_: [bytes(50_000)] * 100), rate=0.1 * MB)
    client = connect()
    pull(client, server, "t", ANCHOR)
    time.sleep(0.1)
    server.set_rate(None)
    started = time.monotonic()
    collect(client, 1)
    assert time.monotonic() - started < 5, "at the first rate it would take 50 s"


def test_requests_in_one_batch_can_have_links_of_different_speed(serve, connect):
    source = ScriptedSource(lambda *_: [bytes(20_000)] * 25, limits={"slow": 1 * MB, "fast": 4 * MB})
    server, client = serve(source), connect()
    started = time.monotonic()
    for transfer_id in ("slow", "fast"):
        pull(client, server, transfer_id, RESIDUAL, ANCHOR)
    items = collect(client, 4)
    for transfer_id, expected in (("slow", 1.0), ("fast", 0.25)):
        took = end_of(items, transfer_id, RESIDUAL).last_at - started
        assert took == pytest.approx(expected, rel=0.1, abs=0.03)
        anchor = end_of(items, transfer_id, ANCHOR).last_at - started
        assert anchor == pytest.approx(expected / 2, rel=0.2, abs=0.04)


def test_events_tell_of_peers_and_of_a_restart(serve, connect):
    events: list[object] = []
    client = connect(on_event=events.append)
    server = serve(ScriptedSource(lambda *_: [b"x"]), engine_id="first")
    pull(client, server, "t", ANCHOR, engine_id="first")
    collect(client, 1)
    port = server.port
    server.close()
    server = serve(ScriptedSource(lambda *_: [b"y"]), port=port, engine_id="second")
    eventually(lambda: not client._connections, "the loss is noticed")
    pull(client, server, "t", ANCHOR, generation=1)
    assert frames_of(collect(client, 1), "t", ANCHOR) == [b"y"]
    connected = [e for e in events if isinstance(e, PeerConnected)]
    assert [(e.engine_id, e.previous_engine_id) for e in connected] == [("first", None), ("second", "first")]


def test_a_sink_is_closed_with_its_stream(serve, connect):
    errors: list[str] = []

    class Twice(ScriptedSource):
        def open(self, transfer_id, generation, stream, args, sink):
            sink.put(stream, b"x")
            sink.close(stream)
            sink.close(stream)
            try:
                sink.put(stream, b"y")
            except TransferClosed as error:
                errors.append(str(error))

    server, client = serve(Twice(lambda *_: [])), connect()
    pull(client, server, "t", ANCHOR)
    assert frames_of(collect(client, 1), "t", ANCHOR) == [b"x"]
    eventually(lambda: errors, "the second put is refused")
    assert errors == ["transfer 't' generation 0, anchor: the stream is closed"]


def test_many_threads_may_pull_cancel_and_drain_at_once(serve, connect):
    server = serve(ScriptedSource(lambda *_: [bytes(3000)] * 20))
    client = connect()

    def work(name: int) -> None:
        for i in range(10):
            pull(client, server, f"{name}-{i}", RESIDUAL, ANCHOR)
            if i % 3 == 0:
                client.cancel(f"{name}-{i}", 0)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    items = collect(client, 2 * 4 * 6)
    assert all(isinstance(item, Received | StreamEnd) for item in items)
    eventually(lambda: server.queued_bytes() == 0, "nothing is left at the sender")
    assert client.drain() == []
    assert client.staged_bytes() == 0
