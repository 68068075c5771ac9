"""First-token handover: the client gets P's token at once, and what follows is the 8-bit cache's continuation of it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.metrics.stats import IterationStats

from lynx_ascend.codec.config import Stream
from lynx_ascend.serving.handover import Handover
from lynx_ascend.serving.options import LynxOptions
from tests.serving.harness import ASYNC, Engine
from tests.serving.relay import Relay

pytestmark = [pytest.mark.engine, pytest.mark.portable]
SLOW = 8  # Mbit/s, on which the Residual takes longer than a short draft
DRAFTS = {"lynx_bandwidth": SLOW, "lynx_draft_cap": 6}
PARKS = {"lynx_bandwidth": 3, "lynx_draft_cap": 3}  # is parked, also on a busy machine
Events = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def prompt(prompts: list[list[int]]) -> list[int]:
    return prompts[0]


@pytest.fixture(scope="module")
def other(engine: Engine, prompt: list[int]) -> int:
    """A token that this engine would not begin its answer with: where it does, it was handed over."""
    return int(engine.answer(prompt, max_tokens=3).tokens[2])


@pytest.fixture
def events(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Events:
    """What the scheduler half told of."""
    seen: Events = []
    trace = engine.half._trace

    def watch(event: str, request_id: str, **fields: Any) -> None:
        seen.append((event, fields))
        trace(event, request_id, **fields)

    monkeypatch.setattr(engine.half, "_trace", watch)
    return seen


def handing(engine: Engine, prompt: list[int], token: int, **sampling: Any) -> dict[str, Any]:
    return {**engine.prefill(prompt, **sampling), "remote_first_token": token}


def exact(engine: Engine, prompt: list[int], token: int, max_tokens: int = 24, **sampling: Any) -> list[int]:
    """The token, and what follows it on this engine's own KV."""
    return [token, *engine.answer([*prompt, token], max_tokens=max_tokens - 1, **sampling).tokens]


@pytest.mark.npu
def test_the_first_token_comes_before_the_anchor(engine: Engine, prompt: list[int], events: Events) -> None:
    plain = engine.remote(prompt, lynx_draft_cap=0, max_tokens=24)
    params = engine.prefill(prompt)
    assert params["remote_first_token"] == engine.answer(prompt, max_tokens=1).tokens[0] == plain.tokens[0]
    events.clear()
    request = engine.add(prompt, params, max_tokens=24, **PARKS)
    answer = engine.answers[request]
    engine.step_until(lambda: answer.tokens, "the first token")
    assert answer.tokens == [params["remote_first_token"]]
    assert engine.state(request) == "HANDED" and engine.consumer._jobs
    engine.step_until(lambda: engine.state(request) == "PARKED", "the drafts")
    assert len(answer.tokens) == 1
    engine.run(request)
    (verified,) = [fields for event, fields in events if event == "verified"]
    assert verified["drafted"] == 3 and verified["accepted"] >= 1
    assert answer.chunks[:2] == [1, verified["accepted"] + 1]
    assert answer.tokens == plain.tokens and len(answer.tokens) == 24
    engine.assert_clean()


@pytest.mark.npu
def test_the_answer_goes_on_from_whatever_token_it_was(engine: Engine, prompt: list[int], other: int) -> None:
    plain = engine.answer(prompt, handing(engine, prompt, other), lynx_draft_cap=0, max_tokens=24)
    drafted = engine.answer(prompt, handing(engine, prompt, other), max_tokens=24, **DRAFTS)
    lossless = engine.answer(prompt, handing(engine, prompt, other), lynx_method="bf16", max_tokens=24)
    assert drafted.tokens == plain.tokens and plain.tokens[0] == other
    assert lossless.tokens == exact(engine, prompt, other)
    engine.assert_clean()


def test_several_in_a_batch(engine: Engine, prompts: list[list[int]], other: int) -> None:
    plain = [
        engine.answer(prompt, handing(engine, prompt, other), lynx_draft_cap=0, max_tokens=20).tokens
        for prompt in prompts[:3]
    ]
    given = [handing(engine, prompt, other) for prompt in prompts[:3]]
    ids = [
        engine.add(prompt, params, lynx_bandwidth=speed, max_tokens=20)
        for prompt, params, speed in zip(prompts[:3], given, [SLOW, 40, 200], strict=True)
    ]
    beside = engine.add(prompts[1][:90], max_tokens=20)
    assert [answer.tokens for answer in engine.run(*ids)] == plain
    assert len(engine.answers[beside].tokens) == 20
    engine.assert_clean()


