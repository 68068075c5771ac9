"""Time to the 64th verified token, Lynx against int8, on links where the Residual takes a given number of decode steps.

Usage: python benchmarks/gain.py [--steps 16,32,64] [--runs 3] [--context 3500] [--dtype float32] [--json]

Two real vLLM servers and the proxy; the link is emulated on loopback. Prompts are prefilled before they are measured,
and times count from the moment the decode server asks for the KV, so that prefill is no part of them. Each prompt and
link is measured in the order int8, lynx, lynx, int8, ...; the figures are those of the median run. The prediction is
the decode-step count of speculation/latency.py, fed with the measured step, verify pass, bytes and accepted drafts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lynx_ascend.demo.cluster import default_dtype
from lynx_ascend.demo.measured import MeasuredCluster, Run
from lynx_ascend.evaluation.model import ensure_model, load_tokenizer
from lynx_ascend.evaluation.prompts import prompts
from lynx_ascend.speculation.latency import Lynx, Monolithic, gain, paper_gain, transfer_time

N = 64
MAX_TOKENS = 80  # more than N, so that the cap of 64 drafts is not cut by the end of the request


@dataclass(frozen=True)
class Row:
    """One prompt on one link; seconds. share: of the paper's min(t_res, k * TPOT) that was won."""

    prompt: int
    steps: int
    bandwidth_mbit_s: float
    tpot: float
    draft_step: float
    t_residual: float
    drafted: int
    accepted: int
    int8_s: float
    lynx_s: float
    measured: float
    predicted: float
    drafting: float
    extra_bytes: float
    last_step: float
    verify: float
    share: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", default="16,32,64", help="decode steps that the Residual takes")
    parser.add_argument("--runs", type=int, default=3, help="requests of each method per prompt and link")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--context", type=int, default=3500, help="tokens of each prompt")
    parser.add_argument("--dtype", default=default_dtype(), choices=["bfloat16", "float32"])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    console = Console(stderr=args.json)
    rows = measure(args, console)
    show(rows, console)
    if args.json:
        json.dump({"rows": [asdict(row) for row in rows]}, sys.stdout)
        print()


def measure(args: argparse.Namespace, console: Console) -> list[Row]:
    asked = prompts(load_tokenizer(ensure_model()), args.prompts, [args.context] * args.prompts)
    with (
        tempfile.TemporaryDirectory() as folder,
        MeasuredCluster(Path(folder), args.dtype) as cluster,
    ):
        rows = []
        for index, prompt in enumerate(asked):
            step = cluster.ask(prompt, "int8", max_tokens=MAX_TOKENS).completion.decode_step()
            residual = cluster.ask(prompt, "lynx", max_tokens=MAX_TOKENS).trace.nbytes["residual"]
            for steps in (int(steps) for steps in args.steps.split(",")):
                bandwidth = round(8e-6 * residual / (steps * step), 1)
                row = pair(cluster, prompt, index, steps, bandwidth, args.runs)
                console.print(f"prompt {index}, {steps} steps: {row.measured:.3f} s won, {row.predicted:.3f} predicted")
                rows.append(row)
        return rows


def pair(cluster: MeasuredCluster, prompt: list[int], index: int, steps: int, bandwidth: float, runs: int) -> Row:
    order = (["int8", "lynx", "lynx", "int8"] * runs)[: 2 * runs]
    done: dict[str, list[Run]] = {"int8": [], "lynx": []}
    for method in order:
        done[method].append(cluster.ask(prompt, method, max_tokens=MAX_TOKENS, bandwidth=bandwidth))
    int8_s = statistics.median(run.from_pull(N) for run in done["int8"])
    # In bf16 a tie can go either way, and another run then accepts other drafts: terms and time are of one run.
    middle_run = sorted(done["lynx"], key=lambda run: run.from_pull(N))[runs // 2]
    lynx_s, middle = middle_run.from_pull(N), middle_run.trace
    # Steps while nothing is received: after the verification, and all of int8's.
    tpot = statistics.median(run.completion.decode_step() for run in done["int8"])
    assert middle.verify is not None
    verify = middle.verify.end - middle.verify.start
    bits = bandwidth * 1e6
    int8 = Monolithic(done["int8"][0].trace.nbytes["anchor"], bits, tpot)
    lynx = Lynx(middle.nbytes["anchor"], middle.nbytes["residual"], bits, tpot, verify, middle.accepted)
    terms = gain(int8, lynx, N)
    ceiling = paper_gain(lynx.t_residual, middle.accepted, tpot)
    drafts = [b - a for a, b in itertools.pairwise(middle.drafts)]
    return Row(
        prompt=index,
        steps=steps,
        bandwidth_mbit_s=bandwidth,
        tpot=tpot,
        draft_step=statistics.median(drafts),
        t_residual=transfer_time(middle.nbytes["residual"], bits),
        drafted=middle.drafted,
        accepted=middle.accepted,
        int8_s=int8_s,
        lynx_s=lynx_s,
        measured=int8_s - lynx_s,
        predicted=terms.total,
        drafting=terms.drafting,
        extra_bytes=terms.extra_bytes,
        last_step=terms.last_step,
        verify=terms.verify,
        share=(int8_s - lynx_s) / ceiling if ceiling else None,
    )


def show(rows: list[Row], console: Console) -> None:
    table = Table(title=f"Time to the {N}th verified token, seconds from the pull (medians)")
    columns = (
        "prompt", "steps", "Mbit/s", "TPOT ms", "draft ms", "drafted", "accepted k", "int8", "lynx", "won", "predicted",
        "drafting", "extra bytes", "last step", "verify", "of min(t_res, k TPOT)",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="right")
    for r in rows:
        table.add_row(
            str(r.prompt), str(r.steps), f"{r.bandwidth_mbit_s:g}", f"{1e3 * r.tpot:.1f}", f"{1e3 * r.draft_step:.1f}",
            str(r.drafted), str(r.accepted), f"{r.int8_s:.3f}", f"{r.lynx_s:.3f}", f"{r.measured:+.3f}",
            f"{r.predicted:+.3f}", f"{r.drafting:+.3f}", f"{r.extra_bytes:+.3f}", f"{r.last_step:+.3f}",
            f"{r.verify:+.3f}", "-" if r.share is None else f"{100 * r.share:.0f} %",
        )  # fmt: skip
    console.print(table)
    for steps in sorted({row.steps for row in rows}):
        chosen = [row for row in rows if row.steps == steps]
        won, predicted = sum(row.measured for row in chosen), sum(row.predicted for row in chosen)
        ceiling = sum(paper_gain(row.t_residual, row.accepted, row.tpot) for row in chosen)
        console.print(
            f"residual of {steps} steps, all prompts: {won:.3f} s won, {won / predicted:.2f} of the prediction, "
            f"{100 * won / ceiling:.0f} % of min(t_res, k TPOT)"
        )


if __name__ == "__main__":
    main()
