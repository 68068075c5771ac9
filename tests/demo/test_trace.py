"""The trace of two servers becomes one request's story; a gap in it is an error, not a wrong picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from lynx_ascend.demo.trace import Span, TraceError, read_events, trace_of
from tests.demo import recorded


def test_both_servers_events_are_joined(tmp_path: Path) -> None:
    recorded.write(tmp_path)
    trace = trace_of(read_events(tmp_path), "cmpl-b182")
    assert (trace.request_id, trace.source_id) == (recorded.D, recorded.P)
    assert (trace.method, trace.tokens) == ("lynx", 600)
    assert trace.nbytes == {"anchor": 4112640, "residual": 3444480}
    assert trace.streams["residual"].received == Span(2254.3850, 2254.6628)
    assert trace.prefilled_at == 2254.0726
    assert [round(span.end - span.start, 4) for span in trace.encoded] == [0.0802, 0.0742, 0.0402]
    assert trace.drafts == [2254.6012, 2254.7513]
    assert trace.verify == Span(2255.1279, 2255.3123)
    assert (trace.drafted, trace.accepted) == (2, 1)


def test_events_are_in_the_order_of_time_across_files(tmp_path: Path) -> None:
    recorded.write(tmp_path)
    times = [event["at"] for event in read_events(tmp_path)]
    assert times == sorted(times) and len(times) == len(recorded.PREFILL) + len(recorded.DECODE)


def test_another_request_is_not_mixed_in(tmp_path: Path) -> None:
    other = [{**event, "request": event["request"].replace("b182", "b1820")} for event in recorded.DECODE]
    other[0]["source"] = recorded.P.replace("b182", "b1820")
    recorded.write(tmp_path, decode=recorded.DECODE + other)
    assert len(trace_of(read_events(tmp_path), "cmpl-b182").drafts) == 2
    with pytest.raises(TraceError, match="cmpl-b18: no pull"):
        trace_of(read_events(tmp_path), "cmpl-b18")


def test_a_fallback_is_an_error(tmp_path: Path) -> None:
    fallback = {"at": 2255.0, "event": "fallback", "request": recorded.D, "reason": "anchor stream: peer lost"}
    recorded.write(tmp_path, decode=[*recorded.DECODE[:3], fallback])
    with pytest.raises(TraceError, match="given up: anchor stream: peer lost"):
        trace_of(read_events(tmp_path), "cmpl-b182")


def test_a_line_still_being_written_is_left_out_but_a_bad_one_is_named(tmp_path: Path) -> None:
    recorded.write(tmp_path)
    path = tmp_path / "consumer-2.jsonl"
    path.write_text(path.read_text() + '{"at": 1, "eve')
    assert len(read_events(tmp_path)) == len(recorded.PREFILL) + len(recorded.DECODE)
    path.write_text('{"at": 1, "event": "pull"}\n')
    with pytest.raises(TraceError, match=r"consumer-2.jsonl, line 1: KeyError\('request'\)"):
        read_events(tmp_path)
