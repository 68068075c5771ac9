"""Draws what happened to one request, second by second, with another method beside it on the same axis of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lynx_ascend.demo.client import Completion
from lynx_ascend.demo.measured import Run
from lynx_ascend.demo.trace import Span

# Okabe and Ito's palette: told apart with any kind of colour vision, and in grey by lightness.
_PREFILL, _ENCODE, _ANCHOR, _RESIDUAL = "#BBBBBB", "#666666", "#0072B2", "#56B4E9"
_DRAFT, _VERIFY, _TOKENS = "#E69F00", "#D55E00", "#009E73"
MARKS = (2, 32, 64)  # the tokens whose times are told: all of them verified


@dataclass(frozen=True)
class Row:
    """One line of the figure: bars, ticks and a note after them. Times in seconds from sending the request.

    faint: before this moment a bar is drawn faint.
    """

    label: str
    colour: str
    bars: tuple[Span, ...] = ()
    ticks: tuple[float, ...] = ()
    note: str = ""
    faint: float = 0.0


def rows_of(run: Run) -> list[Row]:
    """What there is to draw of one request, from top to bottom; rows that a method does not have are left out."""
    trace, sent_at = run.trace, run.completion.sent_at
    split = "residual" in trace.streams

    def spans(*found: Span | None) -> tuple[Span, ...]:
        return tuple(Span(s.start - sent_at, s.end - sent_at) for s in found if s is not None)

    rows = []
    if trace.prefilled_at is not None:
        span = Span(sent_at, trace.prefilled_at)
        rows.append(Row("prefill server: last block", _PREFILL, spans(span), note="the rest was cached"))
    rows.append(Row("prefill server: encode", _ENCODE, spans(*trace.encoded), note=f"{len(trace.encoded)} pages"))
    for name, colour in (("anchor", _ANCHOR), ("residual", _RESIDUAL)):
        if stream := trace.streams.get(name):
            label = f"link: {name} stream" if split else f"link: {trace.method} stream"
            bars, note = spans(stream.received), f"{stream.nbytes / 1e6:.1f} MB"
            # The residual has only what the anchor leaves until that is through: crumbs, while a page is encoded.
            faint = trace.streams["anchor"].received.end - sent_at if name == "residual" else 0.0
            rows.append(Row(label, colour, bars, note=note, faint=faint))
    if trace.drafts:
        ticks = tuple(at - sent_at for at in trace.drafts)
        rows.append(Row("decode server: drafts", _DRAFT, ticks=ticks, note=f"{len(ticks)} drafted, not shown"))
    if trace.verify is not None:
        note = f"one pass, {trace.accepted} of {trace.drafted} accepted"
        rows.append(Row("decode server: verify", _VERIFY, spans(trace.verify), note=note))
    ticks = tuple(at - sent_at for at in run.completion.arrivals)
    rows.append(Row("client: tokens", _TOKENS, ticks=ticks, note=f"{len(ticks)} tokens"))
    return rows


def milestones(completion: Completion) -> str:
    """In words: how many tokens came at once, at most, and when which one came."""
    at_once = max(Counter(completion.arrivals).values(), default=0)
    first = [f"{at_once} at once"] if at_once > 1 else []
    return ", ".join([*first, *(f"{n}: {at:.2f} s" for n in MARKS if (at := completion.time_to(n)) is not None)])


def draw(runs: Sequence[Run], path: Path, title: str) -> None:
    """Writes a PNG with one group of rows per run, all on one axis of time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = [(run, rows_of(run)) for run in runs]
    count = sum(len(rows) + 1 for _, rows in groups)
    figure, axes = pyplot.subplots(figsize=(12, 1.1 + 0.42 * count), layout="constrained")
    labels: list[tuple[float, str]] = []
    y = 0.0
    for run, rows in groups:
        y -= 0.3
        axes.text(0.0, y, run.trace.method, transform=axes.get_yaxis_transform(), weight="bold", va="center", size=11)
        for row in rows:
            y -= 1.0
            _draw_row(axes, row, y)
            labels.append((y, row.label))
        if run.completion.arrivals:
            start = run.completion.arrivals[0] - run.completion.sent_at
            axes.text(start, y - 0.62, milestones(run.completion), va="center", size=8.5)
        y -= 1.1
    axes.set_yticks([at for at, _ in labels], [label for _, label in labels])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y + 0.2, 0.2)
    end = max(run.completion.arrivals[-1] - run.completion.sent_at for run in runs)
    axes.set_xlim(0, end * 1.17)  # room for the notes
    axes.set_xlabel("seconds since the client sent the request")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, loc="left", size=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_row(axes: Any, row: Row, y: float) -> None:
    for bar in row.bars:
        middle = min(max(row.faint, bar.start), bar.end)
        axes.barh(y, middle - bar.start, left=bar.start, height=0.3, color=row.colour, alpha=0.4)
        axes.barh(y, bar.end - middle, left=middle, height=0.6, color=row.colour)
    axes.vlines(row.ticks, y - 0.3, y + 0.3, color=row.colour, linewidth=1.6)
    ends = [bar.end for bar in row.bars] + list(row.ticks)
    if ends:
        axes.annotate(row.note, (max(ends), y), (6, 0), textcoords="offset points", va="center", size=8.5)
