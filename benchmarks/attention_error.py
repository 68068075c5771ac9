"""Attention error per codec: how far the attention outputs move when a prompt's KV is replaced by its reconstruction.

    python benchmarks/attention_error.py --tokens 2048 --json
    python benchmarks/attention_error.py --qmsum MEETINGS.jsonl --tokens 4096

||o - o_ref||^2 / ||o_ref||^2 over all layers and heads; o are the outputs of the 64 queries that follow the prompt,
over the prompt's keys and values. The KV is coded in bfloat16, the model runs in fp32.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from acceptance import CONFIGS
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lynx_ascend.evaluation.documents import meeting
from lynx_ascend.evaluation.kv import PromptKV, prefill, reconstruct
from lynx_ascend.evaluation.model import ensure_model

_QUERIES = 64


def capture(model: Any, ids: Sequence[int]) -> tuple[PromptKV, list[Tensor]]:
    """The bfloat16 KV of all but the last 64 tokens, and those tokens' queries, [heads, 64, head_dim] a layer."""
    queries: list[Tensor] = []
    attention = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def keep(module: Any, query: Tensor, *arguments: Any, **options: Any) -> Any:
        queries.append(query[0, :, -_QUERIES:].clone())
        return attention(module, query, *arguments, **options)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = keep
    try:
        kv = prefill(model, ids)
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attention
    keys, values = (tuple(x[:-_QUERIES].to(torch.bfloat16) for x in parts) for parts in (kv.keys, kv.values))
    return PromptKV(keys, values), queries


def outputs(queries: list[Tensor], kv: PromptKV) -> Tensor:
    """Attention outputs, fp32 [layers, heads, 64, head_dim]."""
    out = []
    for q, key, value in zip(queries, kv.keys, kv.values, strict=True):
        k, v = (x.float().transpose(0, 1).repeat_interleave(q.shape[0] // x.shape[1], 0) for x in (key, value))
        out.append(torch.softmax(q @ k.transpose(1, 2) / q.shape[2] ** 0.5, -1) @ v)
    return torch.stack(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048, help="of the prompt (2,048)")
    parser.add_argument("--qmsum", type=Path, help="a QMSum jsonl: its first meeting instead of a made one")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    path = ensure_model()
    tokenizer = AutoTokenizer.from_pretrained(path)
    wanted = arguments.tokens + _QUERIES
    if arguments.qmsum is None:
        pieces = meeting(random.Random(0))
        text = "".join(next(pieces) for _ in range(wanted // 8))
    else:
        turns = json.loads(arguments.qmsum.read_text(encoding="utf-8").splitlines()[0])["meeting_transcripts"]
        text = "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in turns)
    ids = tokenizer(text).input_ids[:wanted]
    if len(ids) < wanted:
        parser.error(f"the text has {len(ids)} tokens, {wanted} are wanted")
    kv, queries = capture(AutoModelForCausalLM.from_pretrained(path), ids)
    exact = outputs(queries, kv)
    rows = []
    for name, config in CONFIGS.items():
        anchor, full = ((outputs(queries, part) - exact).square().sum() for part in reconstruct(kv, config))
        norm = exact.square().sum()
        rows.append({"codec": name, "anchor": (anchor / norm).item(), "full": (full / norm).item()})
    if arguments.json:
        print(json.dumps({"tokens": arguments.tokens, "rows": rows}))
    else:
        print("| codec | anchor | full |\n|---|---|---|")
        for row in rows:
            print(f"| {row['codec']} | {row['anchor']:.2g} | {row['full']:.2g} |")


if __name__ == "__main__":
    main()
