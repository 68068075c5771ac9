"""Measured rows on disk, one JSON file a case, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash

from lynx_ascend.evaluation.measure import VERSION, Row


class CaseResults:
    """The rows of one case.

    A row counts only for the text, the model, the version of the measurement and the kind of case by which the file is
    named, and for the method's fingerprint that stands beside it.

    Attributes:
        kv: where the case itself is kept.
    """

    def __init__(self, folder: Path, ids: Sequence[int], model: str, *, long: bool = False) -> None:
        what = [VERSION, model, list(ids), *(["long"] if long else [])]
        key = xxhash.xxh3_64_hexdigest(json.dumps(what).encode())
        self.kv = folder / f"{key}.pt"
        self._path = folder / f"{key}.json"
        self._rows: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            self._rows = json.loads(self._path.read_text(encoding="utf-8"))

    def get(self, method: str, fingerprint: str) -> Row | None:
        """The row, if it was measured with that very method."""
        entry = self._rows.get(method)
        if entry is None or entry["fingerprint"] != fingerprint:
            return None
        row: Row = entry["row"]
        return row

    def put(self, method: str, fingerprint: str, row: Row) -> None:
        """Keeps the row, on disk too."""
        self._rows[method] = {"fingerprint": fingerprint, "row": row}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._rows), encoding="utf-8")
        part.rename(self._path)
