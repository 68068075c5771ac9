"""The in-process engine gives the 8-bit answer, token for token, whatever the link does."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.evaluation.kv import prefill, reconstruct
from lynx_ascend.evaluation.local_engine import LocalEngine, eos_ids, greedy_text, reference_text
from lynx_ascend.evaluation.prompts import prompts

_LENGTHS = (300, 513, 700)  # 513: a last page of one token


@pytest.fixture(scope="module")
def cases(model: Any, tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    """Prompts with their 8-bit answers."""
    return [(ids, reference_text(model, ids, CodecConfig(), 40)) for ids in prompts(tokenizer, 3, _LENGTHS)]


@pytest.mark.parametrize("case", range(len(_LENGTHS)))
def test_output_is_the_8_bit_answer_and_drafts_are_accepted(
    model: Any, cases: list[tuple[list[int], list[int]]], case: int
) -> None:
    ids, answer = cases[case]
    generation = LocalEngine(model, CodecConfig()).generate(ids, 40)
    assert list(generation.tokens) == answer
    assert 0 < generation.accepted <= generation.drafted <= 39


@pytest.mark.parametrize(("steps", "cap"), [(0, 64), (1, 64), (7, 64), (None, 0), (None, 5), (50, 5)])
def test_the_moment_of_the_residual_changes_the_drafts_only(
    model: Any, cases: list[tuple[list[int], list[int]]], steps: int | None, cap: int
) -> None:
    ids, answer = cases[0]
    generation = LocalEngine(model, CodecConfig(), cap=cap).generate(ids, 40, steps=steps)
    assert list(generation.tokens) == answer
    assert generation.drafted == min(cap, 39 if steps is None else steps)


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_max_tokens(model: Any, cases: list[tuple[list[int], list[int]]], max_tokens: int) -> None:
    ids, answer = cases[0]
    generation = LocalEngine(model, CodecConfig()).generate(ids, max_tokens)
    assert list(generation.tokens) == answer[:max_tokens]
    assert generation.drafted == max_tokens - 1


def test_eos_in_the_draft_ends_the_request_at_the_verify_pass(model: Any, tokenizer: Any) -> None:
    message = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True).input_ids
    generation = LocalEngine(model, CodecConfig()).generate(ids, 64)
    assert set(generation.tokens[-1:]) == eos_ids(model)
    assert generation.drafted == generation.accepted == len(generation.tokens)  # trimmed at an accepted draft
    longer = LocalEngine(model, CodecConfig(), ignore_eos=True).generate(ids, 64)
    assert len(longer.tokens) == 64
    assert list(longer.tokens) == reference_text(model, ids, CodecConfig(), 64, ignore_eos=True)


def test_a_draft_that_goes_wrong_does_not_reach_the_output(model: Any, tokenizer: Any) -> None:
    [ids] = prompts(tokenizer, 1, [300])
    config = CodecConfig("alg1", sink_tokens=0)  # the coarsest anchor: its drafts leave the text within 40 tokens
    generation = LocalEngine(model, config).generate(ids, 40)
    assert generation.accepted < generation.drafted
    assert list(generation.tokens) == reference_text(model, ids, config, 40)


def test_reconstruction_is_close_where_it_should_be(model: Any, tokenizer: Any) -> None:
    [ids] = prompts(tokenizer, 1, [300])
    kv = prefill(model, ids)
    anchor, full = reconstruct(kv, CodecConfig())
    for exact, rough, fine in zip(
        kv.keys + kv.values, anchor.keys + anchor.values, full.keys + full.values, strict=True
    ):
        assert torch.equal(rough[:4], exact[:4]) and torch.equal(fine[:4], exact[:4])  # the raw sink
        errors = [((part - exact).square().sum() / exact.square().sum()).item() for part in (rough, fine)]
        assert errors[1] < errors[0] / 50 and errors[0] < 0.05


def test_prefill_and_step_by_step_decoding_agree(model: Any, tokenizer: Any) -> None:
    """The reference's own path, without a codec, against Transformers' generate."""
    [ids] = prompts(tokenizer, 1, [300])
    theirs = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :].tolist()
    assert greedy_text(model, ids, prefill(model, ids), 24) == theirs


@lru_cache
def _tiny() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 97}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


@pytest.mark.parametrize("length", [1, 2, 31, 33, 256, 257])
@pytest.mark.parametrize("codec", ["grid", "alg1"])
def test_ragged_prompts_on_a_tiny_model(length: int, codec: str) -> None:
    model, config = _tiny(), CodecConfig(codec, chunk=32, page=64)  # type: ignore[arg-type]
    ids = [(7 * i * i + 3) % 97 for i in range(length)]
    for steps in (0, 3, None):
        generation = LocalEngine(model, config, cap=6, ignore_eos=True).generate(ids, 12, steps=steps)
        assert list(generation.tokens) == reference_text(model, ids, config, 12, ignore_eos=True)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="prompt_ids"):
        LocalEngine(_tiny(), CodecConfig()).generate([], 4)
    with pytest.raises(ValueError, match="max_tokens"):
        LocalEngine(_tiny(), CodecConfig()).generate([1], 0)
    with pytest.raises(ValueError, match="max_tokens"):
        reference_text(_tiny(), [1], CodecConfig(), 0)
