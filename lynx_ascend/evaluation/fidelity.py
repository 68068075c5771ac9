"""How far a reconstructed KV cache moves a model: attention outputs, and logits with the text given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lynx_ascend.evaluation.kv import PromptKV, prefill

# (layer, query [heads, queries, head_dim], key [heads, tokens, head_dim] of the cache) -> which tokens are attended to,
# bool, broadcastable to [heads, queries, tokens]; None: all.
Visible = Callable[[int, Tensor, Tensor], Tensor | None]


@contextmanager
def captured_queries(count: int, *, first: bool = False) -> Iterator[list[Tensor]]:
    """Inside, the list grows by each layer's last (or first) `count` queries, [heads, queries, head_dim]."""
    kept: list[Tensor] = []

    def keep(attention: Any, module: Any, query: Tensor, *arguments: Any, **options: Any) -> Any:
        kept.append((query[0, :, :count] if first else query[0, :, -count:]).clone())
        return attention(module, query, *arguments, **options)

    with _attention(keep):
        yield kept


def prefill_with_queries(model: Any, prompt_ids: Sequence[int], queries: int) -> tuple[PromptKV, list[Tensor]]:
    """The exact KV of all prompt tokens, and the last `queries` tokens' queries, [heads, queries, head_dim] a layer."""
    with captured_queries(queries) as kept:
        return prefill(model, prompt_ids), kept


def attention_weights(query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
    """The softmax of one layer, fp32 [heads, queries, tokens].

    Args:
        query: [heads, queries, head_dim]. key: [kv_heads, tokens, head_dim], fp32.
        visible: bool, broadcastable to the result; None: all tokens are attended to.
    """
    key = key.repeat_interleave(query.shape[0] // key.shape[0], 0)
    scores = query @ key.transpose(1, 2) / query.shape[2] ** 0.5
    return torch.softmax(scores if visible is None else scores.masked_fill(~visible, -torch.inf), -1)


@torch.inference_mode()
def attention_outputs(queries: Sequence[Tensor], kv: PromptKV, visible: Visible | None = None) -> Tensor:
    """What the queries read from all of `kv`, without a causal mask: fp32 [layers, heads, queries, head_dim]."""
    out = []
    for layer, (q, key, value) in enumerate(zip(queries, kv.keys, kv.values, strict=True)):
        k, v = (x.float().transpose(0, 1) for x in (key, value))
        group = q.shape[0] // k.shape[0]
        mask = None if visible is None else visible(layer, q, k.repeat_interleave(group, 0))
        out.append(attention_weights(q, k, mask) @ v.repeat_interleave(group, 0))
    return torch.stack(out)


def relative_error(outputs: Tensor, exact: Tensor) -> float:
    """||o - o_ref||^2 / ||o_ref||^2 pooled over everything (the paper's vNMSE)."""
    return float((outputs - exact).square().sum() / exact.square().sum())


@torch.inference_mode()
def forced_logits(model: Any, kv: PromptKV, ids: Sequence[int], visible: Visible | None = None) -> Tensor:
    """Logits after each of `ids`, [len(ids), vocabulary], computed in one pass on a cache of all of `kv`.

    As long as a greedy draft agrees with the given text, drafting token by token sees the same logits up to rounding.
    `visible` applies to the cache's tokens; among themselves the ids are causal.
    """
    cache, past = kv.cache(kv.keys[0].shape[0], dtype=model.dtype), kv.keys[0].shape[0]
    with _attention(_masked(visible, past) if visible else _unchanged):
        logits: Tensor = model(torch.tensor([list(ids)]), past_key_values=cache, use_cache=True).logits[0]
    return logits


@torch.inference_mode()
def greedy_ids(
    model: Any, kv: PromptKV, first: int, tokens: int, stops: Set[int], visible: Visible | None = None
) -> list[int]:
    """What the model greedily says after the id `first` on a cache of all of `kv`: at most `tokens` ids, without the
    one of `stops` that ends it. `visible` as for `forced_logits`."""
    cache, past = kv.cache(kv.keys[0].shape[0], dtype=model.dtype), kv.keys[0].shape[0]
    said: list[int] = []
    with _attention(_masked(visible, past) if visible else _unchanged):
        while len(said) < tokens:
            fed = torch.tensor([said[-1:] or [first]])
            token = int(model(fed, past_key_values=cache, use_cache=True).logits[0, -1].argmax())
            if token in stops:
                break
            said.append(token)
    return said


def _masked(visible: Visible, past: int) -> Callable[..., Any]:
    """Attention in which `visible` applies to the first `past` tokens; those after them are causal."""

    def masked(
        attention: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> Any:
        cached = key[0, :, :past].repeat_interleave(query.shape[1] // key.shape[1], 0)
        chosen = visible(module.layer_idx, query[0], cached)
        if chosen is not None:
            queries, own = query.shape[2], key.shape[2] - past
            causal = torch.ones(queries, own, dtype=torch.bool).tril(own - queries)
            every = (query.shape[1], queries)
            mask = torch.cat([chosen.expand(*every, past), causal.expand(*every, own)], 2)[None]
            options |= {"is_causal": False}
        return attention(module, query, key, value, mask, **options)

    return masked


def _unchanged(attention: Any, *arguments: Any, **options: Any) -> Any:
    return attention(*arguments, **options)


@contextmanager
def _attention(function: Callable[..., Any]) -> Iterator[None]:
    """Inside, `function` is called with the model's attention and its arguments in its place."""
    attention = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = lambda *arguments, **options: function(attention, *arguments, **options)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attention
