"""Tables and figure of docs/ablation.md, from the measured rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from formats import Variant

from lynx_ascend.evaluation.intervals import Mean

ENGINE_VARIANTS = ("default", "chunk 16", "alg1")

Lines = Mapping[str, Mapping[str, Any]]


class Summary(NamedTuple):
    """One variant over all prompts; the `less` ones are paired differences to the default. errors: anchor, both."""

    variant: Variant
    bits: tuple[float, float]
    accepted: Mean
    accepted_less: Mean
    run: Mean
    run_less: Mean
    per_bit_less: Mean
    kl: float
    errors: tuple[float, float]


def write_report(variants: Sequence[Variant], lines: Lines, docs: Path, *, whole: bool) -> None:
    """Rewrites the tables of docs/ablation.md that these variants are in; if they are the whole, also those over
    several families, and the figure."""
    summaries = _summarise(variants, lines)
    page = docs / "ablation.md"
    text = page.read_text(encoding="utf-8")
    for family in dict.fromkeys(variant.family for variant in variants[1:]):
        text = _replace(text, family, _table([s for s in summaries if s.variant.family in ("default", family)]))
    if not whole:
        page.write_text(text, encoding="utf-8")
        return
    front = [s for s in sorted(summaries, key=lambda s: s.bits[0]) if _on_front(s, summaries)]
    text = _replace(text, "front", _table(front))
    text = _replace(text, "engine", _engine_table(lines))
    text = _replace(text, "meetings", _meetings_table(lines))
    page.write_text(text, encoding="utf-8")
    _figure(summaries, front, docs / "ablation.png")


def _summarise(variants: Sequence[Variant], lines: Lines) -> list[Summary]:
    measured = [line for line in lines.values() if line.get("rows")]
    prompts = [line["rows"] for line in measured]
    meetings = [line for line in lines.values() if "errors" in line]
    default = variants[0].name

    def bits(variant: Variant) -> tuple[list[float], list[float]]:
        anchor, full = zip(*(variant.bits(line["tokens"], line["channels"]) for line in measured), strict=True)
        return list(anchor), list(full)

    base, _ = bits(variants[0])

    def summary(variant: Variant) -> Summary:
        pairs = [(rows[variant.name], rows[default]) for rows in prompts]
        anchor, full = bits(variant)
        errors = [meeting["errors"][variant.name] for meeting in meetings]
        return Summary(
            variant,
            (statistics.mean(anchor), statistics.mean(full)),
            Mean.of(r["accepted"] for r, _ in pairs),
            Mean.of(r["accepted"] - d["accepted"] for r, d in pairs),
            Mean.of(r["run"] for r, _ in pairs),
            Mean.of(r["run"] - d["run"] for r, d in pairs),
            Mean.of(r["run"] / b - d["run"] / c for (r, d), b, c in zip(pairs, anchor, base, strict=True)),
            statistics.mean(r["kl"] for r, _ in pairs),
            (statistics.mean(e[0] for e in errors), statistics.mean(e[1] for e in errors)),
        )

    return [summary(variant) for variant in variants]


def _on_front(one: Summary, every: Sequence[Summary]) -> bool:
    return not any(o.bits[0] <= one.bits[0] and o.run.value > one.run.value for o in every)


def _table(summaries: Sequence[Summary]) -> str:
    rows = []
    for s in summaries:
        first = s.variant.family == "default"
        rows.append(
            [
                f"**{s.variant.name}**" if first else s.variant.name,
                f"{s.bits[0]:.2f}",
                f"{s.bits[1]:.2f}",
                s.accepted.text(),
                "" if first else s.accepted_less.text("+"),
                s.run.text(),
                "" if first else s.run_less.text("+"),
                f"{s.run.value / s.bits[0]:.2f}",
                "" if first else f"{s.per_bit_less.value:+.2f} ± {s.per_bit_less.half:.2f}",
                f"{1000 * s.kl:.1f}",
                f"{s.errors[0]:.2g}",
                f"{s.errors[1]:.2g}",
            ]
        )
    heads = ["format", "anchor bits", "both", "accepted", "less default", "from any start", "less default"]
    return _markdown([*heads, "of it a bit", "less default", "KL / 10^-3", "error, anchor", "error, both"], rows)


def _engine_table(lines: Lines) -> str:
    rows = []
    for name in ENGINE_VARIANTS:
        runs = [line["engine"][name] for line in lines.values() if name in line.get("engine", {})]
        rows.append(
            [
                name,
                f"{sum(r['accepted'] == r['forced'] for r in runs)} of {len(runs)}",
                f"{statistics.mean(r['accepted'] for r in runs):.1f}",
                f"{statistics.mean(r['forced'] for r in runs):.1f}",
                f"{sum(r['equal'] for r in runs)} of {len(runs)}",
            ]
        )
    return _markdown(["format", "same count", "engine", "in one pass", "text equal to the exact cache's"], rows)


def _meetings_table(lines: Lines) -> str:
    names = ("default", "chunk 16", "alg1", "INT4 | INT8, tensor")
    meetings = [(name, line["errors"]) for name, line in lines.items() if "errors" in line]
    rows = [[name, *(f"{errors[n][0]:.4f}, {errors[n][1]:.1e}" for n in names)] for name, errors in meetings]
    mean = (tuple(statistics.mean(errors[n][i] for _, errors in meetings) for i in (0, 1)) for n in names)
    rows.append(["mean", *(f"{anchor:.4f}, {full:.1e}" for anchor, full in mean)])
    return _markdown(["meeting", *names], rows)


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def _replace(text: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end {name} -->"
    if begin not in text or end not in text:
        raise ValueError(f"the page has no place for the table {name!r}")
    return text[: text.index(begin) + len(begin)] + table + text[text.index(end) :]


def _figure(summaries: Sequence[Summary], front: Sequence[Summary], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5))
    for family in dict.fromkeys(s.variant.family for s in summaries):
        chosen = [s for s in summaries if s.variant.family == family]
        bits, runs = [s.bits[0] for s in chosen], [s.run.value for s in chosen]
        marker, size = ("*", 14) if family == "default" else ("o", 6)
        left.errorbar(bits, runs, [s.run.half for s in chosen], fmt="none", alpha=0.25, color="grey")
        left.plot(bits, runs, linestyle="none", label=family, marker=marker, markersize=size, zorder=3)
        errors = [s.errors[0] for s in chosen]
        right.plot(bits, errors, linestyle="none", marker=marker, markersize=size, zorder=3)
    left.step([s.bits[0] for s in front], [s.run.value for s in front], where="post", color="black", linewidth=0.8)
    left.set(xlabel="anchor bits an element", ylabel="accepted drafts, from any start", xlim=(2.4, 6.8))
    right.set(xlabel="anchor bits an element", ylabel="attention error of the anchor", yscale="log", xlim=(2.4, 6.8))
    left.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
