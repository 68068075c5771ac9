"""What happened when: one JSON line an event, for the demo's timeline and for whoever looks into one request."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec


class Trace:
    """Appends events to a file of this process under `folder`; does nothing when folder is None.

    Times are CLOCK_MONOTONIC seconds, the same clock in all processes of a machine.
    """

    def __init__(self, folder: str | None, role: str) -> None:
        self._lock = threading.Lock()
        self._file = None
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = open(Path(folder) / f"{role}-{os.getpid()}.jsonl", "ab", buffering=0)  # noqa: SIM115

    def __call__(self, event: str, request_id: str, **fields: Any) -> None:
        if self._file is None:
            return
        line = {"at": time.monotonic(), "event": event, "request": request_id, **fields}
        with self._lock:
            self._file.write(msgspec.json.encode(line) + b"\n")
