"""Time to the 64th verified token with the adaptive window and with fixed ones, on links of different speed.

Usage: python benchmarks/windows.py [--steps 16,32,64] [--prompts 3] [--context 3500] [--dtype float32] [--json]

Real servers, as in gain.py: the link is emulated on loopback, so that the Residual takes a given
number of decode steps; prompts are prefilled before they are measured, and times count from the pull. One request for
each prompt, link and window, one at a time; all of them teach the decode server's estimators, as users' requests would.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lynx_ascend.demo.cluster import default_dtype
from lynx_ascend.demo.measured import MeasuredCluster
from lynx_ascend.evaluation.model import ensure_model, load_tokenizer
from lynx_ascend.evaluation.prompts import prompts

N = 64
MAX_TOKENS = 128  # so that the end of the request does not cut a window of 127
WINDOWS: dict[str, dict[str, str | int | float]] = {
    "none": {"lynx_draft_cap": 0},
    "adaptive": {"lynx_window": "adaptive", "lynx_draft_cap": 127},
    "fixed 16": {"lynx_draft_cap": 16},
    "fixed 64": {"lynx_draft_cap": 64},
    "fixed 127": {"lynx_draft_cap": 127},
}


@dataclass(frozen=True)
class Row:
    """One request. steps: decode steps that the Residual takes; seconds: from the pull to the N-th token."""

    prompt: int
    steps: int
    bandwidth_mbit_s: float
    window: str
    drafted: int
    accepted: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", default="16,32,64", help="decode steps that the Residual takes")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--context", type=int, default=3500, help="tokens of each prompt")
    parser.add_argument("--dtype", default=default_dtype(), choices=["bfloat16", "float32"])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    console = Console(stderr=args.json)
    rows = measure(args)
    show(rows, console)
    if args.json:
        json.dump({"rows": [asdict(row) for row in rows]}, sys.stdout)
        print()


def measure(args: argparse.Namespace) -> list[Row]:
    asked = prompts(load_tokenizer(ensure_model()), args.prompts, [args.context] * args.prompts)
    with tempfile.TemporaryDirectory() as folder, MeasuredCluster(Path(folder), args.dtype) as cluster:
        rows, step = [], None
        for index, prompt in enumerate(asked):
            warm = cluster.ask(prompt, "lynx", max_tokens=MAX_TOKENS)
            step = step or warm.completion.decode_step()
            for steps in (int(steps) for steps in args.steps.split(",")):
                bandwidth = round(8e-6 * warm.trace.nbytes["residual"] / (steps * step), 1)
                for window, xargs in WINDOWS.items():
                    run = cluster.ask(prompt, "lynx", bandwidth=bandwidth, max_tokens=MAX_TOKENS, **xargs)
                    drafts = run.trace.drafted, run.trace.accepted
                    rows.append(Row(index, steps, bandwidth, window, *drafts, run.from_pull(N)))
        return rows


def show(rows: list[Row], console: Console) -> None:
    table = Table(title=f"Seconds from the pull to the {N}th verified token; in brackets accepted of drafted")
    for column in ("prompt", "steps", "Mbit/s", *WINDOWS):
        table.add_column(column, justify="right")
    for start in range(0, len(rows), len(WINDOWS)):
        group = rows[start : start + len(WINDOWS)]
        first = group[0]
        cells = [f"{row.seconds:.2f} ({row.accepted}/{row.drafted})" for row in group]
        table.add_row(str(first.prompt), str(first.steps), f"{first.bandwidth_mbit_s:g}", *cells)
    console.print(table)
    for steps in sorted({row.steps for row in rows}):
        sums = {w: sum(row.seconds for row in rows if (row.steps, row.window) == (steps, w)) for w in WINDOWS}
        console.print(f"{steps} steps, all prompts: " + ", ".join(f"{w} {s:.2f} s" for w, s in sums.items()))


if __name__ == "__main__":
    main()
