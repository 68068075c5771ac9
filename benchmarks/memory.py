"""Peak memory of the decode server's engine beyond a plain P/D load: int8 and Lynx against bf16.

Usage: python benchmarks/memory.py [--contexts 4000,8000] [--together 8] [--together-context 2000] [--json]

One request at a time on a slow link, all of whose Anchor is staged before the Residual comes; then several at once.
VmHWM of the engine's processes is reset before each load. All bf16 loads come first, and before them the whole KV cache
is touched, so that what an allocator keeps of an earlier load counts for the later methods, never for bf16.
Bar: Lynx takes at most 5 % more than the bytes of its two streams, beyond bf16; else the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from lynx_ascend.demo.cluster import default_dtype
from lynx_ascend.demo.measured import MeasuredCluster
from lynx_ascend.evaluation.model import ensure_model, load_tokenizer
from lynx_ascend.evaluation.prompts import prompts

MAX_TOKENS = 32
METHODS = ("bf16", "int8", "lynx")
BAR = 0.05
TRANSFER_S = 4.0  # the bf16 streams of a load take this long, so that staging is not just passed through
BLOCK, MAX_MODEL_LEN = 32, 8192  # tokens, as ClusterOptions has them


@dataclass(frozen=True)
class Load:
    """Prompts asked at the same time."""

    context: int
    requests: int


@dataclass(frozen=True)
class Row:
    """One load by one method; bytes.

    Attributes:
        streams: of all streams on the wire.
        before, peak: resident memory of the engine's processes before the load, and at most during it.
        extra: peak beyond that of bf16.
        accepted: drafts, over all requests.
    """

    load: Load
    method: str
    streams: int
    before: int
    peak: int
    extra: int
    accepted: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", default="4000,8000", help="tokens of the prompts asked alone")
    parser.add_argument("--together", type=int, default=8, help="requests at once")
    parser.add_argument("--together-context", type=int, default=2000, help="tokens of each of their prompts")
    parser.add_argument("--dtype", default=default_dtype(), choices=["bfloat16", "float32"])
    parser.add_argument("--output", type=Path, default=Path("out/memory"), help="folder for logs and the trace")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    console = Console(stderr=args.json)
    loads = [Load(int(context), 1) for context in args.contexts.split(",")]
    loads += [Load(args.together_context, args.together)] if args.together else []
    rows = measure(loads, args, console)
    show(rows, console)
    if args.json:
        json.dump({"rows": [asdict(row) for row in rows]}, sys.stdout)
        print()
    if any(row.method == "lynx" and row.extra > (1 + BAR) * row.streams for row in rows):
        sys.exit(1)


def measure(loads: Sequence[Load], args: argparse.Namespace, console: Console) -> list[Row]:
    lengths = [load.context for load in loads for _ in range(load.requests)]
    every = iter(prompts(load_tokenizer(ensure_model()), len(lengths), lengths))
    asked = {load: [next(every) for _ in range(load.requests)] for load in loads}
    # As few blocks as the engine starts with and the largest load needs, so that little is left to be touched.
    needed = {load: load.requests * (math.ceil((load.context + MAX_TOKENS) / BLOCK) + 1) for load in loads}
    blocks = max(MAX_MODEL_LEN // BLOCK, *needed.values()) + 1
    limit = ("--num-gpu-blocks-override", str(blocks))
    with MeasuredCluster(args.output, args.dtype, decode_args=limit) as cluster:
        assert cluster.decode.process is not None
        engine = Engine(cluster.decode.process.pid)
        nbytes = {}
        for load, texts in asked.items():
            console.print(f"prefilling {load.requests} x {load.context} tokens")
            for _ in range(math.ceil(blocks / needed[load])):  # blocks are taken in turn: now all of them
                runs = cluster.ask_together(texts, "bf16", max_tokens=MAX_TOKENS, timeout=300)
            nbytes[load] = sum(run.trace.nbytes["anchor"] for run in runs)
        rows: list[Row] = []
        for method in METHODS:
            for load, texts in asked.items():
                link = 8e-6 * nbytes[load] / load.requests / TRANSFER_S
                before = engine.reset()
                runs = cluster.ask_together(texts, method, max_tokens=MAX_TOKENS, bandwidth=round(link, 2))
                peak = engine.peak()
                plain = next((row.peak for row in rows if row.load == load), peak)
                streams = sum(sum(run.trace.nbytes.values()) for run in runs)
                accepted = sum(run.trace.accepted for run in runs)
                rows.append(Row(load, method, streams, before, peak, peak - plain, accepted))
                console.print(f"{load.requests} x {load.context} tokens, {method}: {(peak - plain) / 1e6:+.1f} MB")
    return rows


class Engine:
    """The processes behind an API server: the engine's, which holds KV cache and staging, and its helpers."""

    def __init__(self, server_pid: int) -> None:
        self._processes = psutil.Process(server_pid).children(recursive=True)
        if not self._processes:
            raise RuntimeError(f"process {server_pid} has no children: where is the engine?")

    def reset(self) -> int:
        """Forgets earlier peaks. Returns the bytes that are resident now."""
        for process in self._processes:
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        return sum(_status(process.pid, "VmRSS") for process in self._processes)

    def peak(self) -> int:
        """Bytes: the sum of the processes' peaks since `reset`."""
        return sum(_status(process.pid, "VmHWM") for process in self._processes)


def _status(pid: int, name: str) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def show(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="Resident memory of the decode engine, MB (10^6 bytes)")
    for column in ("requests", "tokens", "method", "streams", "before", "peak", "extra", "of the streams", "accepted"):
        table.add_column(column, justify="right")
    for r in sorted(rows, key=lambda row: (row.load.requests, row.load.context, METHODS.index(row.method))):
        share = "" if r.method == "bf16" else f"{100 * r.extra / r.streams:.0f} %"
        table.add_row(
            str(r.load.requests), str(r.load.context), r.method, f"{r.streams / 1e6:.1f}", f"{r.before / 1e6:.1f}",
            f"{r.peak / 1e6:.1f}", f"{r.extra / 1e6:+.1f}", share, str(r.accepted) if r.method == "lynx" else "",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
