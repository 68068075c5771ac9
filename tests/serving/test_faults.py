"""What goes wrong on the way ends in a recomputation or an error, never in a wrong token or a stuck engine."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from lynx_ascend.codec.config import Stream
from lynx_ascend.serving.connector import LynxConnector
from lynx_ascend.serving.producer import Producer
from tests.serving.harness import ASYNC
from tests.serving.relay import Relay

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def exact(engine: Any, prompts: list[list[int]]) -> list[int]:
    """What a recomputation gives: the answer on the engine's own, uncompressed KV."""
    tokens: list[int] = engine.answer(prompts[1], max_tokens=24).tokens
    return tokens


def through(relay: Relay, params: dict[str, Any]) -> dict[str, Any]:
    return {**params, "remote_port": relay.port}


@pytest.mark.parametrize("stream", [Stream.ANCHOR, Stream.RESIDUAL], ids=lambda s: s.name.lower())
@pytest.mark.parametrize(
    ("fault", "offset"),
    # Bytes of a length, of a message, of a frame's header, of metadata and of codes: 5,000 and 500,000 are in frames.
    [
        ("flip", 60),
        ("flip", 100),
        ("flip", 5_000),
        pytest.param("flip", 500_000, marks=[pytest.mark.portable, pytest.mark.npu]),
        pytest.param("cut", 300_000, marks=pytest.mark.portable),
        ("cut", 0),
        ("stall", 300_000),
    ],
)
def test_damaged_stream(
    engine: Any, prompts: list[list[int]], exact: list[int], stream: Stream, fault: Any, offset: int
) -> None:
    params = engine.prefill(prompts[1])
    with Relay(params["remote_port"], stream, fault, offset) as relay:
        answer = engine.answer(prompts[1], through(relay, params), lynx_bandwidth=60, max_tokens=24)
        assert relay.struck.is_set()
        assert answer.tokens == exact
        engine.assert_clean()


