"""Reads the connector's trace of both servers and puts one request's events in order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class TraceError(ValueError):
    """A trace that cannot be read, or that lacks what was asked for."""


@dataclass(frozen=True)
class Span:
    """From start to end, time.monotonic() seconds."""

    start: float
    end: float


@dataclass(frozen=True)
class StreamTrace:
    """One stream as the decode side saw it: nbytes with frame headers, first to last byte."""

    nbytes: int
    received: Span


@dataclass
class RequestTrace:
    """One request from the end of its prefill to the end of its verification. Times: time.monotonic() seconds.

    Attributes:
        request_id, source_id: on the decode and on the prefill server.
        encoded: one span a page, of the time spent encoding.
        streams: by name: anchor, residual.
        drafts: when each draft was sampled; nobody outside the decode server sees them.
        verify: from scheduling the verification to its outcome.
    """

    request_id: str
    source_id: str
    method: str
    tokens: int
    pulled_at: float
    prefilled_at: float | None = None
    encoded: list[Span] = field(default_factory=list)
    streams: dict[str, StreamTrace] = field(default_factory=dict)
    drafts: list[float] = field(default_factory=list)
    verify: Span | None = None
    drafted: int = 0
    accepted: int = 0

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes on the wire by stream, frame headers included."""
        return {name: stream.nbytes for name, stream in self.streams.items()}


def read_events(folder: Path) -> list[Event]:
    """Events of all files in the folder, in the order of time. A line that is still being written is left out.

    Raises:
        TraceError: a complete line is no event.
    """
    events: list[Event] = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(keepends=True), 1):
            if not line.endswith("\n"):
                continue
            try:
                event = json.loads(line)
                event["at"], event["event"], event["request"]
            except (ValueError, KeyError, TypeError) as error:
                raise TraceError(f"{path.name}, line {number}: {error!r}") from None
            events.append(event)
    return sorted(events, key=lambda event: float(event["at"]))


def trace_of(events: list[Event], completion_id: str) -> RequestTrace:
    """The request behind a completion's id.

    Raises:
        TraceError: it pulled nothing, or fell back to computing the prompt itself.
    """
    pulls = [e for e in events if e["event"] == "pull" and e["request"].startswith(f"{completion_id}-")]
    if not pulls:
        raise TraceError(f"request {completion_id}: no pull in the trace")
    pull = pulls[-1]
    trace = RequestTrace(pull["request"], pull["source"], pull["method"], pull["tokens"], pull["at"])
    for event in events:
        if event["request"] == trace.request_id:
            _take_decode_event(trace, event)
        elif event["request"] == trace.source_id:
            _take_prefill_event(trace, event)
    return trace


def _take_decode_event(trace: RequestTrace, event: Event) -> None:
    at = event["at"]
    match event["event"]:
        case "received":
            trace.streams[event["stream"]] = StreamTrace(event["nbytes"], Span(event["first_at"], event["last_at"]))
        case "draft":
            trace.drafts.append(at)
        case "verify_start":
            trace.verify = Span(at, at)
        case "verified":
            trace.verify = Span(trace.verify.start if trace.verify else at, at)
            trace.drafted, trace.accepted = event["drafted"], event["accepted"]
        case "fallback":
            raise TraceError(f"request {trace.request_id}: transfer given up: {event['reason']}")


def _take_prefill_event(trace: RequestTrace, event: Event) -> None:
    match event["event"]:
        case "prefilled":
            trace.prefilled_at = event["at"]
        case "encoded":
            trace.encoded.append(Span(event["started_at"], event["started_at"] + event["busy_s"]))
