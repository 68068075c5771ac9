"""The table of a fidelity run: a row a method with 95 % intervals over prompts, and what is claimed against it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lynx_ascend.evaluation.cases import CAP
from lynx_ascend.evaluation.intervals import Mean, Ratio
from lynx_ascend.evaluation.measure import Agreement, StreamRow
from lynx_ascend.evaluation.methods import DROPPING, OURS
from lynx_ascend.evaluation.run import FidelityResult

FULL_BITS, ANCHOR_BITS = 8.75, 4.7  # of the two claims
# Table 3 of the Lynx paper (arXiv 2607.01831), vNMSE of attention outputs on its own models.
PUBLISHED = {"int4": 0.530, "cachegen": 0.110, "lynx-int4": 0.015, "int8": 0.00420, "alg1": 0.000170}


@dataclass(frozen=True)
class StreamSummary:
    """One stream, over the prompts. layers: mean error by layer; curve: P(accepted >= k) for k = 1 .. 64, over all
    starts of all texts that are long enough, with the interval over prompts."""

    bits: float
    error: Mean
    layers: list[float]
    long_error: Mean | None
    kl: Mean
    top1: Mean
    accepted: Mean
    run: Mean
    curve: list[Mean | None]


@dataclass(frozen=True)
class MethodSummary:
    """A method after its first stream and after all. parameters: its repr. dropping: tokens are missing or unread."""

    name: str
    source: str
    parameters: str
    split: bool
    dropping: bool
    first: StreamSummary
    all: StreamSummary


class Verdict(NamedTuple):
    """A method against ours: `ours` is "ahead" or "behind" if the interval says so. ratio: its full error to ours;
    better: in how many layers, of how many, its mean error is smaller than ours; less: its accepted drafts (from the
    text's start, from any start) less ours."""

    method: str
    bits: float
    ours: Literal["ahead", "not told apart", "behind"]
    ratio: Ratio | None = None
    better: tuple[int, int] | None = None
    less: tuple[Mean, Mean] | None = None


def summarise(result: FidelityResult) -> list[MethodSummary]:
    """A row a method, in the order of the run; empty unless a prompt was measured."""
    prompts = [case for case in result.cases if not case.long]
    long = [case for case in result.cases if case.long]
    if not prompts:
        return []
    found = []
    for name, method in result.methods.items():
        rows, long_rows = ([case.rows[name] for case in cases] for cases in (prompts, long))
        first = _stream([row["first"] for row in rows], [row["first"] for row in long_rows])
        every = _stream([row["all"] for row in rows], [row["all"] for row in long_rows])
        found.append(
            MethodSummary(name, method.source, repr(method), method.num_streams > 1, name in DROPPING, first, every)
        )
    return found


def full_error_claim(result: FidelityResult) -> list[Verdict]:
    """Ours against every method of at most 8.75 bits, in the full error, on prompts and long texts alike."""
    verdicts = []
    for name in _others(result):
        bits = statistics.mean(case.rows[name]["all"]["bits"] for case in result.cases)
        if bits <= FULL_BITS:
            pairs = [(case.rows[name]["all"]["error"], case.rows[OURS]["all"]["error"]) for case in result.cases]
            ratio = Ratio.of(*([max(error, 1e-30) for error in side] for side in zip(*pairs, strict=True)))
            sign = (ratio.low > 1) - (ratio.high < 1)
            layers = [_layers([case.rows[method]["all"] for case in result.cases]) for method in (name, OURS)]
            better = sum(its < ours for its, ours in zip(*layers, strict=True))
            verdicts.append(Verdict(name, bits, _verdict(sign), ratio=ratio, better=(better, len(layers[0]))))
    return verdicts


def anchor_claim(result: FidelityResult) -> list[Verdict]:
    """Our Anchor against the first stream of every method of at most 4.7 bits, in accepted drafts.

    Ours is ahead if both counts say so, from the text's start and from any, and behind if one of them does.
    """
    prompts, verdicts = [case for case in result.cases if not case.long], []
    for name in _others(result) if prompts else []:
        if name == "lynx-int4":  # the Anchor of `lynx` itself, which has a row
            continue
        bits = statistics.mean(case.rows[name]["first"]["bits"] for case in prompts)
        if bits <= ANCHOR_BITS:
            runs = [[case.rows[method]["first"]["text"]["runs"] for case in prompts] for method in (name, OURS)]
            start = Mean.of(its[0] - ours[0] for its, ours in zip(*runs, strict=True))
            every = Mean.of(statistics.mean(its) - statistics.mean(ours) for its, ours in zip(*runs, strict=True))
            ahead = all(less.value + less.half < 0 for less in (start, every))
            behind = any(less.value - less.half > 0 for less in (start, every))
            sign = ahead - behind
            verdicts.append(Verdict(name, bits, _verdict(sign), less=(start, every)))
    return verdicts


def _others(result: FidelityResult) -> list[str]:
    """All methods but ours; none if ours was not measured."""
    return [name for name in result.methods if name != OURS] if OURS in result.methods else []


def _verdict(sign: int) -> Literal["ahead", "not told apart", "behind"]:
    return "ahead" if sign > 0 else "behind" if sign < 0 else "not told apart"


def _stream(rows: Sequence[StreamRow], long: Sequence[StreamRow]) -> StreamSummary:
    texts = [row["text"] for row in rows]
    runs = [text["runs"] for text in texts]
    return StreamSummary(
        bits=statistics.mean(row["bits"] for row in rows),
        error=Mean.of(row["error"] for row in rows),
        layers=_layers(rows),
        long_error=Mean.of(row["error"] for row in long) if long else None,
        kl=Mean.of(text["kl"] for text in texts),
        top1=Mean.of(text["top1"] for text in texts),
        accepted=Mean.of(run[0] for run in runs),
        run=Mean.of(statistics.mean(run) for run in runs),
        curve=[_share(texts, k) for k in range(1, CAP + 1)],
    )


def _layers(rows: Sequence[StreamRow]) -> list[float]:
    """The mean error by layer."""
    return [statistics.mean(layer) for layer in zip(*(row["layers"] for row in rows), strict=True)]


def _share(texts: Sequence[Agreement], k: int) -> Mean | None:
    shares = []
    for text in texts:
        reached = [run >= k for start, run in enumerate(text["runs"]) if text["tokens"] - start >= k]
        if reached:
            shares.append(statistics.mean(reached))
    return Mean.of(shares) if shares else None
