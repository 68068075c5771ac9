"""Batches of requests through both servers and the proxy, Lynx against int8: acceptance, 64th token, throughput.

Usage: python benchmarks/batches.py [--batches 1,8,32] [--runs 2] [--steps 32] [--context 1000] [--json]

All requests of a batch are sent at once, each on an emulated link of its own on which the Residual takes --steps decode
steps, as long as a step is when the whole batch decodes. Prompts are prefilled before they are measured; times count
from each request's pull. int8 (the monolithic 8-bit transfer) and lynx take turns: int8, lynx, lynx, int8, ...
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lynx_ascend.demo.cluster import default_dtype
from lynx_ascend.demo.measured import MeasuredCluster, Run
from lynx_ascend.demo.trace import Span
from lynx_ascend.evaluation.model import ensure_model, load_tokenizer
from lynx_ascend.evaluation.prompts import prompts

N = 64  # tokens of each answer
CACHE_GIB = 4  # 32 prompts of 1,000 tokens and their longest answers take 3.3 in float32


@dataclass(frozen=True)
class Row:
    """One batch by one method, over all its runs; times in seconds.

    Attributes:
        tpot: from token to token while the whole batch decodes and nothing is received.
        drafted, accepted: a request, mean.
        to_last_mean, to_last_median: from a request's pull to its N-th token.
        tokens_per_s: of the batch, from the first pull to the last token; mean over runs.
        verify_share: of the time from the first complete Anchor (or int8 transfer) to the last token, the part in which
            a step that verifies was under way.
    """

    batch: int
    method: str
    bandwidth_mbit_s: float
    tpot: float
    drafted: float
    accepted: float
    to_last_mean: float
    to_last_median: float
    tokens_per_s: float
    verify_share: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="1,8,32", help="requests at once")
    parser.add_argument("--runs", type=int, default=2, help="of each method and batch")
    parser.add_argument("--steps", type=int, default=32, help="decode steps that the Residual takes")
    parser.add_argument("--context", type=int, default=1000, help="tokens of each prompt")
    parser.add_argument("--dtype", default=default_dtype(), choices=["bfloat16", "float32"])
    parser.add_argument("--output", type=Path, default=Path("out/batches"), help="folder for logs and the trace")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    console = Console(stderr=args.json)
    rows = measure(args, console)
    show(rows, args.steps, console)
    if args.json:
        json.dump({"rows": [asdict(row) for row in rows]}, sys.stdout)
        print()


def measure(args: argparse.Namespace, console: Console) -> list[Row]:
    batches = sorted(int(batch) for batch in args.batches.split(","))
    asked = prompts(load_tokenizer(ensure_model()), batches[-1], [args.context] * batches[-1])
    rows = []
    with MeasuredCluster(args.output, args.dtype, cache_gib=CACHE_GIB) as cluster:
        console.print(f"prefilling {len(asked)} prompts")
        warm = cluster.ask_together(asked, "lynx", max_tokens=2, timeout=600)
        residual = warm[0].trace.nbytes["residual"]
        for batch in batches:
            # Long enough for the first one to go on when the last one begins.
            tpot = step_together(cluster.ask_together(asked[:batch], "int8", max_tokens=N + 4 * batch, timeout=300))
            bandwidth = round(8e-6 * residual / (args.steps * tpot), 2)
            done: dict[str, list[list[Run]]] = {"int8": [], "lynx": []}
            for method in (["int8", "lynx", "lynx", "int8"] * args.runs)[: 2 * args.runs]:
                runs = cluster.ask_together(asked[:batch], method, max_tokens=N, bandwidth=bandwidth, timeout=300)
                done[method].append(runs)
                to_last = statistics.mean(run.from_pull(N) for run in runs)
                console.print(f"batch of {batch}, {method}: {to_last:.3f} s to token {N}")
            rows += [row_of(batch, method, bandwidth, tpot, group) for method, group in done.items()]
    return rows


def step_together(runs: Sequence[Run]) -> float:
    """Median seconds between the tokens of all answers, while all of them are being decoded.

    Raises:
        ValueError: they were not, for the time of a token.
    """
    start = max(run.completion.arrivals[0] for run in runs)
    end = min(run.completion.arrivals[-1] for run in runs)
    gaps = [
        later - earlier
        for run in runs
        for earlier, later in itertools.pairwise(sorted(set(run.completion.arrivals)))
        if start <= earlier and later <= end
    ]
    if not gaps:
        raise ValueError(f"the {len(runs)} requests never decoded together")
    return statistics.median(gaps)


def row_of(batch: int, method: str, bandwidth: float, tpot: float, groups: Sequence[Sequence[Run]]) -> Row:
    runs = [run for group in groups for run in group]
    to_last = [run.from_pull(N) for run in runs]
    return Row(
        batch=batch,
        method=method,
        bandwidth_mbit_s=bandwidth,
        tpot=tpot,
        drafted=statistics.mean(run.trace.drafted for run in runs),
        accepted=statistics.mean(run.trace.accepted for run in runs),
        to_last_mean=statistics.mean(to_last),
        to_last_median=statistics.median(to_last),
        tokens_per_s=statistics.mean(throughput(group) for group in groups),
        verify_share=statistics.mean(verify_share(group) for group in groups),
    )


def throughput(runs: Sequence[Run]) -> float:
    """Tokens a second, from the first pull to the last token."""
    tokens = sum(len(run.completion.token_ids) for run in runs)
    return tokens / (max(run.completion.arrivals[-1] for run in runs) - min(run.trace.pulled_at for run in runs))


def verify_share(runs: Sequence[Run]) -> float:
    """Part of the time in which the decode server steps that is taken by steps with a verification."""
    start = min(run.trace.streams["anchor"].received.end for run in runs)
    end = max(run.completion.arrivals[-1] for run in runs)
    return covered(run.trace.verify for run in runs if run.trace.verify is not None) / (end - start)


def covered(spans: Iterable[Span]) -> float:
    """Seconds that at least one of the spans covers."""
    total, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


def show(rows: Sequence[Row], steps: int, console: Console) -> None:
    table = Table(title=f"Requests at once; each Residual takes {steps} decode steps; {N} tokens, times from the pull")
    columns = (
        "batch", "method", "Mbit/s each", "TPOT ms", "drafted", "accepted", f"token {N}: mean s", "median s",
        "tokens/s", "verifying",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="right")
    for r in rows:
        drafts = (f"{r.drafted:.1f}", f"{r.accepted:.1f}", f"{100 * r.verify_share:.1f} %")
        drafted, accepted, share = drafts if r.method == "lynx" else ("", "", "")
        table.add_row(
            str(r.batch), r.method, f"{r.bandwidth_mbit_s:g}", f"{1e3 * r.tpot:.1f}", drafted, accepted,
            f"{r.to_last_mean:.3f}", f"{r.to_last_median:.3f}", f"{r.tokens_per_s:.1f}", share,
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
