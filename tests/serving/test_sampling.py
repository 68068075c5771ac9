"""Sampling parameters: those that draft answer as without drafts, and those that cannot do not draft."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lynx_ascend.serving import drafting

pytestmark = pytest.mark.engine
SLOW = 4  # Mbit/s, on which the Residual takes longer than a short draft, on a busy machine too
PENALTIES = {"presence_penalty": 0.8, "frequency_penalty": 0.5, "repetition_penalty": 1.2}


@pytest.fixture(scope="module")
def prompt(prompts: list[list[int]]) -> list[int]:
    return prompts[0]


@pytest.fixture
def verified(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was drafted and accepted, by verification."""
    seen: list[dict[str, Any]] = []
    trace = engine.half._trace

    def watch(event: str, request_id: str, **fields: Any) -> None:
        if event == "verified":
            seen.append(fields)
        trace(event, request_id, **fields)

    monkeypatch.setattr(engine.half, "_trace", watch)
    return seen


Both = Callable[..., tuple[Any, Any]]


@pytest.fixture
def both(engine: Any, prompt: list[int], verified: list[dict[str, Any]]) -> Both:
    """(with drafts, without): the same request over the same 8-bit cache."""

    def both(draft_cap: int = 16, **sampling: Any) -> tuple[Any, Any]:
        before = len(verified)
        options = {"lynx_bandwidth": SLOW, "lynx_draft_cap": draft_cap}
        drafted = engine.remote(prompt, **options, **sampling)
        assert len(verified) == before + 1 and verified[-1]["drafted"] > 0, "nothing was drafted"
        plain = engine.remote(prompt, lynx_draft_cap=0, **sampling)
        assert len(verified) == before + 1
        engine.assert_clean()
        return drafted, plain

    return both


@pytest.mark.parametrize(
    "penalties",
    [
        *({name: value} for name, value in PENALTIES.items()),
        pytest.param(PENALTIES, marks=[pytest.mark.portable, pytest.mark.npu]),
        {**PENALTIES, "min_tokens": 24, "logprobs": 1},
    ],
    ids="+".join,
)
def test_penalties(both: Both, verified: list[dict[str, Any]], penalties: dict[str, float]) -> None:
    drafted, plain = both(max_tokens=24, **penalties)
    assert drafted.tokens == plain.tokens
    assert verified[-1]["accepted"] >= 1
    ordinary, _ = both(max_tokens=24)
    assert plain.tokens != ordinary.tokens, "these penalties change nothing"


@pytest.mark.portable
def test_bad_words(both: Both, engine: Any, verified: list[dict[str, Any]]) -> None:
    """Of one token and of several, which depend on the drafts before them."""
    _, plain = both(max_tokens=16)
    decode = engine.llm.get_tokenizer().decode
    words = [decode(plain.tokens[2:3]).strip(), decode(plain.tokens[6:8]).strip()]
    drafted, without = both(max_tokens=16, bad_words=words)
    assert drafted.tokens == without.tokens != plain.tokens
    assert verified[-1]["accepted"] >= 1


@pytest.mark.portable
def test_logprobs_are_those_of_the_verified_tokens(both: Both, verified: list[dict[str, Any]]) -> None:
    drafted, plain = both(max_tokens=24, logprobs=4)
    assert verified[-1]["accepted"] >= 1
    assert_same_logprobs(drafted, plain, 24)
    # Where the answer ends among the accepted drafts.
    stop = plain.tokens[3]
    drafted, plain = both(max_tokens=24, logprobs=0, stop_token_ids=[stop])
    assert_same_logprobs(drafted, plain, plain.tokens.index(stop) + 1)


def assert_same_logprobs(drafted: Any, plain: Any, length: int) -> None:
    assert drafted.tokens == plain.tokens
    assert len(plain.tokens) == len(drafted.logprobs) == len(plain.logprobs) == length
    for token, mine, theirs in zip(plain.tokens, drafted.logprobs, plain.logprobs, strict=True):
        assert token in mine and mine.keys() == theirs.keys()
        for key, wanted in theirs.items():
            assert mine[key].rank == wanted.rank
            assert mine[key].logprob == pytest.approx(wanted.logprob, abs=1e-4)


