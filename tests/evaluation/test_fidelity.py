"""Attention outputs and forced logits are the model's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lynx_ascend.evaluation.fidelity import attention_outputs, forced_logits, prefill_with_queries, relative_error
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
    logits = forced_logits(model, kv, [IDS[-1], *text[:-1]])
    assert logits.argmax(-1).tolist() == text
    other = forced_logits(model, kv, [IDS[-1], *[5] * 7])
    assert torch.allclose(other[0], logits[0], atol=1e-3)
    assert not torch.allclose(other[3], logits[3], atol=1e-1)
