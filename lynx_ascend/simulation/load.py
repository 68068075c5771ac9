"""The methods under one load, each on the same arrivals and with the same luck."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lynx_ascend.simulation import bounds
from lynx_ascend.simulation.acceptance import PLAIN_SPLIT, Acceptance
from lynx_ascend.simulation.alone import Policy, alone
from lynx_ascend.simulation.hardware import Hardware
from lynx_ascend.simulation.methods import Method
from lynx_ascend.simulation.models import Model
from lynx_ascend.simulation.report import LoadRow
from lynx_ascend.simulation.simulate import Arrival, Simulation

N = 64  # the token whose time is reported
LATEST = 1e9  # seconds, of an arrival: a float tells times of 1e-7 s apart there


@dataclass(frozen=True)
class Site:
    """Where requests are served.

    Args:
        bandwidth: bits a second of the link between P and D. slots: requests that D serves at once.
        cap, adaptive, handover: as in Policy; in_order: as in Simulation.
    """

    model: Model
    hardware: Hardware
    bandwidth: float
    acceptance: Acceptance
    slots: int = 32
    cap: int = 64
    adaptive: bool = True
    handover: bool = False
    in_order: bool = False


def serve(site: Site, methods: Sequence[Method], arrivals: Sequence[Arrival], seed: int) -> list[LoadRow]:
    """A row a method.

    Raises:
        ValueError: no arrivals, what Simulation refuses, or a request that is never served: a time is infinite.
    """
    if not arrivals:
        raise ValueError("no requests arrive")
    tokens = round(statistics.mean(arrival.tokens for arrival in arrivals))
    output = round(statistics.mean(arrival.output for arrival in arrivals))
    works = {length: site.hardware.work(site.model, length) for length in {tokens, *(a.tokens for a in arrivals)}}
    rows = []
    for method in methods:
        acceptance = PLAIN_SPLIT if method.name == "lynx-int8" else site.acceptance
        policy = Policy(acceptance.at(tokens), site.cap, site.adaptive, site.handover)
        simulation = Simulation(
            method, works.__getitem__, site.bandwidth, acceptance, policy,
            slots=site.slots, seed=seed, in_order=site.in_order,
        )  # fmt: skip
        run = simulation.run(arrivals)
        if not all(request.done for request in run.requests):
            raise ValueError(f"{method.name}: a request is never served, as one of its times is infinite")
        seconds = alone(method, works[tokens], site.bandwidth, policy, output).time_to(min(N, output))
        rows.append(LoadRow.of(method.name, seconds, run, N))
    return rows


def read_trace(path: Path) -> list[Arrival]:
    """Arrivals of a file with a JSON object a line: {"at": seconds, "tokens": of the prompt, "output": tokens}.

    Raises:
        ValueError: a line is not that (`at` from 0 to LATEST, the others whole, from 1 to MOST_TOKENS), or there is
            none. OSError: it cannot be read.
    """
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            value = json.loads(line)
            at = bounds.number("at", value["at"], 0, LATEST)
            arrival = Arrival(at, *(bounds.tokens(name, value[name]) for name in ("tokens", "output")))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {error!r}") from None
        found.append(arrival)
    if not found:
        raise ValueError(f"{path}: no requests")
    return sorted(found, key=lambda arrival: arrival.at)
