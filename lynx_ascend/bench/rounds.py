"""Interleaved timing: every work in every round, right after memcpys, so that ratios compare the same moments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

MIN_ROUNDS = 5
# PyTorch's threads spin for a while after a parallel region and would take cores from whatever runs next.
SETTLE_S = 0.005


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Work:
    """Something to time.

    Attributes:
        implementation, method, kernel: its name, in three parts.
        nbytes: bytes of the uncompressed side that one run reads or writes.
        run: what is timed. prepare, check: called right before and after it in the first round, outside the time.
    """

    implementation: str
    method: str
    kernel: str
    nbytes: int
    run: Callable[[], object]
    prepare: Callable[[], None] = _nothing
    check: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Series:
    """Bytes per second of one work with one thread count, and of each memcpy before it: one entry a round."""

    work: Work
    threads: int
    speed: list[float] = field(default_factory=list)
    memcpy: dict[str, list[float]] = field(default_factory=dict)  # by implementation


def run_rounds(
    works: Sequence[Work],
    memcpys: Mapping[int, Sequence[Work]],
    seconds: float,
    progress: Callable[[str], None],
) -> list[Series]:
    """Rounds until `seconds` have passed, at least MIN_ROUNDS.

    Args:
        memcpys: the implementations of memcpy, for each thread count that is measured.
    """
    series = [
        Series(work, threads, memcpy={copy.implementation: [] for copy in copies})
        for threads, copies in memcpys.items()
        for work in works
    ]
    began, rounds = time.perf_counter(), 0
    while rounds < MIN_ROUNDS or time.perf_counter() - began < seconds:
        for one in series:
            torch.set_num_threads(one.threads)
            for copy in memcpys[one.threads]:
                one.memcpy[copy.implementation].append(_speed(copy))
            if rounds == 0:
                one.work.prepare()
            one.speed.append(_speed(one.work))
            if rounds == 0:
                one.work.check()
        rounds += 1
        progress(f"round {rounds}, {time.perf_counter() - began:.0f} s")
    return series


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the middle two."""
    return torch.tensor(list(values), dtype=torch.float64).quantile(0.5).item()


def quartiles(values: Iterable[float]) -> tuple[float, float]:
    """The first and the third, by linear interpolation."""
    low, high = torch.tensor(list(values), dtype=torch.float64).quantile(torch.tensor([0.25, 0.75]).double()).tolist()
    return low, high


def _speed(work: Work) -> float:
    time.sleep(SETTLE_S)
    begin = time.perf_counter()
    work.run()
    return work.nbytes / (time.perf_counter() - begin)
