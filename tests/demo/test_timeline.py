"""The figure shows what the trace holds, in seconds from the client's request."""

from __future__ import annotations

from pathlib import Path

import pytest

from lynx_ascend.demo.measured import Run
from lynx_ascend.demo.timeline import draw, milestones, rows_of
from lynx_ascend.demo.trace import read_events, trace_of
from tests.demo import recorded


@pytest.fixture
def run(tmp_path: Path) -> Run:
    recorded.write(tmp_path)
    return Run(recorded.completion(), trace_of(read_events(tmp_path), "cmpl-b182"))


def test_rows_of_a_split_method(run: Run) -> None:
    rows = {row.label: row for row in rows_of(run)}
    assert [label.split(":")[0] for label in rows] == [
        *["prefill server"] * 2, *["link"] * 2, *["decode server"] * 2, "client",
    ]  # fmt: skip
    assert rows["link: anchor stream"].bars[0].start == pytest.approx(0.6545)
    assert rows["link: residual stream"].note == "3.4 MB"
    assert len(rows["prefill server: encode"].bars) == 3
    assert rows["decode server: drafts"].ticks == pytest.approx((1.1012, 1.2513))
    verify = rows["decode server: verify"]
    assert (verify.bars[0].start, verify.bars[0].end) == pytest.approx((1.6279, 1.8123))
    assert verify.note == "one pass, 1 of 2 accepted"
    assert rows["client: tokens"].ticks == pytest.approx((1.82, 1.82, 1.90))


def test_no_drafting_rows_for_a_monolithic_method(tmp_path: Path) -> None:
    decode = [{**event, "method": "int8"} if event["event"] == "pull" else event for event in recorded.DECODE[:3]]
    recorded.write(tmp_path, decode=decode)
    rows = rows_of(Run(recorded.completion(), trace_of(read_events(tmp_path), "cmpl-b182")))
    assert [row.label for row in rows] == [
        "prefill server: last block", "prefill server: encode", "link: int8 stream", "client: tokens",
    ]  # fmt: skip


def test_milestones_tell_what_came_at_once() -> None:
    assert milestones(recorded.completion()) == "2 at once, 2: 1.82 s"


def test_a_png_is_written(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "timeline.png"
    draw([run, run], path, "two of them")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 10_000
