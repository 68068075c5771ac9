"""`lynx-ascend bench kernels` as a person runs it, at a small size; and its check finds what is wrong."""

from __future__ import annotations

import ctypes
import json
import math
import subprocess
import sys
from typing import Any

import pytest

from lynx_ascend import _twin
from lynx_ascend.bench.codec_works import CODECS, WrongResult
from lynx_ascend.bench.kernels import KernelBenchOptions, overlap, run

ROWS = [(codec, kernel) for codec in CODECS for kernel in ("encode", "anchor decode", "full decode")]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lynx_ascend.cli", "bench", "kernels", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    done = bench("--json", "--pages", "2", "--cores", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, "--json prints one object and nothing else"
    assert "Nothing was measured on an NPU" in done.stderr, "the table goes to stderr"
    return json.loads(done.stdout)


def test_every_kernel_is_there_once(result: dict[str, Any]) -> None:
    assert result["setup"]["estimate"] is True
    assert [(row["method"], row["kernel"]) for row in result["rows"]] == ROWS


def test_figures_agree(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        assert all(math.isfinite(value) and value > 0 for value in row.values() if isinstance(value, float | int)), row
        assert all(0 < busy <= 1 for busy in row["busy"].values()), row
        assert row["hidden_loads"] <= 1
        assert row["gb_per_s"] <= row["hbm_gb_per_s"] * (1 + 1e-9)
        # bf16 goes in or out once; codes are a byte at most, metadata is little.
        dense, coded = "loaded_bytes_per_element", "stored_bytes_per_element"
        if row["kernel"] != "encode":
            dense, coded = coded, dense
        assert row[dense] == pytest.approx(2, abs=0.05)
        assert 0.5 <= row[coded] < 1.6


@pytest.mark.parametrize(("kernel", "output"), [("encode", 3), ("encode", 4), ("decode", 4)])
def test_one_wrong_byte_is_found(monkeypatch: pytest.MonkeyPatch, kernel: str, output: int) -> None:
    launch = _twin.launch

    def spoiled(name: str, cores: int, arguments: list[Any]) -> _twin.Report:
        report = launch(name, cores, arguments)
        if name == f"lynx_{kernel}_bf16":
            address, size = arguments[output]
            ctypes.c_uint8.from_address(address + size // 2).value ^= 1
        return report

    monkeypatch.setattr(_twin, "launch", spoiled)
    with pytest.raises(WrongResult, match=kernel):
        run(KernelBenchOptions.of(codecs=["grid"], cores=2, pages=1))


@pytest.mark.parametrize("codecs", ["", "grid,grid", "grid,other"])
def test_codecs_that_are_not_there(codecs: str) -> None:
    done = bench("--codec", codecs)
    assert done.returncode == 2
    assert "--codec" in done.stderr


def test_overlap() -> None:
    timeline = [("A", "", 0.0, 4.0), ("B", "", 1.0, 2.0), ("B", "", 3.0, 6.0), ("A", "", 5.0, 7.0), ("C", "", 0.0, 9.0)]
    assert overlap(timeline, "A", "B") == 3
    assert overlap(timeline, "B", "A") == 3
    assert overlap(timeline, "A", "D") == 0
