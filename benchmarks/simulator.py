"""The simulator against our engines: time to the 64th token on links and contexts that it was not calibrated on.

Usage: python benchmarks/simulator.py [--seconds 150] [--dtype float32] [--output out/simulator] [--json]

Two real vLLM servers and the proxy; the link is emulated on loopback. It stops after --seconds and goes on where it was
when it is started again; the table comes when all is measured. Times count from the decode server's pull.

Calibration, at 1,000 and 4,000 tokens alone: decode steps (a line over the context), verify passes (a line over the
drafts), and what a request takes besides (the mean by which int8 was later than predicted). How many of a prompt's
drafts hold is a property of the prompt: it is taken from a request on a slow link, which is not among those predicted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lynx_ascend.demo.measured import MeasuredCluster
from lynx_ascend.evaluation.model import ensure_model, load_tokenizer
from lynx_ascend.evaluation.prompts import prompts
from lynx_ascend.simulation.acceptance import Acceptance
from lynx_ascend.simulation.alone import Policy
from lynx_ascend.simulation.hardware import Work
from lynx_ascend.simulation.methods import Method
from lynx_ascend.simulation.prefill import PrefillCosts
from lynx_ascend.simulation.simulate import Arrival, Simulation
from lynx_ascend.speculation.steps import StepCosts
from lynx_ascend.speculation.window import MAX_DRAFTS

N = 64
MAX_TOKENS = 80  # more than N, so that the cap of 64 drafts is not cut by the end of the request
CALIBRATION = (1000, 4000)  # prompt tokens
TESTED = (1500, 2000, 2500, 3000, 3500)
MBIT_PER_TOKEN = {"slow": 0.02, "calibration": 0.045, "a": 0.035, "b": 0.07}  # of the link; "a" and "b" are predicted


@dataclass(frozen=True)
class Measured:
    """One request, seconds. step: median of decode steps; verify: the pass; nbytes: by stream."""

    context: int
    link: str
    method: str
    bandwidth: float
    seconds: float
    step: float
    nbytes: dict[str, int]
    drafted: int
    accepted: int
    verify: float


@dataclass(frozen=True)
class Row:
    """A combination that was predicted."""

    context: int
    bandwidth_mbit_s: float
    method: str
    predicted: float
    measured: float
    drafted: tuple[int, int]  # predicted, measured
    accepted: tuple[int, int]

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def plan() -> list[tuple[int, str, str]]:
    """(context, link, method) of every request, calibration first."""
    calibration = [(c, link, "lynx") for c in CALIBRATION for link in ("slow", "calibration")]
    calibration += [(c, "calibration", "int8") for c in CALIBRATION]
    tested = [
        (c, link, m) for c in TESTED for link, m in (("slow", "lynx"), *itertools.product("ab", ("lynx", "int8")))
    ]
    return calibration + tested


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=150, help="after which no further request is sent")
    parser.add_argument("--dtype", default="float32", choices=["bfloat16", "float32"])
    parser.add_argument("--output", type=Path, default=Path("out/simulator"))
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    console = Console(stderr=args.json)
    args.output.mkdir(parents=True, exist_ok=True)
    store = args.output / f"{args.dtype}.jsonl"
    done = [Measured(**json.loads(line)) for line in store.read_text().splitlines()] if store.exists() else []
    known = {(m.context, m.link, m.method) for m in done}
    missing = [key for key in plan() if key not in known]
    if missing:
        done += measure(missing, args, store, console)
    if len(done) < len(plan()):
        console.print(f"{len(done)} of {len(plan())} requests are measured; start it again for the others")
        return
    rows = predict(done)
    show(rows, console)
    if args.json:
        json.dump({"rows": [asdict(row) | {"error": row.error} for row in rows]}, sys.stdout)
        print()


def measure(
    missing: list[tuple[int, str, str]], args: argparse.Namespace, store: Path, console: Console
) -> list[Measured]:
    ends, found = time.monotonic() + args.seconds, []
    tokenizer = load_tokenizer(ensure_model())
    with MeasuredCluster(args.output, args.dtype) as cluster:
        for context, wanted in itertools.groupby(missing, key=lambda key: key[0]):
            prompt = prompts(tokenizer, 1, [context])[0]
            warm = False
            for _, link, method in wanted:
                if time.monotonic() > ends:
                    return found
                if not warm:  # P computes the prompt once and keeps it
                    cluster.ask(prompt, "int8", max_tokens=2)
                    warm = True
                found.append(request(cluster, prompt, context, link, method))
                with store.open("a") as file:
                    file.write(json.dumps(asdict(found[-1])) + "\n")
                console.print(f"{context} tokens, {link}, {method}: {found[-1].seconds:.3f} s")
    return found


def request(cluster: MeasuredCluster, prompt: list[int], context: int, link: str, method: str) -> Measured:
    bandwidth = round(MBIT_PER_TOKEN[link] * context, 1)
    run = cluster.ask(prompt, method, bandwidth=bandwidth, max_tokens=MAX_TOKENS)
    trace = run.trace
    return Measured(
        context,
        link,
        method,
        bandwidth,
        seconds=run.from_pull(N),
        step=run.completion.decode_step(),
        nbytes=trace.nbytes,
        drafted=trace.drafted,
        accepted=trace.accepted,
        verify=trace.verify.end - trace.verify.start if trace.verify else 0.0,
    )


@dataclass(frozen=True)
class Calibrated:
    """Lines through the calibration's points, and what is left, in seconds."""

    step: tuple[float, float]  # of a token of context, and at none
    verify: tuple[float, float]  # of a draft, and at none
    besides: float

    def costs(self, context: int) -> StepCosts:
        return StepCosts(
            tpot=self.step[0] * context + self.step[1],
            verify=max(0.0, self.verify[1]),
            verify_draft=max(0.0, self.verify[0]),
        )


