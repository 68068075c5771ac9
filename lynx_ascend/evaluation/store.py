"""Measured rows on disk, one JSON file a case, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import xxhash

from lynx_ascend.evaluation.measure import VERSION, Row
from lynx_ascend.evaluation.session import replacing

R = TypeVar("R")


class Results(Generic[R]):
    """The rows of one case by method, JSON values in the file `path`.

    A row counts only for the method's fingerprint that stands beside it; what else it depends on is to be in the path.
    Several processes may add to one file.

    Raises:
        ValueError: the file is not JSON.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = self._read()

    def get(self, method: str, fingerprint: str) -> R | None:
        """The row, if it was measured with that very method."""
        entry = self._rows.get(method)
        if entry is None or entry["fingerprint"] != fingerprint:
            return None
        row: R = entry["row"]
        return row

    def put(self, method: str, fingerprint: str, row: R) -> None:
        """Keeps the row, on disk too, beside those that others have added there."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with (self._path.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
            self._rows = self._read() | {method: {"fingerprint": fingerprint, "row": row}}
            with replacing(self._path) as part:
                part.write_text(json.dumps(self._rows), encoding="utf-8")

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            rows: dict[str, dict[str, Any]] = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ValueError(f"{self._path}: not JSON ({error})") from None
        return rows


class CaseResults(Results[Row]):
    """The rows of a case of `eval fidelity`, named by its text, the model, its runtime, the version of the measurement
    and its kind.

    Attributes:
        key: the name of its files. kv: where the case itself is kept.
    """

    def __init__(
        self, folder: Path, ids: Sequence[int], model: str, runtime: Mapping[str, Any], *, long: bool = False
    ) -> None:
        what = [VERSION, model, runtime, list(ids), *(["long"] if long else [])]
        self.key = digest_of(what)
        self.kv = folder / f"{self.key}.pt"
        super().__init__(folder / f"{self.key}.json")


def digest_of(what: Sequence[Any]) -> str:
    """A name for JSON values: another one for other values."""
    return xxhash.xxh3_64_hexdigest(json.dumps(what).encode())
