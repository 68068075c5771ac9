"""A measured case: a prompt's exact bf16 cache, the text that follows it, and what attends to what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from lynx_ascend.evaluation.fidelity import (
    Reconstruction,
    attention_weights,
    captured_queries,
    forced_logits,
    prefill_with_queries,
)
from lynx_ascend.evaluation.kv import PromptKV
from lynx_ascend.evaluation.local_engine import greedy_text
from lynx_ascend.evaluation.session import replacing

CAP = 64  # drafts
STARTS = 32  # tokens of the text at which drafts start
TEXT = CAP + STARTS
QUERIES = 64  # whose attention outputs count
WINDOW = 64  # last tokens of a cache that tell the importance of its tokens


class Cache(TypedDict):
    """key, value: bf16 unless asked for otherwise, [layers, tokens, kv_heads, head_dim]. importance: fp32 [layers,
    tokens, kv_heads], the mean attention that the last 64 tokens of the cache pay to each.
    """

    key: Tensor
    value: Tensor
    importance: Tensor


class Case(Cache):
    """A cache of all prompt tokens but the last, and what follows.

    forced: token ids from that last one on, with which the model is fed. text: what it greedily says after each of
    them, at most 96 ids; empty if the text was given. queries: fp32 [layers, heads, n, head_dim], n <= 64, of the first
    forced ids on the exact cache.
    """

    forced: list[int]
    text: list[int]
    queries: Tensor


def prompt_case(model: Any, prompt_ids: Sequence[int], path: Path) -> Case:
    """The case of a prompt with the model's greedy text; from `path` if it was made before."""
    return _kept(path) or _store(_case(model, prompt_ids, []), path)


def text_case(model: Any, ids: Sequence[int], path: Path) -> Case:
    """The case of a given text, whose last 64 tokens read what is before them; from `path` if it was made before."""
    return _kept(path) or _store(_case(model, ids[:-QUERIES], ids[-QUERIES:]), path)


def exact_cache(model: Any, ids: Sequence[int], dtype: torch.dtype = torch.bfloat16) -> Cache:
    """The exact cache of all of `ids` in `dtype`, in one forward pass."""
    whole, recent = prefill_with_queries(model, ids, WINDOW)
    key, value = (torch.stack(list(parts)).to(dtype) for parts in (whole.keys, whole.values))
    importance = torch.stack(list(_importance(recent, PromptKV(tuple(key), tuple(value)))))
    return Cache(key=key, value=value, importance=importance)


def exact_kv(cache: Cache) -> PromptKV:
    """The cache, bf16."""
    return PromptKV(tuple(cache["key"]), tuple(cache["value"]))


def _case(model: Any, ids: Sequence[int], following: Sequence[int]) -> Case:
    """With `following` a given text after `ids`; without, `ids` is a prompt whose last token is fed again."""
    cache = exact_cache(model, ids if following else ids[:-1])
    kv = exact_kv(cache)
    text: list[int] = []
    if not following:
        text = greedy_text(model, ids, PromptKV(tuple(cache["key"].float()), tuple(cache["value"].float())), TEXT)
    forced = list(following) or [ids[-1], *text[:-1]]
    with captured_queries(QUERIES, first=True) as queries:
        forced_logits(model, [Reconstruction(kv)], forced)
    return Case(**cache, forced=forced, text=text, queries=torch.stack(queries))


def _importance(queries: Sequence[Tensor], kv: PromptKV) -> Iterator[Tensor]:
    """[tokens, kv_heads] a layer; a query sees the tokens up to its own."""
    for query, key in zip(queries, kv.keys, strict=True):
        tokens, kv_heads, _ = key.shape
        last = torch.arange(tokens - query.shape[1], tokens)
        causal = torch.arange(tokens)[None] <= last[:, None]
        weights = attention_weights(query, key.float().transpose(0, 1), causal).mean(1)  # [heads, tokens]
        yield weights.reshape(kv_heads, -1, tokens).mean(1).T.contiguous()


def _kept(path: Path) -> Case | None:
    if not path.exists():
        return None
    case: Case = torch.load(path)
    return case


def _store(case: Case, path: Path) -> Case:
    with replacing(path) as part:
        torch.save(case, part)
    return case
