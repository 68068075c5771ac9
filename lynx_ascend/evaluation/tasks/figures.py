"""A task's figure: what was found by row and column of its grid, or each method's agreement with its interval."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lynx_ascend.evaluation.tasks.task import Grid

if TYPE_CHECKING:
    from lynx_ascend.evaluation.intervals import Interval

_ACROSS = 4  # grids beside one another


def draw_grids(grid: Grid, name: str, scored: Sequence[tuple[str, dict[str, Interval]]]) -> bytes:
    """A PNG: a small map a method. scored: its label and its scores, in words `name`, by group."""
    from matplotlib.figure import Figure

    down = -(-len(scored) // _ACROSS)
    figure = Figure(figsize=(13, 0.8 + down * (1.2 + 0.35 * len(grid.rows))), layout="constrained")
    axes = list(figure.subplots(down, _ACROSS, squeeze=False).flat)
    shown: Any = None
    for (label, groups), place in zip(scored, axes, strict=False):
        shares = [[100 * groups[group].value for group in row] for row in grid.cells]
        shown = place.imshow(shares, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        place.set_title(label, fontsize=9)
        place.set_xticks(range(len(grid.columns)), grid.columns, fontsize=7)
        place.set_yticks(range(len(grid.rows)), grid.rows, fontsize=7)
    for place in axes[len(scored) :]:
        place.set_axis_off()
    figure.supxlabel(grid.across, fontsize=9)
    figure.supylabel(grid.down, fontsize=9)
    figure.colorbar(shown, ax=axes, label=f"{name} / %", shrink=0.8)
    return _png(figure)


def draw_agreement(agreed: Sequence[tuple[str, Interval]]) -> bytes:
    """A PNG: a bar for each label, with its interval, which is not drawn if it is NaN."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 0.25 * len(agreed)), layout="constrained")
    axes = figure.subplots()
    for place, (_, share) in enumerate(agreed):
        axes.barh(place, 100 * share.value, color="C0")
        axes.plot([100 * share.low, 100 * share.high], [place, place], color="black", marker="|", linewidth=1)
    axes.set_yticks(range(len(agreed)), [label for label, _ in agreed])
    axes.invert_yaxis()
    axes.set(xlabel="agreement with BF16 / %", xlim=(0, 100))
    return _png(figure)


def _png(figure: Any) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=90)
    return data.getvalue()
