"""Counters and timelines of the twin: exact for a kernel whose every instruction is known."""

from __future__ import annotations

import struct
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest

TILE = 4096  # floats
DMA = TILE * 4 / 10  # cycles, 10 bytes each
MULS = 20 + 64 * 0.9  # 64 repeats
VECTOR = 8 * MULS


def tiles(twin: ModuleType, cores: int, count: int, buffers: int, ahead: int) -> dict[str, Any]:
    x = np.random.default_rng(count).standard_normal(count * TILE).astype(np.float32)
    y = np.zeros_like(x)
    numbers = [struct.pack("i", i) for i in (count, buffers, ahead)]
    report: dict[str, Any] = twin.launch("tiles", cores, [(a.ctypes.data, a.nbytes) for a in (x, y)] + numbers)
    assert np.array_equal(y, x * 2)
    return report


def overlap(core: dict[str, Any], a: str, b: str) -> float:
    """Cycles in which both pipes are busy."""
    spans = {pipe: [(s, e) for p, _, s, e in core["timeline"] if p == pipe] for pipe in (a, b)}
    return sum(max(0.0, min(e, f) - max(s, t)) for s, e in spans[a] for t, f in spans[b])


def test_counters(twin: ModuleType) -> None:
    core = tiles(twin, 1, 5, 2, 1)["cores"][0]
    moved = {"instructions": 5, "repeats": 5, "bytes": 5 * TILE * 4, "cycles": pytest.approx(5 * DMA)}
    assert core["pipes"]["MTE2"] == moved
    assert core["pipes"]["MTE3"] == moved
    vector = {"instructions": 40, "repeats": 40 * 64, "bytes": 0, "cycles": pytest.approx(5 * VECTOR)}
    assert core["pipes"]["V"] == vector
    assert core["pipes"]["S"]["instructions"] == 0


def test_prefetching_overlaps(twin: ModuleType) -> None:
    core = tiles(twin, 1, 5, 2, 1)["cores"][0]
    assert overlap(core, "MTE2", "V") == pytest.approx(4 * VECTOR)  # all but the last tile's
    assert core["cycles"] == pytest.approx(5 * DMA + VECTOR + DMA)


def test_one_buffer_does_not(twin: ModuleType) -> None:
    core = tiles(twin, 1, 5, 1, 0)["cores"][0]
    assert overlap(core, "MTE2", "V") == 0
    # Tile t + 1 is fetched while tile t is stored; then it is computed.
    assert core["cycles"] == pytest.approx(5 * (DMA + VECTOR) + DMA)


def test_timeline_keeps_its_order(twin: ModuleType) -> None:
    core = tiles(twin, 1, 5, 2, 1)["cores"][0]
    for pipe in ("MTE2", "V", "MTE3"):
        spans = [(s, e) for p, _, s, e in core["timeline"] if p == pipe]
        assert all(e <= s for (_, e), (s, _) in pairwise(spans))
    first = {pipe: next(s for p, _, s, _ in core["timeline"] if p == pipe) for pipe in ("MTE2", "V", "MTE3")}
    assert first == pytest.approx({"MTE2": 0, "V": DMA, "MTE3": DMA + VECTOR})


@pytest.mark.parametrize("cores", [1, 3, 40])
def test_cores_share_the_tiles(twin: ModuleType, cores: int) -> None:
    report = tiles(twin, cores, 7, 2, 1)
    shares = [core["pipes"]["MTE2"]["instructions"] for core in report["cores"]]
    assert shares == [len(range(i, 7, cores)) for i in range(cores)]
    assert report["cycles"] == max(core["cycles"] for core in report["cores"])
    assert report["seconds"] == pytest.approx(report["cycles"] / 1.5e9)
