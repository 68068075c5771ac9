"""How far drafts hold, by context: the paper's curve, or what `lynx-ascend eval fidelity` measured."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from lynx_ascend.simulation import bounds
from lynx_ascend.speculation.window import MAX_DRAFTS

Survival = tuple[float, ...]


class AcceptanceError(ValueError):
    """A file that holds no acceptance curve."""


def published() -> Survival:
    """The paper's: all of the first 10 drafts hold in 88 %, of the first 20 in 70 %; as steep beyond as between."""
    fall = (0.70 / 0.88) ** 0.1
    return tuple(0.88 ** (i / 10) if i <= 10 else 0.88 * fall ** (i - 10) for i in range(1, MAX_DRAFTS + 1))


def geometric(acceptance: float) -> Survival:
    """Each draft holds with the same probability."""
    return tuple(acceptance**i for i in range(1, MAX_DRAFTS + 1))


@dataclass(frozen=True)
class Acceptance:
    """Survival curves by context (prompt tokens), and where they are from.

    Between two contexts, and beyond the longest, the logarithm of each value is linear in that of the context; below
    the shortest its curve holds, and a curve of one context for all. Beyond the longest no value rises: where the last
    two are noise, drafts are not expected to hold better and better. `extrapolated` marks what was not measured.

    Raises:
        AcceptanceError: no curve, an empty one, or a value outside [0, 1].
    """

    curves: Mapping[int, Survival]
    source: str

    def __post_init__(self) -> None:
        if not self.curves or not all(self.curves.values()):
            raise AcceptanceError(f"{self.source}: no acceptance curve")
        for context, curve in self.curves.items():
            if context < 1 or not all(0 <= value <= 1 for value in curve):
                raise AcceptanceError(f"{self.source}: context {context}: {curve} is no acceptance curve")

    def extrapolated(self, context: int) -> bool:
        """Whether `context` lies outside of what was measured."""
        return not min(self.curves) <= context <= max(self.curves)

    def at(self, context: int) -> Survival:
        """The curve at a context: at i, the probability that the first i + 1 drafts are all accepted."""
        known = sorted(self.curves)
        if len(known) == 1 or context <= known[0]:
            return self.curves[known[0]]
        low, high = next((pair for pair in pairwise(known) if context <= pair[1]), known[-2:])
        share = math.log(context / low) / math.log(high / low)
        pairs = zip(self.curves[low], self.curves[high], strict=False)
        logs = [(1 - share) * math.log(a) + share * math.log(b) if a and b else -math.inf for a, b in pairs]
        mixed = [math.exp(min(0.0, log)) for log in logs]  # what rises beyond the longest may leave a float's range
        if share > 1:
            mixed = list(map(min, mixed, self.curves[high]))
        return tuple(accumulate(mixed, min))


def published_by_context() -> Acceptance:
    """The paper's curve at 16K, and steeper ones for its lower acceptance at 32K and 128K.

    It gives 90.4 % of drafts accepted on MMLU-Pro, 89.7 % at 32K and 83.4 % at 128K, but no curves for the latter. The
    rate at which drafts fail is scaled by the share that is not accepted: an inference.
    """
    base = published()
    shares = {16384: 0.904, 32768: 0.897, 131072: 0.834}
    curves = {c: tuple(s ** ((1 - share) / (1 - 0.904)) for s in base) for c, share in shares.items()}
    return Acceptance(curves, "published, scaled by context")


# Plain INT8 in two streams: the ablation's 1.8 accepted drafts (docs/ablation.md) as one rate.
PLAIN_SPLIT = Acceptance({16384: geometric(1.8 / 2.8)}, "measured, SmolLM2-135M")


def from_reports(paths: Iterable[Path], method: str = "lynx") -> Acceptance:
    """The curves of fidelity.json files, one context each: P(accepted >= k) of the method's first stream.

    Raises:
        AcceptanceError: a file is not what eval fidelity writes, or two have one context.
        OSError: it cannot be read.
    """
    curves: dict[int, Survival] = {}
    names = []
    for path in paths:
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            context, curve = _curve(value, method)
        except (ValueError, KeyError, TypeError, StopIteration, RecursionError) as error:
            raise AcceptanceError(f"{path}: no curve of method {method!r} ({error!r})") from None
        if context in curves:
            raise AcceptanceError(f"{path}: a second curve for {context} tokens")
        curves[context] = curve
        names.append(path.name)
    return Acceptance(curves, ", ".join(names))


def _curve(value: dict[str, Any], method: str) -> tuple[int, Survival]:
    lengths = [bounds.tokens("tokens", case["tokens"]) for case in value["cases"] if not case["long"]]
    points = next(m for m in value["methods"] if m["name"] == method)["first"]["curve"]
    known: list[float] = []
    for i, point in enumerate(points):  # a position that no text was long enough for ends the curve
        if point is None:
            break
        known.append(bounds.number(f"curve[{i}]", point["value"], 0, 1))
    return round(statistics.mean(lengths)), tuple(accumulate(known, min))
