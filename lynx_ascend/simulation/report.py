"""Tables and figures of the simulator."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lynx_ascend.simulation.acceptance import Acceptance
from lynx_ascend.simulation.paper import TABLE1, Comparison, Row
from lynx_ascend.simulation.rules import Map, ahead
from lynx_ascend.simulation.simulate import Outcome
from lynx_ascend.speculation.break_even import Choice

_OWN, _PLAIN = "the same 8 bits without drafts", "plain INT8"  # what the two maps of a model compare with
_DARKEST = 1.2  # seconds, of the maps' colours


def print_paper(result: Comparison, console: Console) -> None:
    """The comparison, the constants, and what explains the misses."""
    fitted = result.constants
    for line in (
        "Three constants, fitted to the rows of bf16, int8 and int4 in Table 1:",
        f"a link of {fitted.link / 1e9:.2f} Gbit/s (nominally 25), {fitted.before:.2f} s before the transfer, "
        f"{1e3 * fitted.layer_overhead:.3f} ms a layer and step.",
        f"At 25 Gbit/s Table 1's bf16 cache takes {result.nominal_bf16:.2f} s; published are {TABLE1['bf16'][0]} s.",
        f"Its prompt takes 8 NPUs {result.fastest_prefill:.2f} s at their peak.",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    table = _table("The paper's figures, seconds", ["", "predicted", "published", "error", ""])
    for row in [*result.table1, *result.advantages]:
        cells = [f"{row.predicted:.2f}", f"{row.published:.2f}", f"{100 * row.error:+.0f} %"]
        table.add_row(row.what, *cells, "fitted" if row.fitted else "")
    console.print(table)
    table = _table("Lynx with one assumption changed, relative errors", ["", "first", "32", "over INT8"])
    for variant in result.variants:
        lynx = [row for row in variant.table1 if not row.fitted]
        table.add_row(variant.name, *(_percent([row]) for row in lynx), _percent(variant.advantages))
    console.print(table)


def _percent(rows: Sequence[Row]) -> str:
    return ", ".join(f"{100 * row.error:+.0f}" for row in rows) + " %"


def print_map(result: Map, console: Console) -> None:
    """Seconds that Lynx wins over 8 bits in one stream, its own and plain INT8's, and where raw bf16 is first."""
    n, links = result.rows[0][0].n, [f"{choice.bandwidth / 1e9:g}" for choice in result.rows[0]]
    for than, rows in ((_OWN, result.rows), (_PLAIN, result.plain)):
        title = f"{result.model.name}: seconds that Lynx wins to token {n} over {than} (across: Gbit/s)"
        table = _table(title, ["prompt", *links])
        for row in rows:
            mark = " *" if row[0].tokens in result.extrapolated else ""
            table.add_row(f"{row[0].tokens:,}{mark}", *(_cell(choice) for choice in row))
        console.print(table)
    console.print(result.rule.words(), highlight=False)
    cells = sum(map(len, result.rows))
    console.print(
        f"Rule of thumb: draft if the Residual takes longer than a verification does beyond a decode step. It is right "
        f"in {result.thumb} of {cells} cells of the first table; wrong, it costs at most {result.lost:.3f} s.",
        highlight=False,
    )
    if result.extrapolated:
        console.print("* acceptance was not measured at this context", highlight=False)


def print_acceptance(acceptance: Acceptance, contexts: Sequence[int], console: Console) -> None:
    """Whole drafts of some lengths, and the mean accepted of the longest, by context."""
    longest = min(len(acceptance.at(tokens)) for tokens in contexts)
    steps = [k for k in (1, 4, 8, 16, 21, 32, 64) if k <= longest]
    heads = ["prompt", f"accepted of {longest}", *(f"all of {k}" for k in steps)]
    table = _table(f"Drafts that hold ({acceptance.source})", heads)
    for tokens in contexts:
        curve = acceptance.at(tokens)
        mark = " *" if acceptance.extrapolated(tokens) else ""
        cells = (f"{100 * curve[k - 1]:.0f} %" for k in steps)
        table.add_row(f"{tokens:,}{mark}", f"{sum(curve[:longest]):.1f}", *cells)
    console.print(table)
    console.print("* extrapolated: acceptance was not measured at this context", highlight=False)


def _cell(choice: Choice) -> str:
    return "bf16" if choice.method == "bf16" else f"{ahead(choice):+.2f}"


