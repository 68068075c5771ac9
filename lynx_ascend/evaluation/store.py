"""Measured rows on disk, one JSON file a case, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import xxhash

from lynx_ascend.evaluation.measure import VERSION, Row

R = TypeVar("R")


class Results(Generic[R]):
    """The rows of one case by method, JSON values in the file `path`.

    A row counts only for the method's fingerprint that stands beside it; what else it depends on is to be in the path.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            self._rows = json.loads(self._path.read_text(encoding="utf-8"))

    def get(self, method: str, fingerprint: str) -> R | None:
        """The row, if it was measured with that very method."""
        entry = self._rows.get(method)
        if entry is None or entry["fingerprint"] != fingerprint:
            return None
        row: R = entry["row"]
        return row

    def put(self, method: str, fingerprint: str, row: R) -> None:
        """Keeps the row, on disk too."""
        self._rows[method] = {"fingerprint": fingerprint, "row": row}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._rows), encoding="utf-8")
        part.rename(self._path)


class CaseResults(Results[Row]):
    """The rows of a case of `eval fidelity`, named by its text, the model, the version of the measurement and its kind.

    Attributes:
        kv: where the case itself is kept.
    """

    def __init__(self, folder: Path, ids: Sequence[int], model: str, *, long: bool = False) -> None:
        what = [VERSION, model, list(ids), *(["long"] if long else [])]
        key = digest_of(what)
        self.kv = folder / f"{key}.pt"
        super().__init__(folder / f"{key}.json")


def digest_of(what: Sequence[Any]) -> str:
    """A name for JSON values: another one for other values."""
    return xxhash.xxh3_64_hexdigest(json.dumps(what).encode())
