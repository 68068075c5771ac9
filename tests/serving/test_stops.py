"""Where a request ends: EOS, stop ids and strings, max_tokens and min_tokens do the same with drafts as without."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.engine
# Slow enough that a short draft is complete, and parked, when the residual arrives.
SLOW = 8


@pytest.fixture(scope="module")
def prompt(prompts: list[list[int]]) -> list[int]:
    return prompts[0]


def both(engine: Any, prompt: list[int], **sampling: Any) -> tuple[Any, Any]:
    """(with drafts, without): the same request over the same 8-bit cache."""
    drafted = engine.remote(prompt, lynx_bandwidth=SLOW, **sampling)
    plain = engine.remote(prompt, lynx_draft_cap=0, **sampling)
    engine.assert_clean()
    return drafted, plain


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 64, pytest.param(90, marks=pytest.mark.portable)])
def test_max_tokens(engine: Any, prompt: list[int], max_tokens: int) -> None:
    drafted, plain = both(engine, prompt, max_tokens=max_tokens, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    assert len(drafted.tokens) == max_tokens
    assert drafted.finish_reason == plain.finish_reason == "length"


@pytest.mark.parametrize("position", [0, pytest.param(1, marks=pytest.mark.portable), 7])
def test_stop_token_id(engine: Any, prompt: list[int], position: int) -> None:
    _, plain = both(engine, prompt, max_tokens=16)
    stop = plain.tokens[position]
    drafted, again = both(engine, prompt, max_tokens=16, stop_token_ids=[stop])
    assert drafted.tokens == again.tokens == plain.tokens[: plain.tokens.index(stop) + 1]
    assert drafted.finish_reason == again.finish_reason == "stop"


def test_eos(engine: Any, prompt: list[int]) -> None:
    """The model's own EOS, after a question with a short answer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(engine.llm.llm_engine.model_config.model)
    message = [{"role": "user", "content": "It is a fine day. " * 60 + "What is the capital of France?"}]
    short = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]
    drafted, plain = both(engine, short, max_tokens=120)
    assert drafted.tokens == plain.tokens
    assert drafted.finish_reason == plain.finish_reason
    assert plain.finish_reason == "stop" and plain.tokens[-1] == tokenizer.eos_token_id


def test_min_tokens(engine: Any, prompt: list[int]) -> None:
    _, plain = both(engine, prompt, max_tokens=16)
    stop = plain.tokens[2]
    drafted, again = both(engine, prompt, max_tokens=16, stop_token_ids=[stop], min_tokens=8)
    assert drafted.tokens == again.tokens
    assert len(drafted.tokens) >= 8


def test_stop_string(engine: Any, prompt: list[int]) -> None:
    _, plain = both(engine, prompt, max_tokens=40)
    word = plain.text.split()[5]
    drafted, again = both(engine, prompt, max_tokens=40, stop=[word])
    assert drafted.text == again.text == plain.text[: plain.text.index(word)]
    assert drafted.finish_reason == again.finish_reason == "stop"
