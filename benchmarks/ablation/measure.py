"""Measures one prompt: its exact KV and text once (kept on disk), then every variant against them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from formats import Shipped, Variant
from torch import Tensor

from lynx_ascend.evaluation.fidelity import attention_outputs, forced_logits, prefill_with_queries, relative_error
from lynx_ascend.evaluation.kv import PromptKV, prefill
from lynx_ascend.evaluation.local_engine import LocalEngine, greedy_text

CAP = 64  # drafts
STARTS = 32  # tokens of the text at which drafts start
TEXT = CAP + STARTS
QUERIES = 64


class Case(TypedDict):
    """A prompt: its exact bf16 cache of all but the last token, [layers, tokens, heads, head_dim] each, and the greedy
    text on that cache."""

    key: Tensor
    value: Tensor
    last: int
    text: list[int]


class Row(TypedDict):
    """One variant on one prompt.

    accepted: drafts until the first that differs from the exact text; run: the same, mean over drafts that start at
    each of the text's first 32 tokens; kl: mean over the text, nats.
    """

    accepted: int
    drafted: int
    run: float
    kl: float


def prepare(model: Any, prompt_ids: list[int], path: Path) -> Case:
    """The case of a prompt, from `path` if it was made before."""
    if not path.exists():
        key, value = _stacked(prefill(model, prompt_ids[:-1]))
        text = greedy_text(model, prompt_ids, _prompt_kv(key.float(), value.float()), TEXT)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(Case(key=key, value=value, last=prompt_ids[-1], text=text), path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
    loaded: Case = torch.load(path)
    return loaded


class Bench:
    """A case and the logits on its exact cache, to which variants are held."""

    def __init__(self, model: Any, case: Case) -> None:
        self._model, self._case = model, case
        self._ids = [case["last"], *case["text"][:-1]]
        self._text = torch.tensor(case["text"])
        self._log_p = forced_logits(model, _prompt_kv(case["key"], case["value"]), self._ids).log_softmax(-1)

    @torch.inference_mode()
    def measure(self, variant: Variant) -> Row:
        """One row."""
        key, value = variant.key.reconstruct(self._case["key"]), variant.value.reconstruct(self._case["value"])
        log_q = forced_logits(self._model, _prompt_kv(key.anchor, value.anchor), self._ids).log_softmax(-1)
        same = (log_q.argmax(-1) == self._text).tolist()
        runs = [_run(same[start : start + CAP]) for start in range(min(STARTS, len(same)))]
        return Row(
            accepted=runs[0],
            drafted=min(CAP, len(same)),
            run=sum(runs) / len(runs),
            kl=float((self._log_p.exp() * (self._log_p - log_q)).sum(-1).mean()),
        )


class EngineRow(TypedDict):
    """A shipped codec on one prompt by the real loop: drafts, then one verify pass on both streams. `forced`: what
    `Bench` counts; equal: the text of 65 tokens is the exact one."""

    drafted: int
    accepted: int
    forced: int
    equal: bool


def run_engine(model: Any, case: Case, variant: Variant, row: Row) -> EngineRow:
    """The in-process engine on a case whose row has been measured. K and V must be coded alike, by a CodecConfig."""
    assert isinstance(variant.key, Shipped) and variant.key == variant.value
    prompt_ids = [0] * case["key"].shape[1] + [case["last"]]  # only the last is read when the KV is given
    engine = LocalEngine(model, variant.key.config, cap=CAP)
    done = engine.generate(prompt_ids, CAP + 1, kv=_prompt_kv(case["key"], case["value"]))
    return EngineRow(
        drafted=done.drafted,
        accepted=done.accepted,
        forced=row["accepted"],
        equal=list(done.tokens) == case["text"][: CAP + 1],
    )


@torch.inference_mode()
def attention_errors(model: Any, ids: list[int], variants: Sequence[Variant]) -> dict[str, tuple[float, float]]:
    """The attention error of the anchor and of both streams, by variant: that of the queries of the last 64 tokens over
    the KV of those before them."""
    kv, queries = prefill_with_queries(model, ids, QUERIES)
    key, value = (part[:, :-QUERIES].contiguous() for part in _stacked(kv))
    exact = attention_outputs(queries, _prompt_kv(key, value))
    errors = {}
    for variant in variants:
        parts = zip(variant.key.reconstruct(key), variant.value.reconstruct(value), strict=True)
        anchor, full = (relative_error(attention_outputs(queries, _prompt_kv(k, v)), exact) for k, v in parts)
        errors[variant.name] = anchor, full
    return errors


def _run(same: list[bool]) -> int:
    return same.index(False) if False in same else len(same)


def _stacked(kv: PromptKV) -> tuple[Tensor, Tensor]:
    key, value = (torch.stack(list(parts)).to(torch.bfloat16) for parts in (kv.keys, kv.values))
    return key, value


def _prompt_kv(key: Tensor, value: Tensor) -> PromptKV:
    return PromptKV(tuple(key), tuple(value))
