"""A fidelity run as one self-contained HTML page, a JSON object and Markdown tables."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lynx_ascend.evaluation.intervals import Mean, Ratio
from lynx_ascend.evaluation.methods import OURS
from lynx_ascend.evaluation.page import Table, html_image, html_json, html_table, markdown, page, plain
from lynx_ascend.evaluation.run import CaseRows, FidelityResult
from lynx_ascend.evaluation.summary import (
    ANCHOR_BITS,
    FULL_BITS,
    PUBLISHED,
    MethodSummary,
    StreamSummary,
    anchor_claim,
    full_error_claim,
    summarise,
)


def to_json(result: FidelityResult) -> dict[str, Any]:
    """The summary, the rows that its intervals rest on, and the setting. Numbers that do not exist (an interval of one
    prompt) are null."""
    value = {
        "setting": dict(result.setting),
        "cases": [{**_described(case), "methods": _rows(case)} for case in result.cases],
        "methods": [
            {**asdict(summary), "fingerprint": result.fingerprints[summary.name]} for summary in summarise(result)
        ],
        "claims": {
            "full error": [verdict._asdict() for verdict in full_error_claim(result)],
            "accepted drafts of the anchor": [verdict._asdict() for verdict in anchor_claim(result)],
        },
    }
    found: dict[str, Any] = plain(value)
    return found


def write_report(result: FidelityResult, folder: Path) -> dict[str, Any]:
    """Writes fidelity.html, fidelity.json and fidelity.md into `folder`; returns the JSON object."""
    folder.mkdir(parents=True, exist_ok=True)
    value = to_json(result)
    made = tables(result)
    (folder / "fidelity.json").write_text(json.dumps(value, indent=1), encoding="utf-8")
    (folder / "fidelity.md").write_text(markdown(made), encoding="utf-8")
    (folder / "fidelity.html").write_text(_page(result, made, value), encoding="utf-8")
    return value


def tables(result: FidelityResult) -> list[Table]:
    """All tables, as text."""
    summaries, found = summarise(result), []
    if summaries:
        found.append(_main_table(summaries))
        found.append(_curve_table(summaries))
    full, anchor = full_error_claim(result), anchor_claim(result)
    if full:
        heads = ["method", "bits", "its full error / ours", "95 %", "ours is", "layers in which its error is smaller"]
        rows = [
            [v.method, f"{v.bits:.2f}", *_ratio(v.ratio), v.ours, "{} of {}".format(*v.better)]
            for v in full
            if v.ratio and v.better
        ]
        found.append((f"Full error against every method of at most {FULL_BITS} bits", heads, rows))
    if anchor:
        heads = ["method", "bits", "accepted, less ours", "from any start, less ours", "ours is"]
        rows = [[v.method, f"{v.bits:.2f}", *(mean.text("+") for mean in v.less), v.ours] for v in anchor if v.less]
        found.append((f"Accepted drafts against every first stream of at most {ANCHOR_BITS} bits", heads, rows))
    return found


def _described(case: CaseRows) -> dict[str, Any]:
    return {"name": case.name, "tokens": case.tokens, "long": case.long, "digest": case.digest}


def _rows(case: CaseRows) -> dict[str, Any]:
    """By method, after its first stream and after all; without the layers, which have no intervals."""
    return {
        name: {
            stream: {field: value for field, value in measured.items() if field != "layers"}
            for stream, measured in (("first", row["first"]), ("all", row["all"]))
        }
        for name, row in case.rows.items()
    }


def _main_table(summaries: Sequence[MethodSummary]) -> Table:
    heads = ["method", "bits", "error / 10^-3", "error, long / 10^-3", "published / 10^-3", "KL / 10^-3"]
    heads += ["top-1 / %", "accepted", "from any start"]
    rows = []
    for summary in summaries:
        streams = [("", summary.all)]
        if summary.split:
            streams = [(", first", summary.first), (", all", summary.all)]
        for suffix, stream in streams:
            known = PUBLISHED.get(summary.name) if stream is summary.all else None
            rows.append([f"{summary.name}{suffix}{' *' if summary.dropping else ''}", *_cells(stream, known)])
    return "Fidelity (* tokens are dropped or left unread)", heads, rows


def _cells(stream: StreamSummary, published: float | None) -> list[str]:
    return [
        f"{stream.bits:.2f}",
        _thousandths(stream.error),
        _thousandths(stream.long_error) if stream.long_error else "",
        f"{1000 * published:.3g}" if published else "",
        _thousandths(stream.kl),
        f"{100 * stream.top1.value:.1f} ± {100 * stream.top1.half:.1f}",
        stream.accepted.text(),
        stream.run.text(),
    ]


def _curve_table(summaries: Sequence[MethodSummary]) -> Table:
    steps = (1, 2, 4, 8, 16, 32, 64)
    rows = []
    for summary in summaries:
        chosen = [summary.first.curve[k - 1] for k in steps]
        cells = [f"{mean.value:.2f} ± {mean.half:.2f}" if mean else "" for mean in chosen]
        rows.append([summary.name, f"{summary.first.bits:.2f}", *cells])
    heads = ["method", "bits of the first stream", *(f"k = {k}" for k in steps)]
    return "P(accepted >= k) of drafts on the first stream, from any start", heads, rows


def _thousandths(mean: Mean) -> str:
    """Three digits, the interval to the same place."""
    value = 1000 * mean.value
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f} ± {1000 * mean.half:.{digits}f}"


def _ratio(ratio: Ratio) -> list[str]:
    return [f"{ratio.value:.3g}", f"{ratio.low:.3g} .. {ratio.high:.3g}"]


def _page(result: FidelityResult, made: Sequence[Table], value: dict[str, Any]) -> str:
    parts = [html_table(*table) for table in made]
    if summaries := summarise(result):
        figures = (_error_figure, _accepted_figure, _layers_figure)
        parts[1:1] = [html_image(_image(draw, summaries)) for draw in figures]
    cases = [_described(case) for case in result.cases]
    parts.append(html_table("Methods", [], [[s.name, s.source, s.parameters] for s in summaries]))
    parts.append(html_json("Setting", {"setting": value["setting"], "cases": cases}))
    return page("Fidelity of KV transfer methods", parts)


def _image(draw: Callable[[Any, Sequence[MethodSummary]], None], summaries: Sequence[MethodSummary]) -> bytes:
    from matplotlib.figure import Figure

    figure, data = Figure(figsize=(12, 5)), io.BytesIO()
    draw(figure, summaries)
    figure.tight_layout()
    figure.savefig(data, format="png", dpi=100)
    return data.getvalue()


def _error_figure(figure: Any, summaries: Sequence[MethodSummary]) -> None:
    """Error against bits: after all streams, and after the first."""
    for axes, name in zip(figure.subplots(1, 2), ("all", "first"), strict=True):
        for summary in summaries:
            stream: StreamSummary = getattr(summary, name)
            if stream.error.value > 0:
                _point(axes, summary, stream.bits, stream.error)
        axes.set(xlabel=f"bits an element, {name} streams", ylabel="error of the attention outputs", yscale="log")


def _accepted_figure(figure: Any, summaries: Sequence[MethodSummary]) -> None:
    """Accepted drafts against bits, and P(accepted >= k)."""
    left, right = figure.subplots(1, 2)
    for i, summary in enumerate(summaries):
        _point(left, summary, summary.first.bits, summary.first.run)
        curve = [math.nan if mean is None else mean.value for mean in summary.first.curve]
        right.plot(range(1, len(curve) + 1), curve, label=summary.name, **_line(summary, i))
    left.set(xlabel="bits an element, first stream", ylabel="accepted drafts, from any start")
    right.set(xlabel="k", ylabel="P(accepted >= k)", ylim=(0, 1.02))
    right.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def _layers_figure(figure: Any, summaries: Sequence[MethodSummary]) -> None:
    """Error by layer, after all streams."""
    axes = figure.subplots()
    for i, summary in enumerate(summaries):
        if summary.all.error.value > 0:
            axes.plot(summary.all.layers, label=summary.name, **_line(summary, i))
    axes.set(xlabel="layer", ylabel="error of the attention outputs, all streams", yscale="log")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def _line(summary: MethodSummary, index: int) -> dict[str, Any]:
    if summary.name == OURS:
        return {"linewidth": 2.5, "color": "black"}
    return {"linewidth": 1, "color": f"C{index % 10}", "linestyle": ("-", "--", ":")[index // 10 % 3]}


def _point(axes: Any, summary: MethodSummary, bits: float, mean: Mean) -> None:
    marker = {"marker": "*", "markersize": 14} if summary.name == OURS else {"marker": "o"}
    half = 0 if math.isnan(mean.half) else mean.half
    axes.errorbar([bits], [mean.value], [min(half, mean.value * 0.99)], elinewidth=0.5, linestyle="none", **marker)
    axes.annotate(summary.name, (bits, mean.value), textcoords="offset points", xytext=(4, 3), fontsize=7)
