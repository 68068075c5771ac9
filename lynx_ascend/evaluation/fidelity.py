"""How far a reconstructed KV cache moves a model: attention outputs, and logits with the text given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lynx_ascend.evaluation.kv import PromptKV, prefill


def prefill_with_queries(model: Any, prompt_ids: Sequence[int], queries: int) -> tuple[PromptKV, list[Tensor]]:
    """The exact KV of all prompt tokens, and the last `queries` tokens' queries, [heads, queries, head_dim] a layer."""
    kept: list[Tensor] = []
    attention = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def keep(module: Any, query: Tensor, *arguments: Any, **options: Any) -> Any:
        kept.append(query[0, :, -queries:].clone())
        return attention(module, query, *arguments, **options)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = keep
    try:
        return prefill(model, prompt_ids), kept
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attention


@torch.inference_mode()
def attention_outputs(queries: Sequence[Tensor], kv: PromptKV) -> Tensor:
    """What the queries read from all of `kv`, without a mask: fp32 [layers, heads, queries, head_dim]."""
    out = []
    for q, key, value in zip(queries, kv.keys, kv.values, strict=True):
        k, v = (x.float().transpose(0, 1).repeat_interleave(q.shape[0] // x.shape[1], 0) for x in (key, value))
        out.append(torch.softmax(q @ k.transpose(1, 2) / q.shape[2] ** 0.5, -1) @ v)
    return torch.stack(out)


def relative_error(outputs: Tensor, exact: Tensor) -> float:
    """||o - o_ref||^2 / ||o_ref||^2 pooled over everything (the paper's vNMSE)."""
    return float((outputs - exact).square().sum() / exact.square().sum())


@torch.inference_mode()
def forced_logits(model: Any, kv: PromptKV, ids: Sequence[int]) -> Tensor:
    """Logits after each of `ids`, [len(ids), vocabulary], computed in one pass on a cache of all of `kv`.

    As long as a greedy draft agrees with the given text, drafting token by token sees the same logits up to rounding.
    """
    cache = kv.cache(kv.keys[0].shape[0], dtype=model.dtype)
    logits: Tensor = model(torch.tensor([list(ids)]), past_key_values=cache, use_cache=True).logits[0]
    return logits