@pytest.mark.npu
@pytest.mark.portable
@pytest.mark.parametrize("stream", [Stream.ANCHOR, Stream.RESIDUAL], ids=lambda s: s.name.lower())
def test_fail_policy_ends_the_request(
    engine: Any, prompts: list[list[int]], exact: list[int], monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    """kv_load_failure_policy "fail" (the engine's is "recompute"; this is the attribute that it sets)."""
    monkeypatch.setattr(engine.scheduler, "recompute_kv_load_failures", False)
    params = engine.prefill(prompts[1])
    with Relay(params["remote_port"], stream, "flip", 500_000) as relay:
        answer = engine.answer(prompts[1], through(relay, params), lynx_bandwidth=60, max_tokens=24)
        assert relay.struck.is_set()
        assert answer.finish_reason == "error" and answer.tokens == exact[:1]  # P's, which it had got at once
        engine.assert_clean()


def test_an_undamaged_relay_changes_nothing(engine: Any, prompts: list[list[int]]) -> None:
    direct = engine.answer(prompts[1], engine.prefill(prompts[1]), lynx_bandwidth=60, max_tokens=24)
    params = engine.prefill(prompts[1])
    with Relay(params["remote_port"]) as relay:
        relayed = engine.answer(prompts[1], through(relay, params), lynx_bandwidth=60, max_tokens=24)
        assert relayed.tokens == direct.tokens
        engine.assert_clean()


@pytest.mark.parametrize(
    "change",
    [
        {"remote_port": 1},
        {"remote_engine_id": "an engine that was restarted"},
        {"remote_request_id": "never-heard-of"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_peer_that_cannot_serve(
    engine: Any, prompts: list[list[int]], exact: list[int], change: dict[str, Any]
) -> None:
    params = engine.prefill(prompts[1])
    answer = engine.answer(prompts[1], {**params, **change}, max_tokens=24)
    assert answer.tokens == exact
    engine.expire_leases()
    engine.assert_clean()


@pytest.mark.parametrize(
    ("change", "extra", "field"),
    [
        ({"remote_tokens": 17}, {}, "remote_tokens"),
        ({"remote_port": "a string"}, {}, "remote_port"),
        ({"remote_host": None}, {}, "remote_host"),
        pytest.param({}, {"lynx_method": "zip"}, "lynx_method", marks=pytest.mark.portable),
        ({}, {"lynx_method": ["lynx"]}, "lynx_method"),
        ({}, {"lynx_draft_cap": 1000}, "lynx_draft_cap"),
        ({}, {"lynx_bandwidth": float("inf")}, "lynx_bandwidth"),
    ],
)
def test_bad_request_ends_with_an_error(
    engine: Any, prompts: list[list[int]], change: dict[str, Any], extra: dict[str, Any], field: str, caplog: Any
) -> None:
    params = engine.prefill(prompts[0])
    beside = engine.add(prompts[1][:100], max_tokens=8)
    answer = engine.answer(prompts[0], {**params, **change}, **extra)
    assert answer.finish_reason == "error" and answer.tokens == []
    assert field in caplog.text
    assert len(engine.answers[beside].tokens) == 8
    engine.expire_leases()
    engine.assert_clean()


@pytest.mark.portable
def test_a_prefill_instance_fetches_nothing(
    engine: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """kv_role kv_producer: no worker there would fetch, and the request, with its blocks, would wait for ever."""
    config = copy.copy(engine.engine.vllm_config)
    config.kv_transfer_config = copy.copy(config.kv_transfer_config)
    config.kv_transfer_config.kv_role = "kv_producer"
    prefill_only = LynxConnector(config, KVConnectorRole.SCHEDULER, engine.scheduler.kv_cache_config).scheduler_half
    assert prefill_only is not None and engine.half._fetching
    monkeypatch.setattr(engine.half, "_fetching", prefill_only._fetching)
    answer = engine.answer(prompts[0], engine.prefill(prompts[0]), max_tokens=4)
    assert answer.finish_reason == "error" and answer.tokens == []
    assert "do_remote_prefill" in caplog.text
    engine.assert_clean()


def test_prompt_with_a_non_finite_value_is_recomputed(engine: Any, prompts: list[list[int]], exact: list[int]) -> None:
    engine.llm.reset_prefix_cache()
    params = engine.prefill(prompts[1])
    held = engine.producer._held[params["remote_request_id"]]
    place = engine.producer._layers[3].value[held.order.block_ids[2], 5, 1]
    place[7] = float("nan")
    engine.scheduler.kv_cache_manager.evict_blocks(set(held.order.block_ids))
    answer = engine.answer(prompts[1], params, max_tokens=24)
    place[7] = 0.0
    assert answer.tokens == exact
    engine.assert_clean()


@pytest.mark.npu
@pytest.mark.portable
@pytest.mark.parametrize("state", ["DRAFTING", "PARKED", "VERIFYING"])
def test_preempted(engine: Any, prompts: list[list[int]], exact: list[int], state: str) -> None:
    cap = 3 if state == "PARKED" else 64
    options = {"lynx_bandwidth": 10, "lynx_draft_cap": cap, "max_tokens": 24}
    request = engine.add(prompts[1], engine.prefill(prompts[1]), **options)
    reached = "DRAFTING" if state == "VERIFYING" else state
    engine.step_until(lambda: engine.state(request) == reached, reached)
    remote = next(r for r in engine.half.remotes.values() if r.request_id.startswith(request + "-"))
    engine.step_until(lambda: len(remote.decoder.drafts) >= 2, "two drafts")
    running = engine.scheduler.requests[remote.request_id]
    if state == "VERIFYING" and ASYNC:
        # Amid the pass itself: what it gives afterwards is void.
        engine.step_until(lambda: engine.state(request) == state, state)
        assert engine.scheduler._lynx_in_flight[running.request_id] == 1
    elif state == "VERIFYING":
        # As when schedule() finds no blocks for the drafts of a verification that it has just begun.
        engine.step_until(lambda: remote.residual_ready, "the residual")
        engine.scheduler._begin_verify(remote, running)
    assert remote.decoder.state.name == state and len(remote.decoder.drafts) >= 2
    engine.scheduler.running.remove(running)
    engine.scheduler._preempt_request(running, 0.0)
    assert engine.run(request)[0].tokens == exact
    engine.assert_clean()


@pytest.mark.portable
@pytest.mark.parametrize("state", ["HANDED", "DRAFTING", "PARKED"])
@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_deadline(
    engine: Any, prompts: list[list[int]], exact: list[int], state: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parked request holds a place and blocks: it is not left waiting for a Residual that does not come."""
    monkeypatch.setattr(engine.scheduler, "recompute_kv_load_failures", policy == "recompute")
    cap = 3 if state == "PARKED" else 64
    options = {"lynx_bandwidth": 20, "lynx_draft_cap": cap, "max_tokens": 24}
    request = engine.add(prompts[1], engine.prefill(prompts[1]), **options)
    engine.step_until(lambda: engine.state(request) == state and engine.consumer._jobs, state)
    for job in engine.consumer._jobs.values():
        job.deadline = 0.0
    answer = engine.run(request)[0]
    assert answer.tokens == (exact if policy == "recompute" else exact[:1])
    assert (answer.finish_reason == "error") == (policy == "fail")
    engine.assert_clean()


@pytest.mark.portable
def test_prefill_instance_restarted_at_the_same_address(
    engine: Any, prompts: list[list[int]], exact: list[int], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Old handles are refused; new ones are served, over a new handshake."""
    worker, old = get_kv_transfer_group(), engine.producer
    plain = engine.answer(prompts[1], engine.prefill(prompts[1]), lynx_draft_cap=0, max_tokens=24).tokens
    before = engine.prefill(prompts[1])
    engine.expire_leases()
    engine.assert_clean()
    old.close()
    # Else the request may meet the old connection, of which the end is not known yet.
    port, connections = before["remote_port"], engine.consumer._client._connections
    engine.step_until(lambda: port not in [peer[1] for peer, _ in list(connections)], "the end of the old connection")
    options = msgspec.structs.replace(engine.consumer._options, port=port)
    new = Producer(old._layers, options, "restarted", old._trace)
    for holder, name in ((worker, "_producer"), (engine, "producer")):
        monkeypatch.setattr(holder, name, new)
    monkeypatch.setattr(engine.half, "_engine_id", "restarted")
    try:
        assert engine.answer(prompts[1], before, max_tokens=24).tokens == exact
        assert f"is now engine 'restarted', not '{before['remote_engine_id']}'" in caplog.text
        after = engine.prefill(prompts[1])
        assert after["remote_port"] == before["remote_port"] and after["remote_engine_id"] == "restarted"
        assert engine.answer(prompts[1], after, lynx_bandwidth=60, max_tokens=24).tokens == plain
        engine.assert_clean()
    finally:
        new.close()
        again = Producer(old._layers, options, before["remote_engine_id"], old._trace)
        monkeypatch.undo()
        worker._producer = engine.producer = again


@pytest.mark.portable
@pytest.mark.parametrize(
    "sampling", [{"prompt_logprobs": 1}, {"skip_reading_prefix_cache": True}], ids=lambda s: next(iter(s))
)
def test_request_that_must_compute_its_prompt_is_not_fetched(
    engine: Any, prompts: list[list[int]], exact: list[int], sampling: dict[str, Any]
) -> None:
    answer = engine.answer(prompts[1], engine.prefill(prompts[1]), max_tokens=24, **sampling)
    assert answer.tokens == exact
    engine.assert_clean()


def test_requests_that_share_a_prompt_fetch_it_once(engine: Any, prompts: list[list[int]], exact: list[int]) -> None:
    """As the children of an n > 1 request do: the first one gets the KV, the others compute it."""
    plain = engine.answer(prompts[1], engine.prefill(prompts[1]), lynx_draft_cap=0, max_tokens=24).tokens
    params = engine.prefill(prompts[1])
    requests = [engine.add(prompts[1], params, lynx_bandwidth=60, max_tokens=24) for _ in range(3)]
    assert [answer.tokens for answer in engine.run(*requests)] == [plain, exact, exact]
    engine.assert_clean()
