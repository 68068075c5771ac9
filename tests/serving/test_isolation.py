"""Requests beside a drafting one: none of them sees a reconstructed or approximate block."""

from __future__ import annotations

from typing import Any

import pytest

from lynx_ascend.serving.compat import vllm_version

pytestmark = pytest.mark.engine


@pytest.mark.portable
def test_ordinary_requests_in_the_same_batch(engine: Any, prompts: list[list[int]]) -> None:
    ordinary = [prompts[0][:200], prompts[1][:150]]
    alone = [engine.answer(prompt, max_tokens=40).tokens for prompt in ordinary]
    params = engine.prefill(prompts[2])
    drafting = engine.add(prompts[2], params, lynx_bandwidth=30)
    engine.step_until(lambda: engine.state(drafting) == "DRAFTING", "drafting")
    ids = [engine.add(prompt, max_tokens=40) for prompt in ordinary]
    answers = engine.run(drafting, *ids)
    assert [answer.tokens for answer in answers[1:]] == alone
    engine.assert_clean()


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param({"temperature": 0.9, "seed": 1}, marks=pytest.mark.portable),
        {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 2},
        {"repetition_penalty": 1.3},
        {"bad_words": ["the"]},
        {"logprobs": 2},
    ],
    ids=lambda sampling: "+".join(sampling),
)
def test_verifying_beside_requests_that_sample_otherwise(
    engine: Any, prompts: list[list[int]], sampling: dict[str, Any]
) -> None:
    """Their temperature, top_k and penalties are theirs alone, also in the step that verifies."""
    prompt, beside = prompts[0], prompts[1][:100]
    plain = engine.answer(prompt, engine.prefill(prompt), lynx_draft_cap=0, max_tokens=24).tokens
    alone = engine.answer(beside, max_tokens=120, ignore_eos=True, **sampling).tokens
    # Slow enough that no single step, however long, spans the whole Residual.
    drafting = engine.add(prompt, engine.prefill(prompt), lynx_bandwidth=10, max_tokens=24)
    engine.step_until(lambda: engine.state(drafting) == "DRAFTING", "drafting")
    other = engine.add(beside, max_tokens=120, ignore_eos=True, **sampling)
    engine.step_until(lambda: len(engine.answers[drafting].tokens) > 1, "the verified tokens")
    assert not engine.answers[other].finish_reason
    lynx, neighbour = engine.run(drafting, other)
    assert lynx.tokens == plain
    if "seed" in sampling and vllm_version() == "0.23":  # on CPU it ignores seeds in a batch where not all have one
        assert len(neighbour.tokens) == len(alone)
    else:
        assert neighbour.tokens == alone
    engine.assert_clean()


def hashed(engine: Any) -> set[int]:
    """Blocks that a prefix lookup can find."""
    return {block.block_id for block in engine.scheduler.kv_cache_manager.block_pool.blocks if block.block_hash}


def draft_with_nothing_cached(engine: Any, prompt: list[int]) -> str:
    """A drafting request, and no other copy of its prompt's KV that a lookup could find."""
    engine.llm.reset_prefix_cache()
    request = engine.add(prompt, engine.prefill(prompt), lynx_bandwidth=10)
    engine.step_until(lambda: engine.state(request) == "DRAFTING", "drafting")
    engine.scheduler.kv_cache_manager.evict_blocks(hashed(engine))
    assert not hashed(engine)
    for _ in range(3):
        engine.step()
    assert engine.state(request) == "DRAFTING"
    return request


def test_the_same_prompt_beside_a_drafting_one_is_exact(engine: Any, prompts: list[list[int]]) -> None:
    prompt = prompts[3]
    exact = engine.answer(prompt).tokens
    drafting = draft_with_nothing_cached(engine, prompt)
    during = engine.add(prompt)
    engine.run(drafting, during)
    assert engine.answers[during].tokens == exact
    engine.assert_clean()


@pytest.mark.portable
def test_nothing_of_a_lossy_request_enters_the_prefix_cache(engine: Any, prompts: list[list[int]]) -> None:
    prompt = prompts[1]
    engine.run(draft_with_nothing_cached(engine, prompt))
    assert not hashed(engine)
    engine.answer(prompt)
    assert hashed(engine)
    engine.assert_clean()


def test_a_locally_cached_prefix_does_not_change_the_answer(engine: Any, prompts: list[list[int]]) -> None:
    prompt = prompts[1]
    request = draft_with_nothing_cached(engine, prompt)
    cold = engine.run(request)[0].tokens
    engine.answer(prompt)  # leaves the exact prefix in the cache
    warm = engine.answer(prompt, engine.prefill(prompt), lynx_bandwidth=60).tokens
    assert warm == cold
    engine.assert_clean()
