"""The codec's ablation: accepted drafts, attention error and bytes of many formats, on real texts.

    python benchmarks/ablation --qmsum MEETINGS.jsonl --mmlu-pro QUESTIONS.jsonl

Writes rows.jsonl (one line a prompt) and the KV to --output, then the tables and the figure of docs/ablation.md
to --docs. That page says what is measured. A run that was stopped goes on; remove --output after a change of a codec.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import xxhash
from formats import Variant, variants
from measure import attention_errors, measure, run_engine
from report import ENGINE_VARIANTS, write_report
from transformers import AutoModelForCausalLM, AutoTokenizer

from lynx_ascend.evaluation.cases import QUERIES, prompt_case, text_case
from lynx_ascend.evaluation.measure import Yardstick
from lynx_ascend.evaluation.model import ensure_model
from lynx_ascend.evaluation.texts import long_texts, meeting_prompts, question_prompts

LONG = 4096  # tokens of KV whose attention error is taken
MEETINGS = 10  # of QMSum, at most
ENGINE_PROMPTS = 20  # how many are also answered by the in-process engine


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    path = ensure_model()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    every, results = variants(), _Results(arguments.output / "rows.jsonl")
    families = {"default", *(arguments.families or (variant.family for variant in every))}
    if unknown := families - {variant.family for variant in every}:
        sys.exit(f"--families: {unknown.pop()!r} is none of {', '.join(dict.fromkeys(v.family for v in every))}")
    wanted = [variant for variant in every if variant.family in families]
    each = arguments.prompts // 2
    sources = (meeting_prompts(tokenizer, arguments.qmsum, each), question_prompts(tokenizer, arguments.mmlu_pro, each))
    for i, (name, ids) in enumerate(prompt for pair in zip(*sources, strict=True) for prompt in pair):
        started = time.monotonic()
        line = results.of(name, ids)
        line |= {"tokens": len(ids) - 1, "channels": model.config.num_key_value_heads * model.config.head_dim}
        with_engine = ENGINE_VARIANTS if i < ENGINE_PROMPTS and not arguments.families else ()
        if _measure(model, ids, wanted, with_engine, line, arguments.output / "kv" / f"{line['prompt']}.pt"):
            results.save()
            print(f"{name}: {len(ids)} tokens, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    for name, ids in long_texts(tokenizer, arguments.qmsum, MEETINGS, LONG + QUERIES):
        line = results.of(name, ids)
        errors = line.setdefault("errors", {})
        if missing := [variant for variant in wanted if variant.name not in errors]:
            case = text_case(model, ids, arguments.output / "kv" / f"{line['prompt']}.pt")
            yardstick = Yardstick(model, case)
            errors |= {variant.name: attention_errors(yardstick, case, variant) for variant in missing}
            results.save()
            print(f"attention error, {name}", file=sys.stderr, flush=True)
    write_report(wanted, results.lines, arguments.docs, whole=not arguments.families)


def _measure(
    model: Any, ids: list[int], wanted: list[Variant], engine: tuple[str, ...], line: dict[str, Any], kv: Path
) -> bool:
    """Adds what is missing to a prompt's line; False if nothing was."""
    rows, runs = line.setdefault("rows", {}), line.setdefault("engine", {})
    missing = [variant for variant in wanted if variant.name not in rows]
    to_run = [variant for variant in wanted if variant.name in engine and variant.name not in runs]
    if not missing and not to_run:
        return False
    case = prompt_case(model, ids, kv)
    if missing:
        yardstick = Yardstick(model, case)
        rows |= {variant.name: measure(yardstick, case, variant) for variant in missing}
    runs |= {variant.name: run_engine(model, case, variant, rows[variant.name]) for variant in to_run}
    return True


class _Results:
    """A JSON object a line: {"name": ..., "prompt": hash of the ids, "rows": {variant: Row}, ...}."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self.lines: dict[str, dict[str, Any]] = {line.pop("name"): line for line in map(json.loads, text.splitlines())}

    def of(self, name: str, ids: list[int]) -> dict[str, Any]:
        """The line of a prompt; a new one if what is there is of another text."""
        prompt = xxhash.xxh3_64_hexdigest(json.dumps(ids).encode())
        if self.lines.get(name, {}).get("prompt") != prompt:
            self.lines[name] = {"prompt": prompt}
        return self.lines[name]

    def save(self) -> None:
        text = "".join(json.dumps({"name": name, **line}) + "\n" for name, line in self.lines.items())
        part = self._path.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.rename(self._path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qmsum", type=Path, required=True, help="QMSum meetings, jsonl in the published format")
    parser.add_argument("--mmlu-pro", type=Path, required=True, help="MMLU-Pro questions, jsonl")
    parser.add_argument("--prompts", type=int, default=60, help="how many, half from either (60)")
    parser.add_argument("--families", nargs="+", help="which tables, by the names in the page's marks (all)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("out/ablation"))
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where ablation.md is and ablation.png goes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
