"""The figures of `lynx-ascend bench kernels` as a table for a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

COLUMNS = ("GB/s", "HBM", "bound", "load", "vector", "store", "hidden", "in", "out", "repeats")
NOTES = (
    "Estimates: the kernels ran on the host twin, with cycles from a public cost table of unsure generation. "
    "Scalar work, DMA start-up and bank conflicts are free in it. Nothing was measured on an NPU.",
    "GB/s: bytes of bf16 over time, by the slower of cores and HBM. HBM: by memory alone, at 0.8 TB/s (inferred).",
    "load, vector, store: busy part of the time, of the core where it is largest. hidden: part of the loads during "
    "which the vector unit works. in, out: bytes of GM an element. repeats: of 256 bytes, for 64 elements.",
    "What ran was checked: bytes equal those of the CPU's kernels, and the twin found no broken rule.",
)


def print_report(result: dict[str, Any], console: Console) -> None:
    """`result`: of kernels.run."""
    setup = result["setup"]
    shape = setup["cache_shape"]
    console.print(
        f"[bold]{setup['cores']} cores, a paged bf16 cache {shape}, estimate[/bold]", highlight=False, soft_wrap=True
    )
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in result["rows"]:
        table.add_row(row["method"], row["kernel"].replace("decode", "dec."), *_cells(row))
    console.print(table)
    console.print()
    for note in NOTES:
        console.print(f"- {note}", highlight=False, markup=False, soft_wrap=True)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['gb_per_s']:.0f}",
        f"{row['hbm_gb_per_s']:.0f}",
        row["bound"],
        *(f"{row['busy'][pipe]:.0%}" for pipe in ("MTE2", "V", "MTE3")),
        f"{row['hidden_loads']:.0%}",
        f"{row['loaded_bytes_per_element']:.2f}",
        f"{row['stored_bytes_per_element']:.2f}",
        f"{row['vector_repeats_per_64_elements']:.1f}",
    ]