def test_logprobs_beside_requests_with_and_without(
    engine: Any, prompt: list[int], prompts: list[list[int]], verified: list[dict[str, Any]]
) -> None:
    """The rows of the verify pass's batch keep their own."""
    plain = engine.remote(prompt, lynx_draft_cap=0, max_tokens=24, logprobs=2)
    sampling = [{"logprobs": 5}, {}]
    alone = [engine.answer(prompts[1][:90], max_tokens=100, ignore_eos=True, **own) for own in sampling]
    drafting = engine.add(prompt, engine.prefill(prompt), lynx_bandwidth=SLOW, max_tokens=24, logprobs=2)
    engine.step_until(lambda: engine.state(drafting) == "DRAFTING", "drafting")
    others = [engine.add(prompts[1][:90], max_tokens=100, ignore_eos=True, **own) for own in sampling]
    engine.step_until(lambda: engine.answers[drafting].tokens, "the verified tokens")
    assert not any(engine.answers[other].finish_reason for other in others)
    lynx, with_logprobs, without = engine.run(drafting, *others)
    assert verified[-1]["drafted"] > 0
    assert_same_logprobs(lynx, plain, len(plain.tokens))
    assert_same_logprobs(with_logprobs, alone[0], 100)
    assert without.tokens == alone[1].tokens and without.logprobs is None
    engine.assert_clean()


@pytest.mark.portable
def test_the_token_after_the_drafts_may_end_the_answer_where_they_are_min_tokens(
    both: Both, verified: list[dict[str, Any]]
) -> None:
    _, plain = both(max_tokens=16)
    cap = next(i for i in range(2, 16) if plain.tokens[i] not in plain.tokens[:i])
    sampling = {"max_tokens": 16, "stop_token_ids": [plain.tokens[cap]], "min_tokens": 2}
    drafted, without = both(draft_cap=cap, **sampling)
    assert verified[-1] == {"drafted": cap, "accepted": cap}
    assert drafted.tokens == without.tokens == plain.tokens[: cap + 1]


@pytest.mark.parametrize(
    "sampling", [{"stop": True}, {"stop": True, "include_stop_str_in_output": True}, {"stop": True, **PENALTIES}]
)
def test_stop_strings(both: Both, sampling: dict[str, Any]) -> None:
    parameters = {name: value for name, value in sampling.items() if name != "stop"}
    _, plain = both(max_tokens=30, **parameters)
    word = plain.text.split()[4]
    drafted, without = both(max_tokens=30, **{**parameters, "stop": [word]})
    assert drafted.text == without.text != plain.text
    assert drafted.finish_reason == without.finish_reason == "stop"


@pytest.mark.parametrize("seed", [pytest.param(7, marks=[pytest.mark.portable, pytest.mark.npu]), None])
def test_random_requests_draft(both: Both, engine: Any, seed: int | None) -> None:
    """Their law is tested below; here that they end, and leave no row behind."""
    drafted, plain = both(max_tokens=24, temperature=0.8, top_p=0.9, top_k=40, seed=seed, ignore_eos=True)
    assert len(drafted.tokens) == len(plain.tokens) == 24
    assert rows_held(engine) == 0


def rows_held(engine: Any) -> int:
    """Rows of draft distributions on the worker, after a step in which nothing drafts."""
    engine.answer([1, 2, 3], max_tokens=1)
    return len(engine.core.model_executor.driver_worker.worker.model_runner._lynx_draft_probs)


@pytest.mark.portable
def test_an_abort_while_drafting_leaves_no_row_behind(engine: Any, prompt: list[int]) -> None:
    # A draft that samples EOS would be complete.
    options = {"lynx_bandwidth": SLOW / 4, "temperature": 1.0, "ignore_eos": True}
    request = engine.add(prompt, engine.prefill(prompt), **options)
    engine.step_until(lambda: engine.state(request) == "DRAFTING", "drafting")
    kept = engine.core.model_executor.driver_worker.worker.model_runner._lynx_draft_probs
    engine.step_until(lambda: len(kept) >= 3, "three rows")
    engine.abort(request)
    assert rows_held(engine) == 0
    engine.assert_clean()


