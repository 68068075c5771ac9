"""`lynx-ascend eval contexts`: how far drafts hold as a prompt grows, about the same meetings and queries."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lynx_ascend.evaluation.cases import CAP
from lynx_ascend.evaluation.contexts_figures import draw
from lynx_ascend.evaluation.page import Table, html_image, html_json, html_table, markdown, page, plain
from lynx_ascend.evaluation.report import write_report
from lynx_ascend.evaluation.run import FidelityOptions, FidelityResult, run_fidelity
from lynx_ascend.evaluation.summary import MethodSummary, summarise

STEPS = (1, 2, 4, 8, 16, 32, 64)
PROPOSED = (8, 16, 21, 32, 64)  # 21: what the Lynx paper's requests drafted on average


@dataclass(frozen=True)
class Context:
    """The methods at one length. heat: by method, how often a of t proposed drafts were accepted, [CAP][CAP + 1] shares
    over the t - 1 and a; a row that no text is long enough for is empty. setting: the run's, with fingerprints."""

    tokens: int
    methods: list[MethodSummary]
    heat: dict[str, list[list[float]]]
    setting: Mapping[str, Any]


def run_contexts(options: FidelityOptions, lengths: Sequence[int], console: Console) -> list[Context]:
    """A fidelity run a length, shortest first, each with its report in a folder of its name: what `lynx-ascend simulate
    --acceptance` reads.

    Raises:
        ValueError, OSError: as run_fidelity; no meetings; a length that leaves its query no room.
    """
    if options.qmsum is None:
        raise ValueError("qmsum: none")
    found = []
    for tokens in sorted(set(lengths)):
        console.print(f"{tokens} tokens", highlight=False)
        at = replace(options, report=options.report / str(tokens), tokens=tokens, longest=max(lengths), long=0)
        result = run_fidelity(at, console)
        write_report(result, at.report)
        heat = {name: _heat(result, name) for name in result.methods}
        setting = {**result.setting, "fingerprints": dict(result.fingerprints)}
        found.append(Context(tokens, summarise(result), heat, setting))
    return found


def write_contexts(contexts: Sequence[Context], folder: Path) -> dict[str, Any]:
    """Writes contexts.html, .json, .md and .png into `folder`; returns the JSON object."""
    setting = dict(contexts[0].setting)  # that of all but for the tokens
    setting["prompts"] = {**setting["prompts"], "tokens": [context.tokens for context in contexts]}
    value: dict[str, Any] = plain({"setting": setting, "contexts": [_json(context) for context in contexts]})
    made, picture = tables(contexts), draw(contexts)
    (folder / "contexts.json").write_text(json.dumps(value, indent=1), encoding="utf-8")
    (folder / "contexts.md").write_text(markdown(made), encoding="utf-8")
    (folder / "contexts.png").write_bytes(picture)
    parts = [html_image(picture), *(html_table(*table) for table in made), html_json("Setting", value["setting"])]
    (folder / "contexts.html").write_text(page("Accepted drafts by context", parts), encoding="utf-8")
    return value


def tables(contexts: Sequence[Context]) -> list[Table]:
    """Accepted drafts by method and length; for each method how far drafts hold, and how much of a proposal."""
    names = [summary.name for summary in contexts[0].methods]
    lengths = [f"{context.tokens:,}" for context in contexts]
    by_name = {name: [(c, s) for c in contexts for s in c.methods if s.name == name] for name in names}
    rows = [
        [name, f"{by_name[name][0][1].first.bits:.2f}", *(summary.first.run.text() for _, summary in by_name[name])]
        for name in names
    ]
    found: list[Table] = [
        (
            f"Accepted of {CAP} drafts on the first stream, from any start, by prompt tokens",
            ["method", "bits", *lengths],
            rows,
        )
    ]
    curves, whole = [], []
    for name in names:
        for context, summary in by_name[name]:
            label = [name, f"{context.tokens:,}"]
            curve = [summary.first.curve[k - 1] for k in STEPS]
            curves.append([*label, *(f"{mean.value:.2f} ± {mean.half:.2f}" if mean else "" for mean in curve)])
            whole.append([*label, *(_proposal(context.heat[name][t - 1], t) for t in PROPOSED)])
    found.append(("P(accepted >= k)", ["method", "prompt tokens", *(f"k = {k}" for k in STEPS)], curves))
    heads = ["method", "prompt tokens", *(f"{t} proposed" for t in PROPOSED)]
    found.append(("Drafts accepted / all of them accepted, % of proposals", heads, whole))
    return found


def _proposal(shares: Sequence[float], proposed: int) -> str:
    if not shares:
        return ""
    mean = sum(accepted * share for accepted, share in enumerate(shares))
    return f"{100 * mean / proposed:.1f} / {100 * shares[proposed]:.1f}"


def _heat(result: FidelityResult, method: str) -> list[list[float]]:
    """Shares by proposed drafts (1 .. CAP) and accepted ones (0 .. CAP), every prompt with the same weight."""
    texts = [case.rows[method]["first"]["text"] for case in result.cases]
    rows: list[list[float]] = []
    for proposed in range(1, CAP + 1):
        shares = []
        for text in texts:
            runs = [run for start, run in enumerate(text["runs"]) if text["tokens"] - start >= proposed]
            if runs:
                held = [min(run, proposed) for run in runs]
                shares.append([held.count(accepted) / len(held) for accepted in range(CAP + 1)])
        rows.append([statistics.mean(share) for share in zip(*shares, strict=True)] if shares else [])
    return rows


def _json(context: Context) -> Mapping[str, Any]:
    methods = [
        {
            "method": summary.name,
            "parameters": summary.parameters,
            "bits": summary.first.bits,
            "accepted": summary.first.accepted,
            "run": summary.first.run,
            "curve": summary.first.curve,
            "heat": context.heat[summary.name],
        }
        for summary in context.methods
    ]
    return {"tokens": context.tokens, "methods": methods}
