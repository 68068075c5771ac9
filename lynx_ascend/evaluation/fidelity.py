"""How far a reconstructed KV cache moves a model: attention outputs, and logits with the text given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lynx_ascend.evaluation.kv import PromptKV, prefill, stacked_cache

# (layer, query [heads, queries, head_dim], key [heads, tokens, head_dim] of the cache) -> which tokens are attended to,
# bool, broadcastable to [heads, queries, tokens]; None: all.
Visible = Callable[[int, Tensor, Tensor], Tensor | None]


class Reconstruction(NamedTuple):
    """A decoded cache, and which of its tokens are attended to."""

    kv: PromptKV
    visible: Visible | None = None


@contextmanager
def captured_queries(count: int, *, first: bool = False) -> Iterator[list[Tensor]]:
    """Inside, the list grows by each layer's last (or first) `count` queries, [heads, queries, head_dim]: those of a
    model that scales by something else than 1 / sqrt(head_dim) as if it did by that."""
    kept: list[Tensor] = []

    def keep(attention: Any, module: Any, query: Tensor, *arguments: Any, **options: Any) -> Any:
        some, scaling = (query[0, :, :count] if first else query[0, :, -count:]), options.get("scaling")
        kept.append(some.clone() if scaling is None else some * (scaling * query.shape[3] ** 0.5))
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
        query: [heads, queries, head_dim], as `captured_queries` gives them. key: [kv_heads, tokens, head_dim], fp32.
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
def forced_logits(model: Any, got: Sequence[Reconstruction], ids: Sequence[int]) -> Tensor:
    """Logits after each of `ids`, [len(got), len(ids), vocabulary], in one pass with a row for each of `got`, caches of
    the same tokens.

    As long as a greedy draft agrees with the given text, drafting token by token sees the same logits up to rounding.
    `visible` applies to the cache's tokens; among themselves the ids are causal.
    """
    cache, past = _cache(model, got)
    with _attention(_masked([row.visible for row in got], past)):
        logits: Tensor = model(torch.tensor([list(ids)] * len(got)), past_key_values=cache, use_cache=True).logits
    return logits


@torch.inference_mode()
def greedy_ids(model: Any, got: Sequence[Reconstruction], first: int, tokens: int, stops: Set[int]) -> list[list[int]]:
    """What the model greedily says after the id `first` on each of `got`, caches of the same tokens, in one batch: at
    most `tokens` ids, without the one of `stops` that ends it. `visible` as for `forced_logits`."""
    cache, past = _cache(model, got)
    said: list[list[int]] = [[] for _ in got]
    running, fed, visible = said, [first] * len(got), [row.visible for row in got]
    with _attention(_masked(visible, past)):
        for _ in range(tokens):
            logits = model(torch.tensor(fed)[:, None], past_key_values=cache, use_cache=True).logits[:, -1]
            chosen = logits.argmax(-1).tolist()
            going = [row for row, token in enumerate(chosen) if token not in stops]
            if len(going) < len(chosen):
                cache.batch_select_indices(torch.tensor(going, dtype=torch.long))
                visible[:] = [visible[row] for row in going]
            running, fed = [running[row] for row in going], [chosen[row] for row in going]
            for row, token in zip(running, fed, strict=True):
                row.append(token)
            if not going:
                break
    return said


def _cache(model: Any, got: Sequence[Reconstruction]) -> tuple[Any, int]:
    """The batch's cache in the model's dtype, and its tokens."""
    tokens = got[0].kv.keys[0].shape[0]
    return stacked_cache([row.kv for row in got], tokens, model.dtype), tokens


def _masked(visible: Sequence[Visible | None], past: int) -> Callable[..., Any]:
    """Attention in which a row's `visible` applies to its first `past` tokens; those after them are causal."""

    def masked(
        attention: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> Any:
        _, heads, queries, _ = query.shape
        rows: list[Tensor | None] = []
        for row, chosen in enumerate(visible):
            cached = key[row, :, :past].repeat_interleave(heads // key.shape[1], 0) if chosen else key
            rows.append(chosen(module.layer_idx, query[row], cached) if chosen else None)
        if any(row is not None for row in rows):
            every, own = torch.ones(1, 1, 1, dtype=torch.bool), key.shape[2] - past
            causal = torch.ones(queries, own, dtype=torch.bool).tril(own - queries).expand(heads, queries, own)
            seen = ((every if row is None else row).expand(heads, queries, past) for row in rows)
            mask = torch.stack([torch.cat([row, causal], 2) for row in seen])
            options |= {"is_causal": False}
        return attention(module, query, key, value, mask, **options)

    return masked


@contextmanager
def _attention(function: Callable[..., Any]) -> Iterator[None]:
    """Inside, `function` is called with the model's attention and its arguments in its place."""
    attention = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = lambda *arguments, **options: function(attention, *arguments, **options)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attention