@dataclass(frozen=True)
class LoadRow:
    """One method under a load, in seconds: alone (by formula, mean prompt), then over requests; tokens: a second."""

    method: str
    alone: float
    first: float
    median: float
    p90: float
    drafted: float
    accepted: float
    link_busy: float
    tokens: float

    @classmethod
    def of(cls, method: str, alone: float, outcome: Outcome, n: int) -> LoadRow:
        """From a run; time to the n-th token."""
        requests, split = outcome.requests, [r for r in outcome.requests if len(r.flows) > 1]
        times = sorted(r.time_to(n) for r in requests)
        ends = max(r.tokens_at[-1][0] for r in requests) - requests[0].arrival
        sent = sum(flow.sent for r in requests for flow in r.flows)
        return cls(
            method,
            alone,
            first=statistics.median(r.time_to(1) for r in requests),
            median=statistics.median(times),
            p90=times[math.ceil(0.9 * len(times)) - 1],
            drafted=statistics.mean(r.drafted for r in split) if split else 0.0,
            accepted=statistics.mean(min(r.drafted, r.holds) for r in split) if split else 0.0,
            link_busy=8 * sent / outcome.link.bandwidth / ends,
            tokens=sum(r.tokens for r in requests) / ends,
        )


def print_load(rows: Sequence[LoadRow], title: str, n: int, console: Console) -> None:
    """A row a method."""
    heads = ["method", "alone", "first", f"{n}th", "90 %", "drafts", "kept", "link", "tokens/s"]
    table = _table(title, heads)
    for row in rows:
        table.add_row(
            row.method, f"{row.alone:.2f}", f"{row.first:.2f}", f"{row.median:.2f}", f"{row.p90:.2f}",
            f"{row.drafted:.1f}", f"{row.accepted:.1f}", f"{100 * row.link_busy:.0f} %", f"{row.tokens:.0f}",
        )  # fmt: skip
    console.print(table)


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", no_wrap=not i)
    return table


def draw_maps(maps: Sequence[Map], path: Path) -> None:
    """A row a model: seconds that Lynx wins over its own 8 bits in one stream and over plain INT8."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.9 * len(maps)))
    for i, result in enumerate(maps):
        for j, (than, rows) in enumerate(((_OWN, result.rows), (_PLAIN, result.plain))):
            axes = figure.add_subplot(len(maps), 2, 2 * i + j + 1)
            axes.imshow(
                [[ahead(choice) for choice in row] for row in rows],
                cmap="RdYlGn", vmin=-_DARKEST, vmax=_DARKEST, aspect="auto", origin="lower",
            )  # fmt: skip
            for y, row in enumerate(rows):
                for x, choice in enumerate(row):
                    color = "white" if abs(ahead(choice)) > 0.75 * _DARKEST else "black"
                    axes.text(x, y, _cell(choice), ha="center", va="center", fontsize=6, color=color)
            axes.set_xticks(range(len(rows[0])), [f"{c.bandwidth / 1e9:g}" for c in rows[0]], fontsize=7)
            axes.set_yticks(range(len(rows)), [_kilo(row[0].tokens) for row in rows], fontsize=7)
            axes.set_title(f"{result.model.name}: over {than}", fontsize=8)
            axes.set_xlabel("Gbit/s", fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def _kilo(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens >= 1024 else str(tokens)


def draw_paper(result: Comparison, path: Path) -> None:
    """Predicted against published."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4))
    for axes, rows, title in zip(
        figure.subplots(1, 2), (result.table1, result.advantages), ("Table 1", "advantage over INT8"), strict=True
    ):
        for fitted, marker in ((True, "o"), (False, "*")):
            chosen = [row for row in rows if row.fitted == fitted]
            label = "fitted" if fitted else "predicted"
            points: Any = ([row.published for row in chosen], [row.predicted for row in chosen])
            axes.plot(*points, marker, label=label if chosen else None)
        most = 1.05 * max(row.published for row in rows)
        axes.plot([0, most], [0, most], color="grey", linewidth=0.8)
        axes.set(title=title, xlabel="published, s", ylabel="model, s")
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def draw_load(rates: Sequence[float], rows: Sequence[Sequence[LoadRow]], title: str, path: Path) -> None:
    """Median time to the n-th token over the rate of requests; rows: for each rate, a row a method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4))
    axes = figure.subplots()
    for i, row in enumerate(rows[0]):
        style = "-" if row.method.startswith("lynx") else "--"
        axes.plot(rates, [at[i].median for at in rows], style, marker=".", label=row.method)
    axes.set(xlabel="requests a second", ylabel="median seconds to the 64th token", title=title, yscale="log")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=90)
