"""The promise: Lynx's text is, token for token, that of the 8-bit cache, computed without vLLM and the connector."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.evaluation.local_engine import reference_text
from lynx_ascend.serving import consumer

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def reference(model_path: str, prompts: list[list[int]]) -> Callable[[int], list[int]]:
    """The text of prompt i, computed when it is first asked for."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path)
    return functools.cache(lambda i: reference_text(model, prompts[i], CodecConfig(), 64, handover=True))


@pytest.mark.timeout(600)
def test_text_equals_the_8_bit_cache_alone(
    engine: Any, prompts: list[list[int]], reference: Callable[[int], list[int]]
) -> None:
    for i, prompt in enumerate(prompts):
        # A link on which the residual takes some 10 to 30 decode steps.
        answer = engine.answer(prompt, engine.prefill(prompt), lynx_bandwidth=len(prompt) / 25)
        assert answer.tokens == reference(i), f"{len(prompt)} tokens"
    engine.assert_clean()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("batch", [pytest.param(range(4), marks=pytest.mark.portable), range(2, 6)], ids=str)
def test_text_equals_the_8_bit_cache_in_a_batch(
    engine: Any, prompts: list[list[int]], reference: Callable[[int], list[int]], batch: range
) -> None:
    params = [engine.prefill(prompts[i]) for i in batch]
    speeds = [200, 80, 40, 20]
    ids = [
        engine.add(prompts[i], given, lynx_bandwidth=speed)
        for i, given, speed in zip(batch, params, speeds, strict=True)
    ]
    for i, answer in zip(batch, engine.run(*ids), strict=True):
        assert answer.tokens == reference(i), f"{len(prompts[i])} tokens"
    engine.assert_clean()


@pytest.mark.portable
def test_drafts_were_accepted(engine: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Equality alone would hold if nothing were ever drafted."""
    verified: list[dict[str, Any]] = []
    trace = engine.half._trace

    def watch(event: str, request_id: str, **fields: Any) -> None:
        if event == "verified":
            verified.append(fields)
        trace(event, request_id, **fields)

    monkeypatch.setattr(engine.half, "_trace", watch)
    for prompt in prompts[:3]:
        options = {"lynx_bandwidth": len(prompt) / 25}
        answer = engine.answer(prompt, engine.prefill(prompt), **options)
        # Everything verified in one pass reaches the client at once, and nothing before it but P's token.
        assert answer.chunks[:2] == [1, verified[-1]["accepted"] + 1]
    assert sum(fields["accepted"] for fields in verified) >= 6
    assert all(fields["drafted"] >= 2 for fields in verified)


@pytest.mark.portable
def test_both_streams_at_once(engine: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The Residual is complete before the first draft: nothing is to be verified, the first step is an ordinary one."""
    prompt, seen = prompts[0], []
    plain = engine.answer(prompt, engine.prefill(prompt), lynx_draft_cap=0, max_tokens=12).tokens
    monkeypatch.setattr(engine.half, "_trace", lambda event, request_id, **fields: seen.append(event))
    monkeypatch.setattr(consumer, "STEP_BUDGET_S", 60.0)
    with monkeypatch.context() as asleep:
        asleep.setattr(engine.consumer, "poll", lambda: None)
        request = engine.add(prompt, engine.prefill(prompt), max_tokens=12)
        engine.step_until(lambda: engine.consumer._jobs, "the pull")
        arrived = -1
        while engine.consumer.staged_bytes() > arrived or arrived <= 0:
            arrived = engine.consumer.staged_bytes()
            time.sleep(0.5)
    assert engine.run(request)[0].tokens == plain
    assert "verified" in seen and "draft" not in seen
    engine.assert_clean()


@pytest.mark.parametrize("method", ["bf16", "int8", "int4", "alg1", "pair"])
def test_other_methods_answer(engine: Any, prompts: list[list[int]], method: str) -> None:
    prompt = prompts[0]
    exact = engine.answer(prompt)
    answer = engine.answer(prompt, engine.prefill(prompt), lynx_method=method)
    if method == "bf16":  # no compression: the cache travels as it is
        assert answer.tokens == exact.tokens
    else:
        assert 1 <= len(answer.tokens) <= 64
        assert method == "int4" or answer.tokens[:3] == exact.tokens[:3]
    engine.assert_clean()
