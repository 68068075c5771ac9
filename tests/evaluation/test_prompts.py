"""The prompts: exact lengths, the same everywhere, varied, and intact at both ends."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from lynx_ascend.evaluation.prompts import chat_prompt, prompts


def test_lengths_are_exact_and_spread_from_300_to_4000(tokenizer: Any) -> None:
    lengths = [len(prompt) for prompt in prompts(tokenizer)]
    assert (len(lengths), lengths[0], lengths[-1]) == (20, 300, 4000)
    assert lengths == sorted(lengths)
    assert [len(prompt) for prompt in prompts(tokenizer, 3, [311, 255, 1024])] == [311, 255, 1024]


def test_they_are_the_same_on_every_machine(tokenizer: Any) -> None:
    text = "".join(tokenizer.decode(prompt) for prompt in prompts(tokenizer, 6))
    assert hashlib.sha256(text.encode()).hexdigest()[:32] == "cfea78a7ee34c38d558b17c9a29a715e"


def test_they_differ_and_do_not_repeat_themselves(tokenizer: Any) -> None:
    all_prompts = prompts(tokenizer)
    assert len({tuple(prompt[60:200]) for prompt in all_prompts}) == 20
    for prompt in all_prompts:
        windows = {tuple(prompt[i : i + 16]) for i in range(len(prompt) - 15)}
        assert len(windows) > 0.8 * (len(prompt) - 15)


def test_the_chat_template_is_intact(tokenizer: Any) -> None:
    for prompt in prompts(tokenizer, 3):
        text = tokenizer.decode(prompt)
        assert text.startswith("<|im_start|>system\n")
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert text.count("<|im_start|>user\n") == 1


def test_impossible_lengths_and_documents_are_refused(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="length: 40"):
        prompts(tokenizer, 1, [40])
    with pytest.raises(ValueError, match="lengths: 1 for 2"):
        prompts(tokenizer, 2, [400])
    with pytest.raises(ValueError, match="n: -1"):
        prompts(tokenizer, -1)
    with pytest.raises(ValueError, match="document: "):
        chat_prompt(tokenizer, ["short"], "Summarise.", 400)
