"""The order in which a sender sends, with a fake clock and no sockets."""

import math

import pytest

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport import TokenBucket
from lynx_ascend.transport.sendqueue import Connection, Lane, SendQueue, Transfer
from tests.transport.transport_rig import ANCHOR, RESIDUAL


class Link:
    """A queue, its clock, and a link that takes what the queue gives."""

    def __init__(self, rate: float | None = None, ageing_s: float = 1.0) -> None:
        self.now = 0.0
        self.queue = SendQueue(TokenBucket(rate, clock=lambda: self.now), ageing_s, lambda: self.now)
        self.connections: dict[tuple[str, Stream], Connection] = {}
        self.log: list[str] = []

    def lane(self, transfer: Transfer, stream: Stream) -> Lane:
        key = transfer.engine_id, stream
        if key not in self.connections:
            conn = Connection(None, "peer", 0.0, transfer.engine_id, stream)  # no socket: nothing is written to it
            self.connections[key] = conn
            self.queue.connections[conn] = None
        lane = transfer.lane(stream)
        if lane.conn is None:
            self.queue.bind(lane, self.connections[key])
        return lane

    def put(self, lane: Lane, size: int = 1000) -> None:
        self.queue.push(lane, b"", memoryview(bytes(size)))
        lane.frames += 1

    def send_one(self) -> str | None:
        """Send one piece; the name of its stream, or None when nothing may go now."""
        picked = self.queue.pick()
        if isinstance(picked, float):
            return None
        conn, out, limit = picked
        self.queue.advance(conn, out, min(limit, out.size - out.offset))
        return f"{out.lane.transfer.transfer_id}{out.lane.stream.name[0]}" if out.lane else "control"

    def run(self) -> list[str]:
        """Send until nothing is left, letting time pass where the link asks for it."""
        log = []
        while True:
            picked = self.queue.pick()
            if isinstance(picked, float):
                if math.isinf(picked):
                    return log
                self.now += picked + 1e-9
            else:
                log.append(self.send_one())


def transfer(name: str, engine: str = "D") -> Transfer:
    return Transfer(engine, name, 0, 0.0)


def test_anchors_of_any_transfer_go_before_residuals_and_exact_goes_last():
    link = Link()
    a, b = transfer("a"), transfer("b", "E")
    for lane in (link.lane(a, Stream.EXACT), link.lane(a, RESIDUAL), link.lane(a, ANCHOR), link.lane(b, ANCHOR)):
        link.put(lane)
        link.put(lane)
    assert link.run() == ["aA", "aA", "bA", "bA", "aR", "aR", "aE", "aE"]
    assert link.queue.queued == 0


def test_frames_of_a_class_go_in_order_of_arrival():
    link = Link()
    lanes = [link.lane(transfer(name), ANCHOR) for name in "abc"]
    for lane in (lanes[2], lanes[0], lanes[1], lanes[0], lanes[2]):
        link.put(lane)
    assert link.run() == ["cA", "aA", "bA", "aA", "cA"]


def test_an_anchor_overtakes_a_large_residual_frame_between_its_pieces():
    link = Link(rate=1e6)
    t = transfer("t")
    link.put(link.lane(t, RESIDUAL), 100_000)
    link.now += 0.01
    while link.send_one() is None:
        link.now += 0.001
    link.put(link.lane(t, ANCHOR), 2000)
    log = link.run()
    assert log[0] == "tA"
    assert log.count("tR") > 10


def test_an_aged_residual_gets_one_frame_among_anchors_and_then_waits_again():
    link = Link(rate=1e6, ageing_s=0.1)
    t, u = transfer("t"), transfer("u")
    for _ in range(10):
        link.put(link.lane(t, RESIDUAL))
    for _ in range(500):  # half a second of anchors
        link.put(link.lane(u, ANCHOR))
    log = link.run()
    places = [i for i, name in enumerate(log) if name == "tR"]
    assert places[:4] == [pytest.approx(101 * (k + 1), abs=3) for k in range(4)]
    assert set(log[-5:]) == {"tR"}


def test_a_residual_waits_while_its_own_peer_takes_no_anchor_but_other_peers_go_on():
    link = Link(ageing_s=1.0)
    t, u = transfer("t"), transfer("u", "E")
    link.put(link.lane(t, ANCHOR))
    link.put(link.lane(t, RESIDUAL))
    link.put(link.lane(u, RESIDUAL))
    link.connections["D", ANCHOR].blocked_at = 0.0
    assert link.send_one() == "uR"
    assert link.send_one() is None
    link.now = 1.1
    assert link.send_one() == "tR"  # aged: not starved for ever


def test_a_transfer_with_its_own_limit_holds_up_nobody_and_keeps_its_own_order():
    link = Link(ageing_s=60)
    slow, fast = transfer("s"), transfer("f")
    slow.bucket = TokenBucket(1000.0, clock=lambda: link.now)
    link.put(link.lane(slow, RESIDUAL), 10)
    link.put(link.lane(slow, ANCHOR), 1000)
    link.put(link.lane(fast, RESIDUAL))
    link.put(link.lane(fast, ANCHOR))
    assert [link.send_one(), link.send_one(), link.send_one()] == ["fA", "fR", None]
    link.now = 0.9  # enough for the small residual, but the anchor is to go first
    assert link.send_one() is None
    link.now = 1.001
    assert link.send_one() == "sA"
    assert link.send_one() is None
    link.now = 1.02
    assert link.send_one() == "sR"


def test_a_frame_begun_is_completed_before_anything_else_on_its_connection():
    link = Link()
    t = transfer("t")
    lane = link.lane(t, RESIDUAL)
    link.put(lane, 150_000)
    link.put(lane, 10)
    link.send_one()
    link.queue.push_control(link.connections["D", RESIDUAL], b"x")
    link.queue.drop(t)
    assert link.queue.queued == 150_000 - (64 << 10)
    assert link.run() == ["tR", "tR", "control"]
    assert link.queue.queued == 0


def test_a_piece_spans_head_and_payload_without_loss():
    link = Link(rate=4e5)
    lane = link.lane(transfer("t"), ANCHOR)
    payload = bytes(range(256)) * 20
    link.queue.push(lane, b"head" * 500, memoryview(payload))
    wire = bytearray()
    while lane.queued:
        link.now += 0.01
        picked = link.queue.pick()
        if not isinstance(picked, float):
            conn, out, limit = picked
            parts = b"".join(out.piece(limit))
            assert 0 < len(parts) <= limit
            wire += parts
            link.queue.advance(conn, out, len(parts))
    assert wire == b"head" * 500 + payload


def test_a_lost_connection_leaves_nothing_accounted():
    link = Link()
    t = transfer("t")
    lane = link.lane(t, RESIDUAL)
    link.put(lane, 100_000)
    link.put(lane, 100_000)
    conn, out, limit = link.queue.pick()
    link.queue.disconnect(conn)
    link.queue.drop(t)
    t.ended = "lost"
    assert link.queue.advance(conn, out, limit) is None  # the write that was under way returns afterwards
    assert (link.queue.queued, lane.queued) == (0, 0)
    assert isinstance(link.queue.pick(), float)


def test_outgoing_order_is_kept_when_a_lane_is_bound_late():
    link = Link()
    t, u = transfer("t"), transfer("u")
    early = t.lane(ANCHOR)
    link.put(early)
    link.put(link.lane(u, ANCHOR))
    assert link.send_one() == "uA"
    link.put(link.lane(u, ANCHOR))
    link.lane(t, ANCHOR)
    assert link.run() == ["tA", "uA"]
