"""Accepted drafts per codec: greedy drafts on the anchor, verified on anchor + residual, on many prompts.

    python benchmarks/acceptance.py --prompts 8 --json
    python benchmarks/acceptance.py --qmsum MEETINGS.jsonl --lengths 1540

A draft has at most 64 tokens. `equal` counts the prompts whose 8-bit text is that of the uncompressed cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import page_layout
from lynx_ascend.evaluation.kv import prefill
from lynx_ascend.evaluation.local_engine import LocalEngine, greedy_text
from lynx_ascend.evaluation.model import ensure_model
from lynx_ascend.evaluation.prompts import chat_prompt, prompts

CONFIGS = {
    "alg1, a=100": CodecConfig("alg1", sink_tokens=0),
    "alg1, a=100, raw sink": CodecConfig("alg1"),
    "grid, a=0": CodecConfig(sink_tokens=0),
    "grid, a=0, raw sink (default)": CodecConfig(),
    "grid, a=1, raw sink": CodecConfig(alpha=1.0),
    "grid, a=0, raw sink, chunk 16": CodecConfig(chunk=16),
}


def main() -> None:
    arguments = _arguments()
    path = ensure_model()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    cases = list(_cases(tokenizer, arguments))
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONFIGS}
    for i, ids in enumerate(cases):
        kv = prefill(model, ids)
        exact = greedy_text(model, ids, kv, 65)
        for name, config in CONFIGS.items():
            # 65 tokens: the verify pass adds one to a whole draft of 64.
            generation = LocalEngine(model, config).generate(ids, 65, kv=kv)
            equal = list(generation.tokens) == exact
            runs[name].append({"drafted": generation.drafted, "accepted": generation.accepted, "equal": equal})
        counts = ", ".join(f"{name}: {done[-1]['accepted']}" for name, done in runs.items())
        print(f"prompt {i} ({len(ids)} tokens, text of {len(exact)}): {counts}", file=sys.stderr, flush=True)
    lengths = [len(ids) for ids in cases]
    channels = kv.keys[0].shape[1] * kv.keys[0].shape[2]
    rows = [
        {"codec": name, "anchor_bits": anchor_bits(CONFIGS[name], lengths, channels), **_summary(done)}
        for name, done in runs.items()
    ]
    if arguments.json:
        print(json.dumps({"lengths": lengths, "rows": rows}))
    else:
        _print_table(rows)


def anchor_bits(config: CodecConfig, lengths: Sequence[int], channels: int) -> float:
    """Bits per element of the anchor payloads over all prompts, for bf16 KV of one layer; without frame headers."""
    nbytes = sum(
        page_layout(config, torch.bfloat16, min(config.page, length - start), channels, start).anchor_bytes
        for length in lengths
        for start in range(0, length, config.page)
    )
    return 8 * nbytes / (sum(lengths) * channels)


def _summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    accepted = [run["accepted"] for run in done]
    return {
        "drafted": statistics.mean(run["drafted"] for run in done),
        "accepted": statistics.mean(accepted),
        "standard_error": statistics.stdev(accepted) / len(accepted) ** 0.5 if len(accepted) > 1 else None,
        "median": statistics.median(accepted),
        "equal": sum(run["equal"] for run in done),
        "prompts": len(done),
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    print("| codec | anchor bits | drafted | accepted, mean +- standard error | median | text equal |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        error = "" if row["standard_error"] is None else f" +- {row['standard_error']:.1f}"
        accepted, equal = f"{row['accepted']:.1f}{error}", f"{row['equal']} of {row['prompts']}"
        cells = [row["codec"], f"{row['anchor_bits']:.2f}", f"{row['drafted']:.1f}", accepted, row["median"], equal]
        print("| " + " | ".join(map(str, cells)) + " |")


def _cases(tokenizer: Any, arguments: argparse.Namespace) -> Iterator[list[int]]:
    count, lengths = arguments.prompts, arguments.lengths
    if lengths:
        lengths = [lengths[i % len(lengths)] for i in range(count)]
    if arguments.qmsum is None:
        yield from prompts(tokenizer, count, lengths)
        return
    meetings = arguments.qmsum.read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(meetings[:count]):
        meeting = json.loads(line)
        turns = (f"{turn['speaker']}: {turn['content']}\n" for turn in meeting["meeting_transcripts"])
        query = (meeting["general_query_list"] or meeting["specific_query_list"])[0]["query"]
        yield chat_prompt(tokenizer, turns, f"Question: {query}", lengths[i] if lengths else 1540)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8, help="how many (8)")
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens of the prompts, in turn (300 to 4,000 evenly)")
    parser.add_argument(
        "--qmsum", type=Path, help="a QMSum jsonl: real meetings instead of made documents (1,540 tokens)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser.parse_args()


if __name__ == "__main__":
    main()
