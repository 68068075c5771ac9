"""An abort, whatever the state, frees blocks, staging, sockets' queues and the prefill side's hold."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.engine import EngineCoreRequest

from tests.serving.harness import ASYNC

pytestmark = [pytest.mark.engine, pytest.mark.portable]


def waiting(engine: Any, request: str) -> bool:
    return bool(engine.state(request) == "HANDED" and engine.consumer._jobs)


def receiving(engine: Any, request: str) -> bool:
    return any(job.frames[0] for job in engine.consumer._jobs.values())


def drafting(engine: Any, request: str) -> bool:
    found = [remote for key, remote in engine.half.remotes.items() if key.startswith(request + "-")]
    return bool(found and len(found[0].decoder.drafts) >= 2)


def parked(engine: Any, request: str) -> bool:
    return bool(engine.state(request) == "PARKED")


def residual_ready(engine: Any, request: str) -> bool:
    return any(remote.residual_ready for remote in engine.half.remotes.values())


def verifying(engine: Any, request: str) -> bool:
    return bool(engine.state(request) == "VERIFYING")


def verified(engine: Any, request: str) -> bool:
    return len(engine.answers[request].tokens) >= 2


STATES = [waiting, receiving, drafting, parked, residual_ready, verified]
if ASYNC:  # else a step that verifies begins and ends within one call
    STATES.append(verifying)


@pytest.mark.parametrize("when", STATES)
def test_abort(engine: Any, prompts: list[list[int]], when: Any) -> None:
    prompt = prompts[1]
    cap = 4 if when is parked else 64
    request = engine.add(prompt, engine.prefill(prompt), lynx_bandwidth=12, lynx_draft_cap=cap)
    engine.step_until(lambda: when(engine, request), when.__name__)
    engine.abort(request)
    engine.assert_clean()
    # The engine serves on, the same prompt too.
    assert len(engine.answer(prompt, max_tokens=4).tokens) == 4


def test_abort_before_the_first_step(engine: Any, prompts: list[list[int]]) -> None:
    request = engine.add(prompts[0], engine.prefill(prompts[0]))
    engine.abort(request)
    engine.step()
    assert engine.state(request) is None
    engine.assert_clean()  # the prefill side is told that nobody will fetch the prompt: it does not wait for its lease


def test_abort_is_idempotent(engine: Any, prompts: list[list[int]]) -> None:
    request = engine.add(prompts[0], engine.prefill(prompts[0]), lynx_bandwidth=6)
    engine.step_until(lambda: drafting(engine, request), "drafting")
    engine.abort(request)
    engine.abort(request)
    engine.assert_clean()


@pytest.mark.skipif("abort_immediately" not in EngineCoreRequest.__struct_fields__, reason="vLLM 0.23 tells nobody")
def test_a_request_that_the_api_turned_away(engine: Any, prompts: list[list[int]], caplog: Any) -> None:
    """Its stand-in is no request that was refused: the prefill side is told that nobody fetches the prompt, no more."""
    engine.turn_away(engine.prefill(prompts[0]))
    engine.assert_clean()
    assert "refused" not in caplog.text
