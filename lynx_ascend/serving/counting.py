"""Counts what passes: listeners on the events that the scheduler half and the workers report, in front of the trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from lynx_ascend.serving.metrics import Meter


class Listener(Protocol):
    """Takes an event of a request, as `Trace` does."""

    def __call__(self, event: str, request_id: str, **fields: Any) -> None: ...


class WorkerCounts:
    """Counts a producer's or a consumer's events. Called from any thread."""

    def __init__(self, trace: Listener, meter: Meter) -> None:
        self._trace = trace
        self._meter = meter

    def __call__(self, event: str, request_id: str, **fields: Any) -> None:
        self._trace(event, request_id, **fields)
        meter = self._meter
        match event:
            case "encoded":
                meter.add("lynx_encode_seconds_total", fields["busy_s"])
            case "sent":
                meter.add("lynx_sent_bytes_total", fields["nbytes"], fields["stream"])
                meter.observe("lynx_send_seconds", fields["last_at"] - fields["first_at"], fields["stream"])
            case "cancelled":
                meter.add("lynx_cancelled_sends_total")
            case "expired":
                meter.add("lynx_expired_prompts_total")
            case "received":
                meter.add("lynx_received_bytes_total", fields["nbytes"], fields["stream"])
                meter.observe("lynx_receive_seconds", fields["last_at"] - fields["first_at"], fields["stream"])
                meter.add("lynx_decode_seconds_total", fields["decode_s"], fields["stream"])
            case "complete":
                meter.add("lynx_transfers_total")
            case "failed":
                meter.add("lynx_failed_transfers_total", 1, fields["kind"])


class SchedulerCounts:
    """Counts a scheduler half's events.

    Args:
        now: seconds of a steady clock.
    """

    def __init__(self, trace: Listener, meter: Meter, now: Callable[[], float] = time.monotonic) -> None:
        self._trace = trace
        self._meter = meter
        self._now = now
        self._since: dict[str, float] = {}  # when the stage began that a request is in

    def __call__(self, event: str, request_id: str, **fields: Any) -> None:
        self._trace(event, request_id, **fields)
        meter = self._meter
        match event:
            case "prefilled":
                meter.add("lynx_held_prompts_total")
                meter.add("lynx_held_tokens_total", fields["tokens"])
            case "handed":
                meter.add("lynx_handed_tokens_total")
            case "pull":
                meter.add("lynx_pulls_total", 1, fields["method"])
                self._since[request_id] = self._now()
            case "draft_start":
                self._stage("load_anchor", request_id)
            case "exact":
                self._stage("load_all", request_id, last=True)
            case "verify_start":
                self._stage("draft", request_id)
                meter.observe("lynx_draft_window_tokens", fields["drafted"])
            case "verified":
                self._stage("verify", request_id, last=True)
                if drafted := fields["drafted"]:
                    meter.add("lynx_verifications_total")
                    meter.add("lynx_drafted_tokens_total", drafted)
                    meter.add("lynx_accepted_tokens_total", fields["accepted"])
                    meter.add("lynx_whole_drafts_total", fields["accepted"] == drafted)
            case "fallback":
                meter.add("lynx_fallbacks_total", 1, fields["cause"])
                self._since.pop(request_id, None)
            case "abort":
                # Without a stage it has fallen back before, or nothing was ordered for it yet.
                if self._since.pop(request_id, None) is not None:
                    meter.add("lynx_aborted_total")
            case "skip":
                meter.add("lynx_skips_total", 1, fields["reason"])
            case "refused":
                meter.add("lynx_refused_requests_total")

    def _stage(self, stage: str, request_id: str, last: bool = False) -> None:
        now = self._now()
        if (since := self._since.pop(request_id, None)) is not None:
            self._meter.observe("lynx_stage_seconds", now - since, stage)
        if not last:
            self._since[request_id] = now
