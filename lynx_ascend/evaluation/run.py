"""`lynx-ascend eval fidelity`: every method on every case, with what is on disk reused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lynx_ascend.codec.baselines.method import Method
from lynx_ascend.evaluation import texts
from lynx_ascend.evaluation.cases import QUERIES, TEXT, Case, prompt_case, text_case
from lynx_ascend.evaluation.measure import VERSION, Row, Yardstick, measure
from lynx_ascend.evaluation.methods import fingerprint
from lynx_ascend.evaluation.model import MODEL_NAME
from lynx_ascend.evaluation.session import model_directory, progress_bar, runtime, weights_digest
from lynx_ascend.evaluation.store import CaseResults


@dataclass(frozen=True)
class FidelityOptions:
    """What is run.

    Attributes:
        methods: by name. text, qmsum, mmlu_pro: where prompts come from, in equal parts; none: made-up documents.
        prompts: how many in all. tokens: of a prompt from a text or a made-up document.
        longest: with it, prompts about meetings have exactly `tokens` tokens, and begin where meetings have `longest`.
        long, long_tokens: how many texts of that many tokens have their attention error taken besides.
        model: a Transformers directory; None: the package's. report: where cases and results are kept.
    """

    methods: Mapping[str, Method]
    report: Path
    text: Path | None = None
    qmsum: Path | None = None
    mmlu_pro: Path | None = None
    prompts: int = 20
    tokens: int = 1500
    long: int = 3
    long_tokens: int = 4096
    model: Path | None = None
    longest: int | None = None


@dataclass(frozen=True)
class CaseRows:
    """A measured case: tokens of its cache, and the rows by method. `long`: its text was given. digest: the name of its
    files, of all that its rows count for but the methods."""

    name: str
    tokens: int
    long: bool
    rows: Mapping[str, Row]
    digest: str


@dataclass(frozen=True)
class FidelityResult:
    """All cases, and what was used to measure them."""

    cases: list[CaseRows]
    methods: Mapping[str, Method]
    fingerprints: Mapping[str, str]
    setting: Mapping[str, Any]


def run_fidelity(options: FidelityOptions, console: Console) -> FidelityResult:
    """Measures what is missing.

    Raises:
        ValueError, OSError: a file that cannot be read or is not in its format, a text that is too short, a model that
            cannot be loaded, or no prompts at all.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = model_directory(options.model)
    weights, around = weights_digest(path), runtime()
    tokenizer = AutoTokenizer.from_pretrained(path)
    wanted = [*((name, ids, False) for name, ids in _prompts(options, tokenizer)), *_long(options, tokenizer)]
    if not wanted:
        raise ValueError("prompts: none")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    positions: int = model.config.max_position_embeddings
    for name, ids, long in wanted:
        if (needed := len(ids) + (0 if long else TEXT)) > positions:
            raise ValueError(f"{name}: {needed} tokens with the text, the model has {positions} positions")
    prints = {name: fingerprint(method) for name, method in options.methods.items()}
    done = []
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(wanted) * len(options.methods))
        for name, ids, long in wanted:
            results = CaseResults(options.report / "cases", ids, weights, around, long=long)
            rows = {}
            for method, row in _rows(options, model, results, ids, long, prints):
                progress.update(task, advance=1, description=f"{name}, {method}")
                rows[method] = row
            done.append(CaseRows(name, len(ids) - (QUERIES if long else 1), long, rows, results.key))
    setting = {
        "model": {"name": MODEL_NAME if options.model is None else path.name, "weights": weights},
        "prompts": _wanted(options),
        "measurement": VERSION,
        "compute": "fp32 on a bf16 cache",
        "seeds": "texts: 0 and up, one a document; rotations: in the method's parameters; all else has no randomness",
        **around,
    }
    return FidelityResult(done, options.methods, prints, setting)


def _wanted(options: FidelityOptions) -> dict[str, Any]:
    """Which prompts, for the record: the options by name, files without their folders."""
    files = {name: path.name for name in ("text", "qmsum", "mmlu_pro") if (path := getattr(options, name))}
    numbers = {name: getattr(options, name) for name in ("prompts", "tokens", "longest", "long", "long_tokens")}
    return {**files, **numbers}


def _prompts(options: FidelityOptions, tokenizer: Any) -> Iterator[tuple[str, list[int]]]:
    """From each source in equal parts, the first ones with what does not divide."""
    sources = [source for source in ("text", "qmsum", "mmlu_pro") if getattr(options, source)] or ["own"]
    for i, source in enumerate(sources):
        n = options.prompts // len(sources) + (i < options.prompts % len(sources))
        if source == "text":
            assert options.text
            yield from texts.text_prompts(tokenizer, options.text, n, options.tokens)
        elif source == "qmsum":
            assert options.qmsum
            if options.longest is None:
                yield from texts.meeting_prompts(tokenizer, options.qmsum, n)
            else:
                yield from texts.growing_prompts(tokenizer, options.qmsum, n, options.tokens, options.longest)
        elif source == "mmlu_pro":
            assert options.mmlu_pro
            yield from texts.question_prompts(tokenizer, options.mmlu_pro, n)
        else:
            yield from texts.own_prompts(tokenizer, n, options.tokens)


def _long(options: FidelityOptions, tokenizer: Any) -> Iterator[tuple[str, list[int], bool]]:
    for name, ids in texts.long_texts(tokenizer, options.qmsum, options.long, options.long_tokens + QUERIES):
        yield name, ids, True


def _rows(
    options: FidelityOptions, model: Any, results: CaseResults, ids: list[int], long: bool, prints: Mapping[str, str]
) -> Iterator[tuple[str, Row]]:
    case: Case | None = None
    for name, method in options.methods.items():
        row = results.get(name, prints[name])
        if row is None:
            if case is None:
                case = (text_case if long else prompt_case)(model, ids, results.kv)
                yardstick = Yardstick(model, case)
            row = measure(yardstick, case, method)
            results.put(name, prints[name], row)
        yield name, row
