"""The figure of accepted drafts by context: curves, whole drafts, and a map of proposed against accepted ones."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lynx_ascend.evaluation.cases import CAP
from lynx_ascend.evaluation.methods import OURS

if TYPE_CHECKING:
    from lynx_ascend.evaluation.contexts import Context

_WHOLE = 16  # drafts of the panel of whole drafts


def draw(contexts: Sequence[Context]) -> bytes:
    """A PNG: above, P(accepted >= k) by length, of Lynx's Anchor if it was measured, otherwise of the first method, and
    whole drafts of all; below, a row of maps a method, one for each length."""
    from matplotlib.figure import Figure

    names = [summary.name for summary in contexts[0].methods]
    ours = OURS if OURS in names else names[0]
    figure = Figure(figsize=(13, 3.5 + 3.2 * len(names)), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.5, 3.2 * len(names)))[:, 0]
    curves, whole = above.subplots(1, 2)
    _curves(curves, contexts, ours)
    _whole(whole, contexts, names)
    maps = below.subplots(len(names), len(contexts), squeeze=False)
    for row, name in zip(maps, names, strict=True):
        shown = [_map(axes, context, name) for axes, context in zip(row, contexts, strict=True)]
        below.colorbar(shown[0], ax=list(row), label="share of proposals", extend="max")
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=90)
    return data.getvalue()


def _curves(axes: Any, contexts: Sequence[Context], name: str) -> None:
    for context in contexts:
        [summary] = [summary for summary in context.methods if summary.name == name]
        values = [math.nan if mean is None else mean.value for mean in summary.first.curve]
        axes.plot(range(1, CAP + 1), values, label=f"{context.tokens:,} tokens")
    axes.set(title=f"{name}, first stream", xlabel="k", ylabel="P(accepted >= k)", ylim=(0, 1.02))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _whole(axes: Any, contexts: Sequence[Context], names: Sequence[str]) -> None:
    lengths = [context.tokens for context in contexts]
    for index, name in enumerate(names):
        means = [c.methods[index].first.curve[_WHOLE - 1] for c in contexts]
        values = [math.nan if mean is None else mean.value for mean in means]
        halves = [0.0 if mean is None or math.isnan(mean.half) else mean.half for mean in means]
        axes.errorbar(lengths, values, halves, marker="o", capsize=2, linewidth=1, label=name)
    axes.set(xscale="log", xlabel="prompt tokens", ylabel=f"all of {_WHOLE} drafts accepted", ylim=(0, 1.02))
    axes.set_xticks(lengths, [f"{tokens:,}" for tokens in lengths])
    axes.minorticks_off()
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.grid(alpha=0.3)


def _shares(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """By accepted and proposed drafts; NaN, which is left white, where more than proposed or no text is long enough."""
    return [
        [row[accepted] if row and accepted <= proposed else math.nan for proposed, row in enumerate(rows, 1)]
        for accepted in range(CAP + 1)
    ]


def _map(axes: Any, context: Context, name: str) -> Any:
    shares, extent = _shares(context.heat[name]), (0.5, CAP + 0.5, -0.5, CAP + 0.5)
    image = axes.imshow(shares, origin="lower", extent=extent, cmap="viridis", vmin=0, vmax=0.5)
    axes.set(title=f"{name}, {context.tokens:,} tokens", xlabel="proposed", ylabel="accepted")
    return image
