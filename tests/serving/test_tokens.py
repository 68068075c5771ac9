"""The promise: Lynx's text is, token for token, that of the 8-bit cache, computed without vLLM and the connector."""

from __future__ import annotations

from typing import Any

import pytest

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.evaluation.local_engine import reference_text

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def references(model_path: str, prompts: list[list[int]]) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path)
    return [reference_text(model, prompt, CodecConfig(), 64) for prompt in prompts]


@pytest.mark.timeout(600)
def test_text_equals_the_8_bit_cache_alone(engine: Any, prompts: list[list[int]], references: list[list[int]]) -> None:
    for prompt, reference in zip(prompts, references, strict=True):
        # A link on which the residual takes some 10 to 30 decode steps.
        answer = engine.answer(prompt, engine.prefill(prompt), lynx_bandwidth=len(prompt) / 25)
        assert answer.tokens == reference, f"{len(prompt)} tokens"
    engine.assert_clean()


@pytest.mark.timeout(600)
def test_text_equals_the_8_bit_cache_in_a_batch(
    engine: Any, prompts: list[list[int]], references: list[list[int]]
) -> None:
    for batch in (range(4), range(2, 6)):
        params = [engine.prefill(prompts[i]) for i in batch]
        speeds = [200, 80, 40, 20]
        ids = [
            engine.add(prompts[i], given, lynx_bandwidth=speed)
            for i, given, speed in zip(batch, params, speeds, strict=True)
        ]
        for i, answer in zip(batch, engine.run(*ids), strict=True):
            assert answer.tokens == references[i], f"{len(prompts[i])} tokens"
    engine.assert_clean()


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
        answer = engine.answer(prompt, engine.prefill(prompt), lynx_bandwidth=len(prompt) / 25)
        # Everything verified in one pass reaches the client at once, and nothing before it.
        assert answer.chunks[0] == verified[-1]["accepted"] + 1
    assert sum(fields["accepted"] for fields in verified) >= 6
    assert all(fields["drafted"] >= 2 for fields in verified)


@pytest.mark.parametrize("method", ["bf16", "int8", "int4", "alg1"])
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
