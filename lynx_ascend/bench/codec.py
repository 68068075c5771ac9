"""`lynx-ascend bench codec`: options, one process for each instruction set, and the figures as a JSON-ready dict."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec

from lynx_ascend import _C

from .codec_works import (
    BLOCK_SIZE,
    CODECS,
    HEAD_DIM,
    HEADS,
    INT8_SLICE,
    INT8_SLICED,
    INT8_WHOLE,
    REFERENCE_TOKENS,
    TOKEN_BYTES,
    Cache,
    KernelWorks,
    int8_works,
    reference_works,
)
from .machine import facts
from .memcpy import memcpys
from .rounds import Series, Work, median, quartiles, run_rounds


class BenchError(RuntimeError):
    """A measuring process failed (it has said why on stderr), or what was measured is wrong."""


@dataclass(frozen=True)
class CodecBenchOptions:
    """What to measure.

    Attributes:
        codecs: names in CODECS. isas: of _C.supported_isas(). threads: ascending, from 1.
        megabytes: of bf16, in units of 2^20 bytes. seconds: for the rounds of each instruction set.
    """

    codecs: tuple[str, ...]
    isas: tuple[str, ...]
    threads: tuple[int, ...]
    megabytes: int
    seconds: float

    @classmethod
    def of(
        cls,
        *,
        codecs: Sequence[str] | None,
        isas: Sequence[str] | None,
        threads: int,
        megabytes: int,
        seconds: float,
    ) -> CodecBenchOptions:
        """codecs, isas: None is all. threads: the largest count; the powers of two below it are measured too.

        Raises:
            ValueError: a codec or an instruction set that does not exist or is not supported here, naming it; more
                threads than two a core; a time that never ends.
        """
        cores = len(os.sched_getaffinity(0))
        if threads > 2 * cores:
            raise ValueError(f"--threads: {threads} is more than twice the {cores} cores this process may use")
        if not math.isfinite(seconds):
            raise ValueError(f"--seconds: {seconds} is not finite")
        doubling = {1 << bit for bit in range(threads.bit_length())} | {threads}
        return cls(
            _known("--codec", codecs, list(CODECS)),
            _known("--isa", isas, _C.supported_isas()),
            tuple(sorted(doubling)),
            megabytes,
            seconds,
        )


def run(options: CodecBenchOptions) -> dict[str, object]:
    """Measures every instruction set in a process of its own: a process chooses its kernels once.

    Returns:
        machine (machine.facts), setup, and runs: for each instruction set its `isa`, `rounds`, `memcpy` (the
        implementation taken, by thread count), `digests` (XXH3-64 of what was computed) and `rows` (docs/bench.md).

    Raises:
        BenchError: a process failed, or computed other bytes than the others; it names the instruction set.
    """
    machine = facts()
    setup = {
        **asdict(options),
        "buffer_bytes": _tokens(options) * TOKEN_BYTES,
        "cache_shape": [_tokens(options) // BLOCK_SIZE, BLOCK_SIZE, HEADS, HEAD_DIM],
        "reference_bytes": min(REFERENCE_TOKENS, _tokens(options)) * TOKEN_BYTES,
        "int8_slice_bytes": INT8_SLICE * TOKEN_BYTES,
    }
    runs = [_run_apart(isa, options) for isa in options.isas]
    for other in runs[1:]:
        if other["digests"] != runs[0]["digests"]:
            raise BenchError(f"{other['isa']} computed other bytes than {runs[0]['isa']}")
    return {"machine": machine, "setup": setup, "runs": runs}


def measure(options: CodecBenchOptions) -> dict[str, object]:
    """One run, with this process's instruction set."""
    cache = Cache.drawn(_tokens(options))
    kernels = [KernelWorks(name, cache) for name in options.codecs]
    works = [
        *(work for one in kernels for work in one.works()),
        *(work for name in options.codecs for work in reference_works(name, cache)),
        *int8_works(cache),
    ]
    copies = {threads: memcpys(cache.source, cache.target, threads) for threads in options.threads}
    series = run_rounds(works, copies, options.seconds, lambda step: print(f"{_C.isa()}: {step}", file=sys.stderr))
    yardstick = {threads: _faster_memcpy(series, threads) for threads in options.threads}
    return {
        "isa": _C.isa(),
        "rounds": len(series[0].speed),
        "memcpy": yardstick,
        "digests": {one.name: one.digests for one in kernels},
        "rows": [
            *(_memcpy_row(copy, threads, series) for threads in copies for copy in copies[threads]),
            *(_row(one, series, yardstick) for one in series),
        ],
    }


