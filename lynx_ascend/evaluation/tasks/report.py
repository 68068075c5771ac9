"""A task's result as tables, JSON and one self-contained page; agreement with BF16 is the headline."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lynx_ascend.evaluation.intervals import Interval
from lynx_ascend.evaluation.methods import DROPPING
from lynx_ascend.evaluation.page import Table, html_image, html_json, html_table, markdown, page, plain
from lynx_ascend.evaluation.tasks.figures import draw_agreement, draw_grids
from lynx_ascend.evaluation.tasks.run import TaskResult


@dataclass(frozen=True)
class StreamScore:
    """A method after its first or all streams. agreement: with BF16; score: of the answers; groups: that by group."""

    method: str
    stream: Literal["first", "all"]
    split: bool
    bits: float
    agreement: Interval
    score: Interval
    groups: dict[str, Interval]


def scores(result: TaskResult) -> list[StreamScore]:
    """A row a method, two if it sends two streams, in the order of the run."""
    interval, found = Interval.of_share if result.task.shares else Interval.of_mean, []
    groups = list(dict.fromkeys(item.group for item, _ in result.items))
    for name, method in result.methods.items():
        streams: tuple[Literal["first", "all"], ...] = ("first", "all") if method.num_streams > 1 else ("all",)
        for stream in streams:
            rows = [(item, every[name][stream], every[result.exact]["all"]["answer"]) for item, every in result.items]
            agreed = [result.task.agreement(row["answer"], exact) for _, row, exact in rows]
            scored = [result.task.score(item, row["answer"]) for item, row, _ in rows]
            pairs = list(zip(rows, scored, strict=True))
            by_group = {group: interval([s for row, s in pairs if row[0].group == group]) for group in groups}
            bits = statistics.mean(row["bits"] for _, row, _ in rows)
            found.append(
                StreamScore(name, stream, len(streams) > 1, bits, interval(agreed), interval(scored), by_group)
            )
    return found


def tables(result: TaskResult) -> list[Table]:
    """The methods' table, and the score by group if there is more than one: a grid a method if they make one."""
    found, name = scores(result), result.task.score_name
    caption = f"{result.task.title}, {len(result.items)} prompts (* tokens are dropped or left unread)"
    choices = [item.choices for item, _ in result.items]
    if all(choices):
        caption += f", chance {100 * statistics.mean(1 / n for n in choices):.1f} %"
    exemplars = [item.exemplars for item, _ in result.items if item.exemplars is not None]
    if exemplars:
        caption += f", {statistics.mean(exemplars):.1f} exemplars each"
    heads = ["method", "bits", "agreement with BF16 / %", f"{name} / %"]
    rows = [
        [_label(row), _bits(row.bits), row.agreement.text() if row.method != result.exact else "", row.score.text()]
        for row in found
    ]
    made: list[Table] = [(caption, heads, rows)]
    groups = list(found[0].groups)
    if grid := result.task.grid():
        heads = [f"{grid.down} \\ {grid.across}", *grid.columns]
        for row in found:
            cells = [
                [label, *(f"{100 * row.groups[group].value:.0f}" for group in line)]
                for label, line in zip(grid.rows, grid.cells, strict=True)
            ]
            made.append((f"{name} / %, {_label(row)}", heads, cells))
    elif len(groups) > 1:
        cells = [[_label(row), *(f"{100 * row.groups[group].value:.0f}" for group in groups)] for row in found]
        made.append((f"{name} by group / %", ["method", *groups], cells))
    return made


def write_report(result: TaskResult, folder: Path) -> dict[str, Any]:
    """Writes <task>.html, .json and .md into `folder`; returns the JSON object."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [
        {
            "name": item.name,
            "group": item.group,
            "tokens": len(item.ids) or None,
            "exemplars": item.exemplars,
            "wanted": item.wanted,
            "methods": dict(rows),
        }
        for item, rows in result.items
    ]
    methods = [asdict(row) for row in scores(result)]
    value: dict[str, Any] = plain({"setting": dict(result.setting), "methods": methods, "prompts": prompts})
    made, title = tables(result), f"{result.task.title}: answers on transferred caches"
    described = [[name, method.source, repr(method)] for name, method in result.methods.items()]
    parts = [html_table(*table) for table in made] + [html_table("Methods", [], described)]
    parts[1:1] = [html_image(picture) for picture in _figures(result)]
    parts.append(html_json("Setting", value["setting"]))
    for suffix, text in (
        ("json", json.dumps(value, indent=1)),
        ("md", markdown(made)),
        ("html", page(title, parts)),
    ):
        (folder / f"{result.task.name}.{suffix}").write_text(text, encoding="utf-8")
    return value


def _figures(result: TaskResult) -> list[bytes]:
    """One; none if there is nothing to agree with."""
    found = scores(result)
    if grid := result.task.grid():
        return [draw_grids(grid, result.task.score_name, [(_label(row), row.groups) for row in found])]
    agreed = [(_label(row), row.agreement) for row in found if row.method != result.exact]
    return [draw_agreement(agreed)] if agreed else []


def _bits(bits: float) -> str:
    return "" if math.isnan(bits) else f"{bits:.2f}"


def _label(row: StreamScore) -> str:
    return f"{row.method}{f', {row.stream}' if row.split else ''}{' *' if row.method in DROPPING else ''}"
