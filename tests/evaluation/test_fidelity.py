"""Attention outputs and forced logits are the model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lynx_ascend.evaluation.fidelity import (
    Reconstruction,
    attention_outputs,
    forced_logits,
    prefill_with_queries,
    relative_error,
)
from lynx_ascend.evaluation.kv import PromptKV, prefill
from lynx_ascend.evaluation.local_engine import greedy_text

IDS = list(range(100, 180))


def test_outputs_are_those_of_the_models_attention(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token attends to all tokens, as the queries here do: its output is what the model computed."""
    sdpa, seen = ALL_ATTENTION_FUNCTIONS["sdpa"], []

    def keep(*arguments: Any, **options: Any) -> Any:
        result = sdpa(*arguments, **options)
        seen.append(result[0][0, -1])  # [heads, head_dim]
        return result

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", keep)
    kv, queries = prefill_with_queries(model, IDS, 1)
    assert torch.allclose(attention_outputs(queries, kv)[:, :, 0], torch.stack(seen), atol=2e-5)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is keep


def test_another_scale_is_the_models_too(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sdpa, seen = AutoModelForCausalLM.from_pretrained(tiny), ALL_ATTENTION_FUNCTIONS["sdpa"], []
    for layer in model.model.layers:
        layer.self_attn.scaling = 3.0  # not 1 / 4, far enough from it to tell

    def keep(*arguments: Any, **options: Any) -> Any:
        result = sdpa(*arguments, **options)
        seen.append(result[0][0, -1])
        return result

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", keep)
    kv, queries = prefill_with_queries(model, IDS, 1)
    assert torch.allclose(attention_outputs(queries, kv)[:, :, 0], torch.stack(seen), atol=2e-5)


def test_attention_is_put_back_after_an_error(model: Any) -> None:
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    with pytest.raises(ValueError, match="prompt_ids"):
        prefill_with_queries(model, [], 1)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before


def test_the_error_is_relative_and_pooled() -> None:
    exact = torch.tensor([3.0, 4.0])
    assert relative_error(exact, exact) == 0
    assert relative_error(torch.tensor([3.0, 5.0]), exact) == pytest.approx(1 / 25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forced_logits_are_those_of_decoding(model: Any, dtype: torch.dtype) -> None:
    exact = prefill(model, IDS[:-1])
    parts = (tuple(part.to(dtype) for part in parts) for parts in (exact.keys, exact.values))
    kv = PromptKV(*parts)
    wide = PromptKV(*(tuple(part.float() for part in parts) for parts in (kv.keys, kv.values)))
    text = greedy_text(model, IDS, wide, 8, ignore_eos=True)
    [logits] = forced_logits(model, [Reconstruction(kv)], [IDS[-1], *text[:-1]])
    assert logits.argmax(-1).tolist() == text
    [other] = forced_logits(model, [Reconstruction(kv)], [IDS[-1], *[5] * 7])
    assert torch.allclose(other[0], logits[0], atol=1e-3)
    assert not torch.allclose(other[3], logits[3], atol=1e-1)


def _hidden(layer: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Another set of tokens for every layer and head."""
    heads, tokens = key.shape[:2]
    return (torch.arange(tokens) * 7 + torch.arange(heads)[:, None] * 3 + layer) % 5 != 0


def test_hidden_tokens_are_as_if_they_were_not_there(tiny_model: Any) -> None:
    kv, queries = prefill_with_queries(tiny_model, IDS, 8)
    outputs = attention_outputs(queries, kv, lambda *arguments: _hidden(*arguments)[:, None])
    for layer, query in enumerate(queries):
        for head in range(4):
            seen = _hidden(layer, query, torch.empty(4, len(IDS), 1))[head]
            key, value = (part[layer][seen, head // 2].float() for part in (kv.keys, kv.values))
            weights = torch.softmax(query[head] @ key.T / query.shape[2] ** 0.5, -1)
            assert torch.allclose(outputs[layer, head], weights @ value, atol=1e-6)


def test_hidden_tokens_do_not_reach_the_logits(tiny_model: Any) -> None:
    """The model gives the same logits whatever stands in them, and other ones than if they are seen."""
    exact = prefill(tiny_model, IDS)

    def shown(layer: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return _hidden(layer, query, key)[:, None]

    def garbled(layer: int, part: torch.Tensor) -> torch.Tensor:
        seen = _hidden(layer, part, torch.empty(4, len(IDS), 1))[[0, 2]]  # by KV head, as `pairs` shows them
        return torch.where(seen.T[..., None], part, 50.0)

    def pairs(layer: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return shown(layer, query, key)[[0, 0, 2, 2]]

    parts = (tuple(garbled(i, part) for i, part in enumerate(half)) for half in (exact.keys, exact.values))
    ids = [5, 6, 7]

    def all_of_them(layer: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return torch.ones(1, 1, 1, dtype=torch.bool)

    rows = [(exact, pairs), (PromptKV(*parts), pairs), (exact, None), (exact, all_of_them), (exact, lambda *_: None)]
    got = [Reconstruction(*row) for row in rows]
    hidden, other, plain, everything, nothing = (forced_logits(tiny_model, [row], ids)[0] for row in got)
    assert torch.allclose(hidden, other, atol=1e-5) and not torch.allclose(hidden, plain, atol=1e-5)
    assert torch.allclose(everything, plain, atol=1e-5) and torch.equal(nothing, plain)
    # Rows of one batch, each with what it hides and another cache, do not see one another.
    batch = forced_logits(tiny_model, got, ids)
    assert torch.allclose(batch, torch.stack([hidden, other, plain, everything, nothing]), atol=1e-5)
