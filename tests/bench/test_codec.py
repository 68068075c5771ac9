"""`lynx-ascend bench codec` as a person runs it, at a small size; and its checks find what is wrong."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch

from lynx_ascend import _C
from lynx_ascend.bench.codec_works import CODECS, Cache, KernelWorks, WrongResult
from lynx_ascend.bench.rounds import MIN_ROUNDS

KERNELS = ("encode", "anchor decode", "full decode")
THREADS = (1, 2)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lynx_ascend.cli", "bench", "codec", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    done = bench("--json", "--megabytes", "1", "--seconds", "0", "--threads", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, "--json prints one object and nothing else"
    assert "quartiles" in done.stderr, "the tables go to stderr"
    return json.loads(done.stdout)


def test_every_kernel_codec_and_thread_count_is_there_once(result: dict[str, Any]) -> None:
    assert [run["isa"] for run in result["runs"]] == _C.supported_isas()
    for run in result["runs"]:
        assert run["rounds"] == MIN_ROUNDS
        wanted = {
            *((name, codec, kernel) for name in (run["isa"], "reference") for codec in CODECS for kernel in KERNELS),
            *(("PyTorch", method, what) for method in ("int8", "int8-sliced") for what in ("quantise", "dequantise")),
        }
        rows = [row for row in run["rows"] if row["method"] != "memcpy"]
        names = [(row["implementation"], row["method"], row["kernel"], row["threads"]) for row in rows]
        assert sorted(names) == sorted((*name, threads) for name in wanted for threads in THREADS)


def test_figures_are_positive_and_agree(result: dict[str, Any]) -> None:
    for run in result["runs"]:
        for row in run["rows"]:
            low, high = row.get("of_memcpy_quartiles", (1.0, 1.0))
            figures = [value for value in row.values() if isinstance(value, float)] + [low, high]
            assert all(math.isfinite(value) and value > 0 for value in figures), row
            assert row["threads"] > 1 or row["times_one_thread"] == 1
            if row["method"] == "memcpy":
                continue
            assert low <= row["of_memcpy"] <= high
            if row["method"] == "int8":
                assert row["times_int8"] == 1
            if row["method"] == "int8-sliced":
                assert row["times_int8_sliced"] == 1


def test_the_faster_memcpy_is_the_yardstick(result: dict[str, Any]) -> None:
    for run in result["runs"]:
        copies = [row for row in run["rows"] if row["method"] == "memcpy"]
        for threads in THREADS:
            speeds = {row["implementation"]: row["gb_per_s"] for row in copies if row["threads"] == threads}
            assert speeds.keys() == {"libc", "torch"}
            assert run["memcpy"][str(threads)] == max(speeds, key=speeds.get)


def test_every_instruction_set_computed_the_same(result: dict[str, Any]) -> None:
    digests = [run["digests"] for run in result["runs"]]
    assert digests[0].keys() == CODECS.keys() and all(digests[0][codec].keys() == set(KERNELS) for codec in CODECS)
    assert all(other == digests[0] for other in digests)


def test_machine_and_setup(result: dict[str, Any]) -> None:
    assert result["machine"].keys() == {"cpu", "cores", "isas", "torch", "compiler", "load_average"}
    setup = result["setup"]
    assert setup["cache_shape"] == [4, 128, 8, 128] and setup["buffer_bytes"] == math.prod(setup["cache_shape"]) * 2
    assert setup["threads"] == list(THREADS)


@pytest.mark.parametrize(("option", "known"), [("--codec", "grid-a1"), ("--isa", "portable")])
def test_an_unknown_name_is_refused(option: str, known: str) -> None:
    done = bench(option, f"{known},nonsense")
    assert done.returncode == 2 and done.stdout == ""
    assert "nonsense" in done.stderr and known in done.stderr


def test_a_time_without_end_is_refused() -> None:
    done = bench("--seconds", "inf")
    assert done.returncode == 2 and done.stdout == ""
    assert "--seconds" in done.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process(ending: signal.Signals) -> None:
    arguments = ["--megabytes", "1", "--seconds", "600", "--codec", "grid", "--isa", "portable", "--threads", "1"]
    command = [sys.executable, "-m", "lynx_ascend.cli", "bench", "codec", "--json", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Tests that run in a shell's background have SIGINT ignored, and children inherit that.
    with subprocess.Popen(command, **pipes, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
        assert process.stderr is not None
        assert "round 1," in process.stderr.readline()  # written by the measuring process
        process.send_signal(ending)  # to the command alone
        # Ends when nobody holds the pipes any more; the command's status would come sooner.
        out, _ = process.communicate(timeout=60)
    assert out == "" and process.returncode == 128 + ending


def test_more_threads_than_cores_can_run_are_refused() -> None:
    done = bench("--threads", "100000")
    assert done.returncode == 2
    assert "--threads: 100000 is more than twice" in done.stderr


@pytest.fixture
def encoded() -> KernelWorks:
    """Four pages, of which 0, 2 and 3 are compared with the reference."""
    kernels = KernelWorks("grid", Cache.drawn(1024))
    encode = next(kernels.works())
    encode.prepare()
    encode.run()
    encode.check()
    return kernels


@pytest.mark.parametrize(("page", "message"), [(2, "residual of page 2 differs"), (1, "computed other bytes")])
def test_a_wrong_code_is_found(encoded: KernelWorks, page: int, message: str) -> None:
    encoded.residual[page, 12345] ^= 1
    with pytest.raises(WrongResult, match=message):
        next(encoded.works()).check()


@pytest.mark.parametrize("kernel", [1, 2])
def test_a_wrong_value_is_found(encoded: KernelWorks, kernel: int) -> None:
    decode = list(encoded.works())[kernel]
    decode.prepare()
    with pytest.raises(WrongResult, match="page 0 differs"):
        decode.check()
    decode.run()
    decode.check()
    block = int(encoded.cache.block_ids[2])  # page 1's first
    encoded.cache.target.view(torch.int16)[block, 5, 3, 7] ^= 1
    with pytest.raises(WrongResult, match="computed other bytes"):
        decode.check()