@pytest.mark.parametrize(
    "sampling",
    [
        {"presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
        {"bad_words": True},
        {"logit_bias": {28: -4.0, 198: 3.0}},  # decoded without drafts
    ],
    ids=lambda sampling: next(iter(sampling)),
)
def test_what_counts_output_tokens_counts_it(
    engine: Engine, prompt: list[int], other: int, events: Events, sampling: dict[str, Any]
) -> None:
    if "bad_words" in sampling:  # two tokens in a row, the first of which is the one handed over
        tokenizer = engine.llm.get_tokenizer()
        [other] = tokenizer.encode(" the")  # vLLM bans what may stand after a space if it is as long where none is
        words = tokenizer.decode(exact(engine, prompt, other)[:2])
        assert len(tokenizer.encode(words)) == len(tokenizer.encode(words.lstrip())) == 2
        sampling = {"bad_words": [words]}
    plain = engine.answer(prompt, handing(engine, prompt, other), lynx_draft_cap=0, max_tokens=24, **sampling)
    events.clear()
    answer = engine.answer(prompt, handing(engine, prompt, other), max_tokens=24, **DRAFTS, **sampling)
    assert answer.tokens == plain.tokens
    assert ("verified" in dict(events)) == ("logit_bias" not in sampling)
    lossless = engine.answer(prompt, handing(engine, prompt, other), lynx_method="bf16", max_tokens=24, **sampling)
    ordinary = exact(engine, prompt, other)
    assert lossless.tokens[0] == other and lossless.tokens != ordinary
    if "bad_words" in sampling:
        assert ordinary[1] not in (lossless.tokens[1], plain.tokens[1])
    engine.assert_clean()


def test_penalties_are_those_of_an_answer_that_began_with_it(engine: Engine, prompt: list[int]) -> None:
    """P's token is what this engine itself samples, on a lossless cache: all must be as if nothing had been handed."""
    sampling = {"presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.3, "max_tokens": 32}
    whole = engine.answer(prompt, **sampling)
    assert engine.remote(prompt, lynx_method="bf16", **sampling).tokens == whole.tokens
    engine.assert_clean()


def test_a_random_request(engine: Engine, prompt: list[int], other: int, events: Events) -> None:
    sampling = {"temperature": 0.8, "top_p": 0.9, "ignore_eos": True, "max_tokens": 24}
    answer = engine.answer(prompt, handing(engine, prompt, other, **sampling), **DRAFTS, **sampling)
    assert answer.tokens[0] == other and len(answer.tokens) == 24
    assert dict(events)["verified"]["drafted"] >= 2
    engine.assert_clean()


# What ends the answer.


def ending(engine: Engine, prompt: list[int], events: Events, params: dict[str, Any], **sampling: Any) -> Any:
    """An answer that ends with its first token: nothing is fetched, and P is told, or assert_clean would not come."""
    events.clear()
    answer = engine.answer(prompt, params, **sampling)
    assert answer.tokens == [params["remote_first_token"]] and answer.chunks == [1]
    assert [event for event, _ in events if event in ("handed", "pull")] == ["handed"]
    engine.assert_clean()
    return answer


@pytest.mark.npu
def test_max_tokens_1(engine: Engine, prompt: list[int], other: int, events: Events) -> None:
    assert ending(engine, prompt, events, handing(engine, prompt, other), max_tokens=1).finish_reason == "length"


def test_eos(engine: Engine, prompt: list[int], events: Events) -> None:
    eos = engine.llm.get_tokenizer().eos_token_id
    assert ending(engine, prompt, events, handing(engine, prompt, eos)).finish_reason == "stop"
    ignoring = engine.answer(prompt, handing(engine, prompt, eos), ignore_eos=True, max_tokens=4)
    assert ignoring.tokens[0] == eos and len(ignoring.tokens) == 4
    engine.assert_clean()


def test_stop_token_id(engine: Engine, prompt: list[int], other: int, events: Events) -> None:
    answer = ending(engine, prompt, events, handing(engine, prompt, other), stop_token_ids=[other])
    assert answer.finish_reason == "stop"


def test_stop_string(engine: Engine, prompt: list[int], other: int) -> None:
    """The front end finds it in the text and aborts the request."""
    word = engine.llm.get_tokenizer().decode([other])
    answer = engine.answer(prompt, handing(engine, prompt, other), stop=[word], lynx_bandwidth=SLOW)
    assert answer.finish_reason == "stop" and answer.text == ""
    engine.assert_clean()


def test_length_of_the_model(engine: Engine, prompt: list[int], other: int, events: Events, monkeypatch: Any) -> None:
    params = handing(engine, prompt, other)
    monkeypatch.setattr(engine.scheduler, "max_model_len", len(prompt) + 1)
    assert ending(engine, prompt, events, params, max_tokens=9).finish_reason == "length"


@pytest.mark.parametrize("max_tokens", [2, 3])
def test_few_tokens(engine: Engine, prompt: list[int], max_tokens: int) -> None:
    plain = engine.remote(prompt, lynx_draft_cap=0, max_tokens=max_tokens)
    drafted = engine.remote(prompt, max_tokens=max_tokens, **DRAFTS)
    assert drafted.tokens == plain.tokens and len(plain.tokens) == max_tokens
    assert drafted.finish_reason == plain.finish_reason == "length"
    engine.assert_clean()


# What goes wrong.


@pytest.mark.parametrize("when", ["at once", "HANDED", "DRAFTING", "PARKED"])
def test_abort(engine: Engine, prompt: list[int], other: int, when: str) -> None:
    request = engine.add(prompt, handing(engine, prompt, other), **(PARKS if when == "PARKED" else DRAFTS))
    if when == "HANDED":
        engine.step_until(lambda: engine.answers[request].tokens == [other], "the first token")
        assert engine.state(request) == "HANDED"
    elif when != "at once":
        engine.step_until(lambda: engine.state(request) == when, when)
    engine.abort(request)
    engine.assert_clean()
    assert len(engine.answer(prompt, max_tokens=4).tokens) == 4


@pytest.fixture(params=["recompute", "fail"])
def policy(request: pytest.FixtureRequest, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(engine.scheduler, "recompute_kv_load_failures", request.param == "recompute")
    return request.param


def assert_given_up(engine: Engine, prompt: list[int], answer: Any, token: int, policy: str) -> None:
    """What the client of a request without its transfer gets: the token once, and what follows it, or an error."""
    if policy == "fail":
        assert answer.finish_reason == "error" and answer.tokens == [token]
    else:
        assert answer.tokens == exact(engine, prompt, token)
    engine.expire_leases()
    engine.assert_clean()


def test_a_peer_that_cannot_serve(engine: Engine, prompt: list[int], other: int, policy: str) -> None:
    params = {**handing(engine, prompt, other), "remote_port": 1}
    assert_given_up(engine, prompt, engine.answer(prompt, params, max_tokens=24), other, policy)


@pytest.mark.npu
@pytest.mark.parametrize("stream", [Stream.ANCHOR, Stream.RESIDUAL], ids=lambda s: s.name.lower())
def test_a_damaged_stream(engine: Engine, prompts: list[list[int]], other: int, policy: str, stream: Stream) -> None:
    params = handing(engine, prompts[1], other)
    with Relay(params["remote_port"], stream, "flip", 500_000) as relay:
        given = {**params, "remote_port": relay.port}
        answer = engine.answer(prompts[1], given, lynx_bandwidth=60, max_tokens=24)
        assert relay.struck.is_set()
    assert_given_up(engine, prompts[1], answer, other, policy)


@pytest.mark.parametrize("state", ["HANDED", "DRAFTING", "PARKED"])
def test_a_deadline(engine: Engine, prompt: list[int], other: int, policy: str, state: str) -> None:
    options = PARKS if state == "PARKED" else {**DRAFTS, "lynx_draft_cap": 64}
    request = engine.add(prompt, handing(engine, prompt, other), max_tokens=24, **options)
    engine.step_until(lambda: engine.state(request) == state and engine.consumer._jobs, state)
    for job in engine.consumer._jobs.values():
        job.deadline = 0.0
    assert_given_up(engine, prompt, engine.run(request)[0], other, policy)


@pytest.mark.npu
@pytest.mark.parametrize("state", ["DRAFTING", "PARKED", "VERIFYING"])
def test_preempted(engine: Engine, prompt: list[int], other: int, state: str) -> None:
    options = PARKS if state == "PARKED" else {**DRAFTS, "lynx_draft_cap": 64}
    request = engine.add(prompt, handing(engine, prompt, other), max_tokens=24, **options)
    reached = "DRAFTING" if state == "VERIFYING" else state
    engine.step_until(lambda: engine.state(request) == reached, reached)
    remote = next(r for r in engine.half.remotes.values() if r.request_id.startswith(request + "-"))
    engine.step_until(lambda: len(remote.decoder.drafts) >= 2, "two drafts")
    running = engine.scheduler.requests[remote.request_id]
    if state == "VERIFYING" and ASYNC:  # amid the pass itself
        engine.step_until(lambda: engine.state(request) == state, state)
    elif state == "VERIFYING":  # as when there are no blocks for the drafts
        engine.step_until(lambda: remote.residual_ready, "the residual")
        engine.scheduler._begin_verify(remote, running)
    assert remote.decoder.state.name == state
    engine.scheduler.running.remove(running)
    engine.scheduler._preempt_request(running, 0.0)
    assert engine.run(request)[0].tokens == exact(engine, prompt, other)
    engine.assert_clean()


@pytest.mark.parametrize("token", [-1, 1 << 20, "788", 1.5, True], ids=str)
def test_a_token_that_cannot_be_is_refused(engine: Engine, prompt: list[int], token: Any, caplog: Any) -> None:
    answer = engine.answer(prompt, handing(engine, prompt, token), max_tokens=4)
    assert answer.finish_reason == "error" and answer.tokens == []
    assert "remote_first_token" in caplog.text
    engine.expire_leases()
    engine.assert_clean()


@pytest.mark.parametrize("first", ["aborted at once", "under way", "ended"])
def test_the_same_parameters_again(engine: Engine, prompt: list[int], other: int, events: Events, first: str) -> None:
    """As a proxy sends them that tries again: the second request gets this engine's own answer."""
    params = handing(engine, prompt, other)
    request = engine.add(prompt, params, max_tokens=6, **DRAFTS)
    if first == "aborted at once":
        engine.abort(request)
    elif first == "ended":
        engine.run(request)
    again = engine.answer(prompt, {**params, "remote_host": "localhost"}, max_tokens=6, **DRAFTS)
    assert again.tokens == engine.answer(prompt, max_tokens=6).tokens
    assert [event for event, _ in events].count("handed") == 1
    engine.assert_clean()


@pytest.mark.parametrize("max_tokens", [1, 8])
def test_an_aborted_request_is_told_nothing(engine: Engine, prompt: list[int], other: int, max_tokens: int) -> None:
    """VLLM_DISABLE_REQUEST_ID_RANDOMIZATION lets a client take the id of a request that it has just aborted."""
    request = engine.add(prompt, handing(engine, prompt, other), max_tokens=max_tokens)
    ((_, told),) = engine.scheduler._lynx_told
    request_id = told.request_id
    engine.abort(request)
    assert not engine.scheduler._lynx_told
    while engine.scheduler.has_requests() or engine.core.batch_queue:
        outputs, _ = engine.core.step_fn()
        assert all(output.request_id != request_id for told in (outputs or {}).values() for output in told.outputs)
    engine.assert_clean()


def test_times_that_vllm_takes(
    engine: Engine, prompt: list[int], other: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a request that began with its token, and of one that never was in the batch: none is the machine's uptime."""
    finished = []
    update = IterationStats.update_from_finished_request

    def noting(self: IterationStats, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)
        finished.append(self.finished_requests[-1])

    params = handing(engine, prompt, other)
    monkeypatch.setattr(IterationStats, "update_from_finished_request", noting)
    engine.answer(prompt, {**params, "remote_port": 1}, max_tokens=4, ignore_eos=True)
    engine.answer(prompt, {**params, "remote_tokens": 3})
    assert [stats.num_generation_tokens for stats in finished] == [4 if policy == "recompute" else 1, 0]
    for stats in finished:
        times = stats.queued_time, stats.prefill_time, stats.decode_time, stats.inference_time
        assert all(0 <= seconds <= stats.e2e_latency + 1.0 for seconds in times)
    engine.expire_leases()
    engine.assert_clean()


# To whom it is not handed.


def assert_not_handed(engine: Engine, prompt: list[int], other: int, events: Events, **sampling: Any) -> None:
    """The answer is that without the field, and nothing of it comes before everything is there."""
    params = engine.prefill(prompt, **sampling)
    params.pop("remote_first_token")
    before = engine.answer(prompt, params, lynx_draft_cap=0, **sampling)
    events.clear()
    answer = engine.answer(prompt, handing(engine, prompt, other, **sampling), **DRAFTS, **sampling)
    assert "handed" not in dict(events)
    assert answer.tokens == before.tokens and answer.tokens[0] != other
    engine.expire_leases()
    engine.assert_clean()


@pytest.mark.parametrize(
    "sampling",
    [
        {"logprobs": 2},
        {"prompt_logprobs": 1},
        {"skip_reading_prefix_cache": True},
        {"min_tokens": 3},
        {"temperature": 0.8, "seed": 7, "lynx_method": "bf16"},
        {"structured_outputs": StructuredOutputsParams(regex="[a-z ]{20,40}")},
    ],
    ids=lambda sampling: list(sampling)[-1],
)
def test_requests_that_need_more_than_the_token(
    engine: Engine, prompt: list[int], other: int, events: Events, sampling: dict[str, Any]
) -> None:
    assert_not_handed(engine, prompt, other, events, max_tokens=12, **sampling)


def test_a_prompt_that_is_to_be_fetched_from_here_too(
    engine: Engine, prompt: list[int], other: int, events: Events
) -> None:
    """Its KV must be here before the request may end."""
    params = {**handing(engine, prompt, other), "do_remote_decode": True}
    answer = engine.answer(prompt, params, lynx_method="bf16", max_tokens=1)
    assert answer.params is not None and answer.params["remote_tokens"] == len(prompt)
    assert answer.tokens == engine.answer(prompt, max_tokens=1).tokens and "handed" not in dict(events)
    engine.step_until(lambda: engine.producer._held, "the prompt's hold")
    assert engine.answer(prompt, answer.params, lynx_method="bf16", max_tokens=8).tokens[0] == answer.tokens[0]
    engine.assert_clean()


def test_an_engine_that_hands_over_none(
    engine: Engine, prompt: list[int], other: int, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.half.handover, "enabled", False)
    assert_not_handed(engine, prompt, other, events, max_tokens=12)


def test_engines_that_hand_over_none() -> None:
    def handed(options: LynxOptions | None = None, **model: Any) -> bool:
        config = SimpleNamespace(get_vocab_size=lambda: 99, **{"logits_processors": None, **model})
        return Handover.of(options or LynxOptions(), SimpleNamespace(model_config=config)).enabled

    assert handed()
    assert not handed(LynxOptions(first_token_handover=False))
    assert not handed(logits_processors=["module:Processor"])
    assert not handed(return_sampling_mask=True)
    assert not handed(enable_return_routed_experts=True)


def test_one_of_several_children(engine: Engine, prompt: list[int], other: int, events: Events, policy: str) -> None:
    """n = 3: P sampled one token for them, and each sample is one of its own; also where that token ends the answer."""
    sampling = {"n": 3, "temperature": 0.7, "ignore_eos": True}
    request = engine.add(prompt, handing(engine, prompt, other, **sampling), max_tokens=12, **DRAFTS, **sampling)
    engine.run()
    assert sorted(len(c.token_ids) for c in engine.completions[request].values()) == [12, 12, 12]
    assert [event for event, _ in events].count("handed") == 1
    events.clear()
    rare = engine.llm.get_tokenizer().eos_token_id  # one that none of them would sample
    request = engine.add(prompt, handing(engine, prompt, rare, **sampling), max_tokens=1, **sampling)
    engine.run()  # the one has ended before the others are looked at
    assert sorted(c.token_ids[0] == rare for c in engine.completions[request].values()) == [False, False, True]
    assert [event for event, _ in events].count("handed") == 1
    engine.expire_leases()
    engine.assert_clean()


def test_a_prompt_that_is_all_in_the_prefix_cache(
    engine: Engine, prompts: list[list[int]], other: int, events: Events
) -> None:
    """A lookup for the token after it may find even its last block: nothing is left to fetch, and P is told."""
    block = engine.scheduler.block_size
    prompt = prompts[1][: len(prompts[1]) // block * block]
    answer = exact(engine, prompt, other)  # and now its blocks are there
    params = handing(engine, prompt, other)
    events.clear()
    assert engine.answer(prompt, params, lynx_method="bf16", max_tokens=24).tokens == answer
    assert [event for event, _ in events if event in ("handed", "pull", "fallback")] == ["handed"]
    engine.assert_clean()
