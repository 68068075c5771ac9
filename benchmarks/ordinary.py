"""What an ordinary request pays for the plugin: decode time per token, with LynxConnector (kv_both) against without.

Usage: python benchmarks/ordinary.py [--other lynx] [--batches 1,8] [--seconds 120] [--dtype float32] [--json]

Two vLLM servers run at the same time, pinned to one core; the client has the others. `plain` has no plugin and no
connector, `lynx` has both. One request (or batch) at a time, in blocks of plain, lynx, lynx, plain; a block gives the
logarithm of lynx / plain, so that drift cancels. The requests have no transfer parameters, and their prompts stay in
each server's prefix cache. --other plain compares two plain servers: what the method sees where nothing differs.
Bar: the upper 95 % bound of the extra time per token is at most 3 %, else the exit status is 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from lynx_ascend.demo.client import Completion, complete
from lynx_ascend.demo.cluster import ClusterOptions, lynx_transfer, vllm_server
from lynx_ascend.demo.services import ReservedPort, Servers, Service
from lynx_ascend.evaluation.intervals import student
from lynx_ascend.evaluation.model import ensure_model, load_tokenizer
from lynx_ascend.evaluation.prompts import prompts

MAX_TOKENS = 16  # few, so that a block is over before the machine has another speed
PROMPT_TOKENS = 200
BAR = 0.03
MIN_BLOCKS = 3


@dataclass(frozen=True)
class Row:
    """One server against `plain`: seconds a token (medians over requests), other / plain - 1 with its 95 % interval.

    logs: of other / plain, block by block.
    """

    other: str
    batch: int
    blocks: int
    plain_s: float
    other_s: float
    extra: float
    low: float
    high: float
    logs: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", default="lynx", choices=["lynx", "plain"], help="what is compared with plain")
    parser.add_argument("--batches", default="1,8", help="requests at a time")
    parser.add_argument("--seconds", type=float, default=120, help="for each batch; no block starts later")
    parser.add_argument("--dtype", default="float32", choices=["bfloat16", "float32"])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    console = Console(stderr=args.json)
    rows = measure(args, [int(batch) for batch in args.batches.split(",")], console)
    show(rows, console)
    if args.json:
        json.dump({"rows": [asdict(row) for row in rows]}, sys.stdout)
        print()
    if any(row.high > BAR for row in rows):
        sys.exit(1)


def measure(args: argparse.Namespace, batches: Sequence[int], console: Console) -> list[Row]:
    started = time.monotonic()
    model = ensure_model()
    asked = prompts(load_tokenizer(model), max(batches), [PROMPT_TOKENS] * max(batches))
    with tempfile.TemporaryDirectory() as folder:
        options = ClusterOptions(model=model, logs=Path(folder), dtype=args.dtype)
        transfer = lynx_transfer(options, "kv_both") if args.other == "lynx" else None
        ports = [ReservedPort(), ReservedPort()]
        plain, other = (
            vllm_server(name, options, port, transfer, env={} if transfer else {"VLLM_PLUGINS": ""})
            for name, port, transfer in zip(("first", "second"), ports, (None, transfer), strict=True)
        )
        urls = [port.url for port in ports]
        with Servers([[(plain, urls[0]), (other, urls[1])]], ports, options.start_s):
            console.print(f"both servers are up after {time.monotonic() - started:.0f} s")
            *ours, last = sorted(os.sched_getaffinity(0))
            if ours:  # only now: they start faster on all cores
                pin(plain, last)
                pin(other, last)
                os.sched_setaffinity(0, ours)
            return [compare(args.other, urls, asked[:batch], args.seconds, console) for batch in batches]


def pin(service: Service, core: int) -> None:
    """All threads of all its processes, to one core."""
    assert service.process is not None
    server = psutil.Process(service.process.pid)
    for process in (server, *server.children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, [core])


def compare(name: str, urls: Sequence[str], asked: Sequence[list[int]], seconds: float, console: Console) -> Row:
    """Blocks of four for `seconds`, after one round that counts for nothing."""
    ends = time.monotonic() + seconds
    for url in urls:
        time_per_token(url, asked)
    taken: list[tuple[float, float, float, float]] = []
    while len(taken) < MIN_BLOCKS or time.monotonic() < ends:
        a, b, c, d = (time_per_token(urls[index], asked) for index in (0, 1, 1, 0))
        taken.append((a, b, c, d))
        extra = 100 * math.expm1(block_log(a, b, c, d))
        console.print(f"batch of {len(asked)}, block {len(taken)}: {1e3 * a:.2f} ms a token, {name} {extra:+.2f} %")
    return row_of(name, len(asked), taken)


def time_per_token(url: str, asked: Sequence[list[int]]) -> float:
    """Median seconds between the tokens of all answers, asked for at the same time."""

    def one(prompt: list[int]) -> Completion:
        return complete(url, prompt, max_tokens=MAX_TOKENS, ignore_eos=True)

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(one, asked))
    return statistics.median(b - a for answer in answers for a, b in itertools.pairwise(sorted(set(answer.arrivals))))


def block_log(plain: float, other: float, other_again: float, plain_again: float) -> float:
    """log(other / plain) of one block of four."""
    return (math.log(other) + math.log(other_again) - math.log(plain) - math.log(plain_again)) / 2


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % interval by Student's t; the latter is infinite for a single value."""
    mean, freedom = statistics.mean(values), len(values) - 1
    if not freedom:
        return mean, math.inf
    return mean, student(freedom) * statistics.stdev(values) / math.sqrt(len(values))


def row_of(other: str, batch: int, times: Sequence[tuple[float, float, float, float]]) -> Row:
    logs = [block_log(*block) for block in times]
    mean, half = interval(logs)
    return Row(
        other=other,
        batch=batch,
        blocks=len(logs),
        plain_s=statistics.median(t for a, _, _, d in times for t in (a, d)),
        other_s=statistics.median(t for _, b, c, _ in times for t in (b, c)),
        extra=math.expm1(mean),
        low=math.expm1(mean - half),
        high=math.expm1(mean + half),
        logs=logs,
    )


def show(rows: list[Row], console: Console) -> None:
    table = Table(title=f"Ordinary requests of {PROMPT_TOKENS} + {MAX_TOKENS} tokens: decode time per token")
    for column in ("batch", "server", "blocks", "plain ms", "its ms", "extra", "95 % interval"):
        table.add_column(column, justify="right")
    for r in rows:
        table.add_row(
            str(r.batch), r.other, str(r.blocks), f"{1e3 * r.plain_s:.2f}", f"{1e3 * r.other_s:.2f}",
            f"{100 * r.extra:+.2f} %", f"{100 * r.low:+.2f} .. {100 * r.high:+.2f} %",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
