"""The receiver's books: drain order, ends, generations and caps, without sockets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport import FaultKind, Received, StreamEnd, StreamFault
from lynx_ascend.transport.staging import Rejected, Staging
from tests.transport.transport_rig import ANCHOR, RESIDUAL

CAP = 1000


def arrive(
    staging: Staging,
    transfer_id: str,
    stream: Stream,
    sequence: int,
    size: int = 10,
    generation: int = 0,
    carrier: str = "c",
):
    slot = staging.open_frame(transfer_id, generation, stream, sequence, size, carrier)
    if slot is not None:
        staging.commit(slot)
    return slot


def short(items):
    kinds = {Received: "", StreamEnd: ".", StreamFault: "!"}
    return [f"{i.transfer_id}{i.stream.name[0]}{kinds[type(i)]}" for i in items]


def test_all_anchor_items_come_before_any_residual_item():
    staging = Staging()
    for transfer_id in "ab":
        for stream in (RESIDUAL, ANCHOR):
            staging.begin(transfer_id, 0, stream, "c", CAP)
    for transfer_id in "ab":
        for stream in (RESIDUAL, ANCHOR):
            arrive(staging, transfer_id, stream, 0)
            staging.end(transfer_id, 0, stream, 1, 10, "c")
    assert short(staging.drain(None, None)) == ["aA", "aA.", "bA", "bA.", "aR", "aR.", "bR", "bR."]


@given(st.permutations(["rA", "eA", "rR", "eR", "pA", "pR", "d", "d"]))
def test_a_residual_end_never_comes_before_its_anchor_end(events):
    """r: a frame, e: an End, p: the pull, d: a drain; whatever the order in which they happen."""
    staging, out, begun, frames = Staging(), [], set(), {ANCHOR: 0, RESIDUAL: 0}
    for event in events:
        stream = RESIDUAL if event[-1] == "R" else ANCHOR
        if event == "d":
            out += staging.drain(None, None)
        elif event[0] == "p":
            staging.begin("t", 0, stream, "c", CAP)
            begun.add(stream)
        elif event[0] == "r" and arrive(staging, "t", stream, 0) is not None:
            frames[stream] += 1
        elif event[0] == "e":
            staging.end("t", 0, stream, frames[stream], 10 * frames[stream], "c")
    out += staging.drain(None, None)
    ends = [item.stream for item in out if isinstance(item, StreamEnd)]
    assert ends in ([], [ANCHOR], [ANCHOR, RESIDUAL])
    assert staging.staged_bytes() == 0


def test_a_residual_pulled_after_its_anchor_was_drained_still_ends():
    staging = Staging()
    staging.begin("t", 0, ANCHOR, "c", CAP)
    staging.end("t", 0, ANCHOR, 0, 0, "c")
    assert short(staging.drain(None, None)) == ["tA."]
    staging.begin("t", 0, RESIDUAL, "c", CAP)
    staging.end("t", 0, RESIDUAL, 0, 0, "c")
    assert short(staging.drain(None, None)) == ["tR."]


def test_limits_of_drain_take_at_least_one_item():
    staging = Staging()
    staging.begin("t", 0, ANCHOR, "c", CAP)
    for sequence in range(6):
        arrive(staging, "t", ANCHOR, sequence, 100)
    assert staging.staged_bytes() == 600
    assert len(staging.drain(2, None)) == 2
    assert len(staging.drain(None, 101)) == 2
    assert len(staging.drain(0, None)) == 1
    assert len(staging.drain(None, 1)) == 1
    assert staging.staged_bytes() == 0
    assert staging.drain(None, None) == []


def test_late_and_repeated_messages_change_nothing():
    staging = Staging()
    staging.begin("t", 0, ANCHOR, "c", CAP)
    arrive(staging, "t", ANCHOR, 0)
    staging.end("t", 0, ANCHOR, 1, 10, "c")
    staging.end("t", 0, ANCHOR, 1, 10, "c")
    staging.end("t", 0, ANCHOR, 9, 9, "c")
    staging.end("never heard of", 0, ANCHOR, 1, 10, "c")
    assert arrive(staging, "t", ANCHOR, 1) is None
    assert staging.fail("t", 0, FaultKind.STALLED, "late") == []
    assert short(staging.drain(None, None)) == ["tA", "tA."]


@pytest.mark.parametrize(
    ("sequence", "size", "named"), [(1, 10, "frame 1 came where 0 was due"), (0, CAP + 1, f"cap of {CAP}")]
)
def test_frames_that_break_the_promise_are_rejected(sequence, size, named):
    staging = Staging()
    staging.begin("t", 0, ANCHOR, "c", CAP)
    with pytest.raises(Rejected, match=named):
        arrive(staging, "t", ANCHOR, sequence, size)
    assert staging.staged_bytes() == 0


def test_the_cap_is_on_the_sum_of_frames():
    staging = Staging()
    staging.begin("t", 0, ANCHOR, "c", CAP)
    arrive(staging, "t", ANCHOR, 0, CAP)
    with pytest.raises(Rejected, match=f"{CAP} \\+ 1 bytes exceed"):
        arrive(staging, "t", ANCHOR, 1, 1)


def test_an_end_with_other_totals_is_rejected():
    staging = Staging()
    staging.begin("t", 0, ANCHOR, "c", CAP)
    arrive(staging, "t", ANCHOR, 0)
    with pytest.raises(Rejected, match="2 frames of 20 bytes in all, 1 frames of 10"):
        staging.end("t", 0, ANCHOR, 2, 20, "c")


def test_a_fault_ends_what_is_unfinished_and_keeps_what_is_complete():
    staging = Staging()
    staging.begin("t", 0, ANCHOR, "ca", CAP)
    staging.begin("t", 0, RESIDUAL, "cr", CAP)
    arrive(staging, "t", RESIDUAL, 0, carrier="cr")
    arrive(staging, "t", ANCHOR, 0, carrier="ca")
    staging.end("t", 0, ANCHOR, 1, 10, "ca")
    assert [t.transfer_id for t in staging.carried_by("cr")] == ["t"]
    assert staging.carried_by("ca") == []
    assert staging.fail("t", 0, FaultKind.PEER, "why") == ["cr"]
    items = staging.drain(None, None)
    assert short(items) == ["tR!", "tA", "tA."]
    assert items[0].reason == "why"
    assert staging.staged_bytes() == 0


def test_cancel_frees_everything_even_of_a_frame_that_is_being_received():
    staging = Staging()
    staging.begin("t", 0, ANCHOR, "c", CAP)
    arrive(staging, "t", ANCHOR, 0)
    slot = staging.open_frame("t", 0, ANCHOR, 1, 300, "c")
    assert staging.staged_bytes() == 310
    assert staging.cancel("t", 0) == ["c"]
    assert staging.staged_bytes() == 300
    staging.commit(slot)
    assert staging.staged_bytes() == 0
    assert staging.drain(None, None) == []
    assert staging.dropped_frames() == 2
    assert staging.cancel("t", 0) == []


def test_a_newer_generation_supersedes_and_an_older_one_is_refused():
    staging = Staging()
    staging.begin("t", 1, ANCHOR, "c", CAP)
    arrive(staging, "t", ANCHOR, 0, generation=1)
    staging.begin("t", 2, ANCHOR, "c", CAP)
    assert arrive(staging, "t", ANCHOR, 1, generation=1) is None
    arrive(staging, "t", ANCHOR, 0, generation=2)
    fault, received = staging.drain(None, None)
    # Its user would wait for it otherwise.
    assert fault == StreamFault("t", 1, ANCHOR, FaultKind.SUPERSEDED, "superseded by generation 2")
    assert received.generation == 2 and staging.staged_bytes() == 0
    with pytest.raises(ValueError, match="generation 1 of 't': 2 is under way"):
        staging.begin("t", 1, RESIDUAL, "c", CAP)
    with pytest.raises(ValueError, match="anchor of 't' generation 2 is under way"):
        staging.begin("t", 2, ANCHOR, "c", CAP)


def test_stalls_are_told_by_progress_on_either_stream():
    now = 0.0
    staging = Staging(lambda: now)
    staging.begin("t", 0, ANCHOR, "c", CAP)
    staging.begin("t", 0, RESIDUAL, "c", CAP)
    now = 5.0
    slot = staging.open_frame("t", 0, RESIDUAL, 0, 10, "c")
    now = 9.0
    assert staging.stalled(6.0) == []
    staging.touch(slot)
    now = 14.0
    assert staging.stalled(6.0) == []
    now = 15.1
    assert [t.transfer_id for t in staging.stalled(6.0)] == ["t"]
