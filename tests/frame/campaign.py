"""Many mutants, in processes of their own: which check refuses each, and proof that no contract is broken."""

from __future__ import annotations

import faulthandler
import multiprocessing
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import torch

from lynx_ascend.frame import FrameHeader, parse
from tests.frame.corpus import Frames, Seed, build
from tests.frame.mutants import Mutant, mutant
from tests.frame.receiver import Verdict, receive, receive_expected, same_bits

CPU_SECONDS = 2.0  # a mutant that takes more is a hang: the kernel ends the process
MEMORY_BYTES = 64 << 20  # of address space, touched or not, above what valid frames need
MOST_FAILURES = 20

UNCHANGED = "accepted: a valid frame, byte for byte"
SAME = "accepted: other bytes, the values of the original"
OTHER = "accepted: other values, equal to the reference's"


@dataclass
class Tally:
    """What happened to a run's mutants.

    Attributes:
        counts: ((re-sealed?, headers known?), the field refused or a kind of acceptance) -> mutants.
        failures: how mutants broke the contract. slowest: most CPU seconds one took.
        growth: most bytes by which the resident set's peak grew over a run.
    """

    counts: Counter[tuple[tuple[bool, bool], str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    growth: int = 0

    def add(self, other: Tally) -> None:
        """Takes in another process's part."""
        self.counts += other.counts
        self.failures += other.failures
        self.slowest, self.growth = max(self.slowest, other.slowest), max(self.growth, other.growth)


class Corpus:
    """The seeds, the right values and the headers of each, and the set of all valid frames."""

    def __init__(self) -> None:
        self.small, self.full = build()
        self.values: dict[Seed, Verdict] = {}
        self.headers: dict[Seed, list[FrameHeader]] = {}
        self.frames: set[bytes] = set()
        for seed in self.small + self.full:
            verdict = receive(seed.frames, seed.before)
            assert verdict.field is None and verdict.whole is None, f"{seed.name}: {verdict}"
            self.values[seed] = verdict
            self.headers[seed] = [parse(frame).header for frame in seed.frames]
            self.frames.update(seed.frames, *seed.before)

    def mutant(self, index: int, seed: int) -> Mutant:
        """Mutant number `index` of the run `seed`."""
        return mutant(index, seed, self.small, self.full)


def judge(mutant: Mutant, corpus: Corpus) -> dict[bool, str]:
    """What a receiver that does not know the headers made of it, and one that does (key True).

    Raises:
        AssertionError, or whatever else is not a FrameError: the contract is broken.
    """
    origin, frames = mutant.origin, mutant.frames
    verdict = receive(frames, origin.before)
    open_ended = verdict.field or _acceptance(mutant, frames, verdict, corpus)
    if len(frames) > len(origin.frames):  # nobody who knows the method waits for the others
        frames = frames[: len(origin.frames)]
        verdict = receive(frames, origin.before)
    known = receive_expected(frames, corpus.headers[origin])
    if known is None and len(frames) < 3:  # what an exact frame holds is known when it is decoded
        assert verdict.field is None and verdict.whole is None, f"the headers are those expected, but: {verdict}"
    known = known or verdict.field or _acceptance(mutant, frames, verdict, corpus)
    return {False: open_ended, True: known}


def _acceptance(mutant: Mutant, frames: Frames, verdict: Verdict, corpus: Corpus) -> str:
    if corpus.frames.issuperset(frames):
        return UNCHANGED
    assert mutant.sealed, "a damaged frame was accepted"
    return SAME if all(map(same_bits, verdict.values, corpus.values[mutant.origin].values)) else OTHER


def judge_safely(index: int, seed: int, corpus: Corpus, tally: Tally) -> None:
    """Counts one mutant, or notes how it broke the contract."""
    mutant = corpus.mutant(index, seed)
    try:
        for known, outcome in judge(mutant, corpus).items():
            tally.counts[(mutant.sealed, known), outcome] += 1
    except Exception:
        what = traceback.format_exc(limit=-2).strip()
        tally.failures.append(f"mutant {index} of seed {seed}, {mutant.origin.name}, {mutant.kinds}: {what}")


Examine = Callable[[int, int, Corpus, Tally], None]


def run(count: int, seed: int, workers: int, examine: Examine = judge_safely) -> Tally:
    """Examines mutants 0 .. count - 1 of the run `seed`.

    Raises:
        RuntimeError: a process died, of a crash or a hang; names its mutant.
    """
    context = multiprocessing.get_context("spawn")
    parts = []
    for number in range(workers):
        share = range(number * count // workers, (number + 1) * count // workers)
        ours, theirs = context.Pipe(duplex=False)
        now = context.Value("q", -1)
        process = context.Process(target=_work, args=(share, seed, examine, now, theirs), daemon=True)
        process.start()
        theirs.close()
        parts.append((process, ours, now))
    total = Tally()
    for process, ours, now in parts:
        try:
            total.add(ours.recv())
        except EOFError:
            process.join()
            raise RuntimeError(f"mutant {now.value} of seed {seed}: process ended with {process.exitcode}") from None
        process.join()
    return total


def _work(indices: range, seed: int, examine: Examine, now: Synchronized[int], results: Connection) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    corpus, tally = Corpus(), Tally()
    for index in range(200):  # so that caches are filled before memory is limited
        judge_safely(index, seed + 1, corpus, Tally())
    _limit_memory()
    peak = _peak_bytes()
    for index in indices:
        now.value = index
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # SIGPROF ends the process, wherever it is
        begin = time.process_time()
        examine(index, seed, corpus, tally)
        tally.slowest = max(tally.slowest, time.process_time() - begin)
        if len(tally.failures) >= MOST_FAILURES:
            break
    signal.setitimer(signal.ITIMER_PROF, 0)
    tally.growth = _peak_bytes() - peak
    results.send(tally)


def _limit_memory() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, resource.RLIM_INFINITY))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
