"""The figures of `lynx-ascend bench codec` as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

COLUMNS = ("GB/s", "memcpy", "quartiles", "memcpy 1", "int8", "sliced", "scaling")


def print_report(result: dict[str, Any], console: Console) -> None:
    """A table for each instruction set and thread count, then what the columns mean. `result`: of codec.run."""
    machine, setup = result["machine"], result["setup"]
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']:.1f}; torch {machine['torch']}, "
        f"compiler {machine['compiler']}",
        highlight=False,
        soft_wrap=True,
    )
    for run in result["runs"]:
        for threads in setup["threads"]:
            title = f"{run['isa']}, {threads} thread{'s'[: threads > 1]}, {run['rounds']} rounds"
            console.print(f"\n[bold]{title}[/bold]", highlight=False)
            console.print(_table([row for row in run["rows"] if row["threads"] == threads]))
    buffer, reference, part = (setup[f"{name}_bytes"] / 1e6 for name in ("buffer", "reference", "int8_slice"))
    notes = (
        f"GB/s: bytes of bf16 over time, medians. The buffer has {buffer:.0f} MB, a paged cache {setup['cache_shape']} "
        f"with a shuffled block table; the reference (ref.) has {reference:.1f} MB of it.",
        "memcpy: median and quartiles of the ratio to the faster memcpy, timed right before with as many threads "
        "(each byte counted once). memcpy 1: to the round's memcpy with one thread. scaling: to one thread's speed.",
        "int8: times the speed of a PyTorch quantiser (lynx_ascend/bench/int8.py) in one call over the buffer; sliced: "
        f"over {part:.1f} MB at a time, which stay in cache. Decoding is compared with dequantising.",
        "What was timed was checked: pages equal the reference bit for bit, and every instruction set and thread count "
        "computes the same bytes.",
    )
    console.print()
    for note in notes:
        console.print(f"- {note}", highlight=False, markup=False)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(_name(row), row["kernel"].replace("decode", "dec."), *_cells(row))
    return table


def _name(row: dict[str, Any]) -> str:
    prefix = {"reference": "ref. ", "libc": "libc ", "torch": "torch "}
    return prefix.get(row["implementation"], "") + str(row["method"])


def _cells(row: dict[str, Any]) -> list[str]:
    quartiles = row.get("of_memcpy_quartiles")
    return [
        _figure(row["gb_per_s"]),
        _figure(row.get("of_memcpy")),
        "" if quartiles is None else "-".join(f"{value:.2f}" for value in quartiles),
        _figure(row.get("of_one_thread_memcpy")),
        _figure(row.get("times_int8")),
        _figure(row.get("times_int8_sliced")),
        _figure(row["times_one_thread"]),
    ]


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