def _tokens(options: CodecBenchOptions) -> int:
    return (options.megabytes << 20) // TOKEN_BYTES


def _known(option: str, asked: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    for name in asked or ():
        if name not in known:
            raise ValueError(f"{option}: {name!r} is none of {', '.join(known)}")
    return tuple(dict.fromkeys(known if asked is None else asked))


def _run_apart(isa: str, options: CodecBenchOptions) -> dict[str, object]:
    command = [sys.executable, "-m", __name__, msgspec.json.encode(options).decode()]
    done = subprocess.run(command, env={**os.environ, "LYNX_ASCEND_ISA": isa}, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BenchError(f"{isa}: the measuring process ended with status {done.returncode}")
    return msgspec.json.decode(done.stdout, type=dict[str, object])


def _faster_memcpy(series: Sequence[Series], threads: int) -> str:
    """The implementation with the higher median speed over the whole run."""
    names = next(one.memcpy for one in series if one.threads == threads)
    return max(names, key=lambda name: median(_memcpy_by_round(series, threads, name)))


def _row(one: Series, series: Sequence[Series], yardstick: dict[int, str]) -> dict[str, object]:
    """Ratios are medians of those of single rounds; INT8's are to the same direction with as many threads."""
    direction = "quantise" if one.work.kernel in ("encode", "quantise") else "dequantise"

    def int8(method: str) -> list[float]:
        return next(
            s.speed
            for s in series
            if s.threads == one.threads and (s.work.method, s.work.kernel) == (method, direction)
        )

    shares = _ratios(one.speed, one.memcpy[yardstick[one.threads]])
    alone = next(s.speed for s in series if s.threads == 1 and s.work is one.work)
    return {
        **_name(one.work, one.threads),
        "gb_per_s": median(one.speed) / 1e9,
        "of_memcpy": median(shares),
        "of_memcpy_quartiles": quartiles(shares),
        "of_one_thread_memcpy": median(_ratios(one.speed, _memcpy_by_round(series, 1, yardstick[1]))),
        "times_int8": median(_ratios(one.speed, int8(INT8_WHOLE))),
        "times_int8_sliced": median(_ratios(one.speed, int8(INT8_SLICED))),
        "times_one_thread": median(_ratios(one.speed, alone)),
    }


def _memcpy_row(work: Work, threads: int, series: Sequence[Series]) -> dict[str, object]:
    speeds = _memcpy_by_round(series, threads, work.implementation)
    scaling = median(_ratios(speeds, _memcpy_by_round(series, 1, work.implementation)))
    return {**_name(work, threads), "gb_per_s": median(speeds) / 1e9, "times_one_thread": scaling}


def _memcpy_by_round(series: Sequence[Series], threads: int, implementation: str) -> list[float]:
    """The median of each round's copies."""
    copies = (one.memcpy[implementation] for one in series if one.threads == threads)
    return [median(speeds) for speeds in zip(*copies, strict=True)]


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def _name(work: Work, threads: int) -> dict[str, object]:
    return {
        "implementation": work.implementation,
        "method": work.method,
        "kernel": work.kernel,
        "threads": threads,
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches the command too, which says so
    result = measure(msgspec.json.decode(sys.argv[1], type=CodecBenchOptions))
    print(msgspec.json.encode(result).decode())