@pytest.mark.timeout(600)
def test_sampled_answers_are_distributed_as_without_drafts() -> None:
    """Its own process: a process has one engine, and this one's model is made for it."""
    command = [sys.executable, "-m", "tests.serving.random_sampling", "--requests", "600"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])["with rows"]
    assert result["verified"] >= 0.95 * result["requests"]
    assert 0.5 < result["accepted"] < 0.8 * result["drafted"], "too few rejections, or too many, to tell anything"
    for group, test in result["answers"].items():
        assert test["degrees"] >= 4
        assert test["p"] > 1e-4, group
    assert min(test["p"] for test in result["drafts"].values()) < 1e-3, "even the drafts look right"


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param({"logit_bias": {28: -4.0, 198: 3.0}}, marks=pytest.mark.portable),
        {"allowed_token_ids": list(range(100, 3000))},
        {"temperature": 0.8, "min_p": 0.2, "seed": 7},
        {"structured_outputs": "regex"},
        {"custom processor": True},
    ],
    ids=lambda sampling: next(iter(sampling)),
)
def test_what_does_not_draft_is_decoded_ordinarily(
    engine: Any, prompt: list[int], sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "structured_outputs" in sampling:
        from vllm.sampling_params import StructuredOutputsParams

        sampling = {"structured_outputs": StructuredOutputsParams(regex="[a-z ]{20,40}")}
    if "custom processor" in sampling:  # what the connector passes on where engine_may_draft says no
        monkeypatch.setattr(engine.half, "_drafting", False)
        sampling = {}
    request = engine.add(prompt, engine.prefill(prompt, **sampling), lynx_bandwidth=SLOW, max_tokens=12, **sampling)
    seen = set()
    while not engine.answers[request].finish_reason:
        seen.add(engine.state(request))
        engine.step()
    assert seen <= {"WAITING", "HANDED", None}
    plain = engine.remote(prompt, lynx_draft_cap=0, max_tokens=12, **sampling)
    assert engine.answers[request].tokens == plain.tokens
    engine.assert_clean()


def test_engines_with_logits_processors_of_their_own_do_not_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(processors: list[str] | None) -> Any:
        return SimpleNamespace(model_config=SimpleNamespace(logits_processors=processors))

    assert drafting.engine_may_draft(config(None))
    assert not drafting.engine_may_draft(config(["module:Processor"]))
    monkeypatch.setattr(drafting, "entry_points", lambda group: [object()] if group == "vllm.logits_processors" else [])
    assert not drafting.engine_may_draft(config(None))


@pytest.mark.parametrize("allows", [drafting.may_draft, drafting.takes_first_token])
def test_parameters_that_nobody_has_thought_of(allows: Callable[[Any], bool]) -> None:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=9, temperature=0.5, stop=["x"])
    request = Request("r", [1, 2, 3], params, None)
    assert allows(request)
    params.thinking_token_budget = 5
    assert not allows(request)
    params.thinking_token_budget = None
    request.resumable = True
    assert not allows(request)


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_the_children_of_one_request(
    engine: Any, prompt: list[int], verified: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """n = 3: one fetches the prompt and drafts, the others compute it; whatever a failed transfer would lead to."""
    monkeypatch.setattr(engine.scheduler, "recompute_kv_load_failures", policy == "recompute")
    options = {"max_tokens": 12, "temperature": 0.7, "ignore_eos": True, "lynx_bandwidth": SLOW}
    request = engine.add(prompt, engine.prefill(prompt), n=3, **options)
    engine.run()
    assert sorted(engine.completions[request]) == [0, 1, 2]
    assert [(len(c.token_ids), c.finish_reason) for c in engine.completions[request].values()] == [(12, "length")] * 3
    assert len(verified) == 1 and verified[0]["drafted"] > 0
    engine.assert_clean()
