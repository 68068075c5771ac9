"""A request of 600 tokens as two servers traced it (ids and most pages cut), and what its client saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lynx_ascend.demo.client import Completion

P, D = "cmpl-b182-0-9eb3a930", "cmpl-b182-0-995aedbd"

PREFILL: list[dict[str, Any]] = [
    {"at": 2254.0726, "event": "prefilled", "request": P, "tokens": 600},
    {"at": 2254.2215, "event": "encoded", "request": P, "page": 0, "started_at": 2254.1295, "busy_s": 0.0802},
    {"at": 2254.3096, "event": "encoded", "request": P, "page": 1, "started_at": 2254.2216, "busy_s": 0.0742},
    {"at": 2254.3616, "event": "encoded", "request": P, "page": 2, "started_at": 2254.3096, "busy_s": 0.0402},
    {"at": 2254.4322, "event": "sent", "request": P, "stream": "anchor", "nbytes": 4112640,
     "first_at": 2254.1505, "last_at": 2254.4275},
]  # fmt: skip
DECODE: list[dict[str, Any]] = [
    {"at": 2254.1117, "event": "pull", "request": D, "source": P, "method": "lynx", "tokens": 600},
    {"at": 2254.4494, "event": "received", "request": D, "stream": "anchor", "nbytes": 4112640, "frames": 180,
     "first_at": 2254.1545, "last_at": 2254.4284},
    {"at": 2254.4497, "event": "loaded", "request": D},
    {"at": 2254.4562, "event": "draft_start", "request": D},
    {"at": 2254.6012, "event": "draft", "request": D},
    {"at": 2254.7513, "event": "draft", "request": D},
    {"at": 2255.1205, "event": "received", "request": D, "stream": "residual", "nbytes": 3444480, "frames": 180,
     "first_at": 2254.3850, "last_at": 2254.6628},
    {"at": 2255.1279, "event": "verify_start", "request": D, "drafted": 2},
    {"at": 2255.3123, "event": "verified", "request": D, "drafted": 2, "accepted": 1},
]  # fmt: skip


def completion() -> Completion:
    """The client's side: two tokens at once, then one."""
    return Completion(2253.5, "cmpl-b182", [788, 451, 9], [2255.32, 2255.32, 2255.40], "the meeting", "length")


def write(folder: Path, prefill: list[dict[str, Any]] = PREFILL, decode: list[dict[str, Any]] = DECODE) -> None:
    """The trace's files, one a process."""
    for name, events in (("producer-1.jsonl", prefill), ("consumer-2.jsonl", decode)):
        (folder / name).write_text("".join(json.dumps(event) + "\n" for event in events))