def calibrate(done: list[Measured]) -> Calibrated:
    used = [m for m in done if m.context in CALIBRATION]
    int8 = [m for m in used if m.method == "int8"]
    passes = [m for m in used if m.method == "lynx"]
    step = statistics.linear_regression([m.context for m in int8], [m.step for m in int8])
    verify = statistics.linear_regression([m.drafted for m in passes], [m.verify for m in passes])
    found = Calibrated(tuple(step), tuple(verify), 0.0)
    late = [m.seconds - simulate(m, m.nbytes, 0, found)[0] for m in int8]
    return Calibrated(found.step, found.verify, statistics.mean(late))


def simulate(asked: Measured, nbytes: dict[str, int], holds: int, calibrated: Calibrated) -> tuple[float, int]:
    """Seconds from the pull to the N-th token, and drafts; of `asked` only context, link and method are used."""
    first, second = nbytes["anchor"], nbytes.get("residual", 0)
    method = Method(asked.method, 16 * first / (first + second), 16 * second / (first + second))
    work = Work(asked.context, first + second, PrefillCosts(), calibrated.costs(asked.context))
    survival = (1.0,) * holds + (0.0,) * (MAX_DRAFTS - holds)
    run = Simulation(
        method, lambda _: work, asked.bandwidth * 1e6, Acceptance({asked.context: survival}, "one prompt's"),
        Policy(survival, adaptive=False),
    ).run([Arrival(0.0, asked.context, MAX_TOKENS)])  # fmt: skip
    return run.requests[0].time_to(N) + calibrated.besides, run.requests[0].drafted


def predict(done: list[Measured]) -> list[Row]:
    calibrated = calibrate(done)
    holds = {m.context: m.accepted for m in done if m.link == "slow"}
    rows = []
    for m in done:
        if m.context in TESTED and m.link in "ab":
            seconds, drafted = simulate(m, m.nbytes, holds[m.context], calibrated)
            accepted = min(drafted, holds[m.context])
            rows.append(
                Row(m.context, m.bandwidth, m.method, seconds, m.seconds, (drafted, m.drafted), (accepted, m.accepted))
            )
    return rows


def show(rows: list[Row], console: Console) -> None:
    table = Table(title=f"Seconds from the pull to token {N}", title_justify="left")
    for head in ("tokens", "Mbit/s", "method", "predicted", "measured", "error", "drafted", "accepted"):
        table.add_column(head, justify="right")
    for r in rows:
        pairs = ["", ""] if r.method == "int8" else [f"{a} / {b}" for a, b in (r.drafted, r.accepted)]
        table.add_row(
            str(r.context), f"{r.bandwidth_mbit_s:g}", r.method, f"{r.predicted:.3f}", f"{r.measured:.3f}",
            f"{100 * r.error:+.1f} %", *pairs,
        )  # fmt: skip
    console.print(table)
    for method in ("lynx", "int8"):
        errors = [abs(r.error) for r in rows if r.method == method]
        within, worst = sum(error <= 0.15 for error in errors), 100 * max(errors)
        console.print(f"{method}: {within} of {len(errors)} within 15 %, the worst {worst:.1f} %")


if __name__ == "__main__":
    main()
