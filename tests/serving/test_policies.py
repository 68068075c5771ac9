"""The policies at work: how many drafts a request makes, and that no answer depends on it."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lynx_ascend.serving import consumer
from lynx_ascend.serving.metadata import LynxWorkerMetadata, Progress
from lynx_ascend.serving.options import LynxOptions, RequestOptions
from lynx_ascend.serving.policy import LINKS, Policy
from lynx_ascend.speculation.break_even import KVCosts
from lynx_ascend.speculation.decoder import SpecDecoder
from lynx_ascend.speculation.health import Health
from lynx_ascend.speculation.steps import StepTimes

STEP_S = 0.05  # of the fake clock
SLOW = 4  # Mbit/s: the Residual of 300 tokens takes more than three seconds


class Clock:
    """STEP_S later each time it is asked."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        self.at += STEP_S
        return self.at


@pytest.fixture
def policy(engine: Any, prompts: list[list[int]]) -> Iterator[Policy]:
    """A fresh one for the engine, on a fake clock; it knows of this engine what its worker measured at start."""
    engine.answer(prompts[0][:9], max_tokens=1)
    engine.assert_clean()
    before, engine.half.policy = engine.half.policy, Policy(LynxOptions(), Clock())
    engine.half.policy.kv = before.kv
    yield engine.half.policy
    engine.assert_clean()
    engine.half.policy = before


@pytest.fixture
def seen(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The scheduler's trace."""
    events: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(engine.half, "_trace", lambda event, request_id, **fields: events.append((event, fields)))
    return events


def drafted(seen: list[tuple[str, dict[str, Any]]]) -> list[int]:
    """Drafts of each verified request."""
    return [fields["drafted"] for event, fields in seen if event == "verified"]


def skips(seen: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [fields["reason"] for event, fields in seen if event == "skip"]


@pytest.fixture(scope="module")
def plain(engine: Any, prompts: list[list[int]]) -> list[int]:
    """The 8-bit answer to the first prompt, without drafts."""
    tokens: list[int] = engine.answer(prompts[0], engine.prefill(prompts[0]), lynx_draft_cap=0, max_tokens=40).tokens
    return tokens


def answer(engine: Any, prompt: list[int], **options: Any) -> list[int]:
    options = {"lynx_window": "adaptive", **options}
    tokens: list[int] = engine.answer(prompt, engine.prefill(prompt), max_tokens=40, **options).tokens
    return tokens


def rejected_after(policy: Policy, kept: int, price: float = 0.4) -> None:
    """The policy has seen that drafts beyond the first `kept` do not hold, and that one costs `price` of a step."""
    policy.times.on_verify(1, policy.times.costs.tpot + price * STEP_S)
    for _ in range(100):
        policy.curve.observe(kept, rejected=True)


# On the real engine.


@pytest.mark.engine
def test_slow_link_drafts_more(
    engine: Any, prompts: list[list[int]], plain: list[int], policy: Policy, seen: list[Any]
) -> None:
    # Far apart: on a busy machine a step may take several times as long. The slow one first: many drafts tell what one
    # costs the verify pass, a single one may say anything.
    for bandwidth in (SLOW, 2000):
        assert answer(engine, prompts[0], lynx_bandwidth=bandwidth) == plain
    slow, fast = drafted(seen)
    assert fast < slow
    assert policy.times.costs.tpot > 0.9 * STEP_S  # of the fake clock, and above the first guess


@pytest.mark.engine
@pytest.mark.portable
def test_stopped_draft_is_held_then_verified(
    engine: Any, prompts: list[list[int]], plain: list[int], policy: Policy, seen: list[Any]
) -> None:
    rejected_after(policy, kept=3)
    prompt, reports = prompts[0], []
    options = {"lynx_bandwidth": SLOW, "lynx_window": "adaptive", "max_tokens": 40}
    request = engine.add(prompt, engine.prefill(prompt), **options)
    other = engine.add(prompts[1][:100], max_tokens=10)
    engine.step_until(lambda: engine.state(request) == "DRAFTING", "drafting")
    (remote,) = engine.half.remotes.values()
    while engine.state(request) == "DRAFTING":
        engine.step()
        reports.append(remote.progress)
        assert len(remote.decoder.drafts) <= 3
    assert engine.run(request, other)[0].tokens == plain
    assert drafted(seen) == [3]
    assert remote.waited and policy.curve.survival[0] > 0.9
    # The worker's reports: bytes of the Residual count down to none.
    assert sum(earlier.left > later.left for earlier, later in itertools.pairwise(reports)) >= 3
    assert reports[-1].left == 0 and all(report.seconds > 0 and report.age >= 0 for report in reports)


@pytest.mark.engine
@pytest.mark.portable
def test_where_no_draft_is_worth_it_the_request_waits(
    engine: Any, prompts: list[list[int]], plain: list[int], policy: Policy, seen: list[Any]
) -> None:
    rejected_after(policy, kept=0, price=30.0)
    before = policy.curve.survival[0]
    assert answer(engine, prompts[0], lynx_bandwidth=SLOW) == plain
    assert drafted(seen) == [0] and "draft" not in [event for event, _ in seen]
    assert policy.curve.survival[0] > before  # a request that waits lets old counts fade


@pytest.mark.engine
@pytest.mark.portable
def test_fixed_window_drafts_to_its_cap(
    engine: Any, prompts: list[list[int]], plain: list[int], policy: Policy, seen: list[Any]
) -> None:
    rejected_after(policy, kept=0, price=30.0)
    options = {"lynx_bandwidth": SLOW, "lynx_window": "fixed", "lynx_draft_cap": 5}
    assert answer(engine, prompts[0], **options) == plain
    assert drafted(seen) == [5]


@pytest.mark.engine
@pytest.mark.portable
def test_bad_drafts_end_drafting_and_good_probes_bring_it_back(
    engine: Any,
    prompts: list[list[int]],
    plain: list[int],
    policy: Policy,
    seen: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy.health = Health(sample=2, interval=1000.0)
    # How late a busy machine looks at what has arrived is not this test's matter.
    told = functools.partial(Policy.on_verified, policy)
    monkeypatch.setattr(policy, "on_verified", lambda d, waited, overrun: told(d, waited=waited, overrun=0.0))
    options = {"lynx_bandwidth": SLOW, "lynx_window": "fixed", "lynx_draft_cap": 6}

    def verified() -> list[int]:
        """Drafts of the next request, if it is one that drafts."""
        seen.clear()
        assert answer(engine, prompts[0], **options) == plain
        return drafted(seen)

    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, "vllm.lynx_ascend.policy"):
        # Anchors that say nothing: the drafts are those of whatever the blocks held, the verified tokens are right.
        write_page = consumer.write_page
        broken.setattr(consumer, "write_page", lambda a, r, *args, **kw: r and write_page(a, r, *args, **kw))
        policy.times.on_verify(1, 4 * STEP_S)
        assert [verified(), verified()] == [[6], [6]]
        assert not policy.health.drafting
        assert [verified(), skips(seen)] == [[], ["health"]]
        (alarm,) = [record.getMessage() for record in caplog.records]
        assert "does not pay" in alarm and "the last 2 requests" in alarm
    policy.times, policy.now.at = StepTimes(STEP_S), policy.now.at + 1000  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, "vllm.lynx_ascend.policy"):
        caplog.clear()
        assert [verified(), verified()] == [[6], [6]]  # probes
        assert policy.health.drafting
        (news,) = [record.getMessage() for record in caplog.records]
        assert "pays again" in news
        assert verified() == [6]


@pytest.mark.engine
@pytest.mark.portable
def test_break_even_chooses_the_method(
    engine: Any, prompts: list[list[int]], plain: list[int], policy: Policy, seen: list[Any]
) -> None:
    prompt = prompts[0]
    exact = engine.answer(prompt, max_tokens=40).tokens

    def pulled(**options: Any) -> tuple[str, list[int], list[str], list[int]]:
        """Method, drafts if it was one to draft, what was skipped and why, tokens."""
        seen.clear()
        tokens = answer(engine, prompt, lynx_method="auto", **options)
        (method,) = [fields["method"] for event, fields in seen if event == "pull"]
        return method, drafted(seen), skips(seen), tokens

    method, drafts, skipped, tokens = pulled(lynx_bandwidth=SLOW)
    assert (method, skipped, tokens) == ("lynx", [], plain) and drafts[0] > 3
    assert pulled(lynx_bandwidth=300_000) == ("bf16", [], ["break-even: bf16"], exact)
    rejected_after(policy, kept=0, price=30.0)
    assert pulled(lynx_bandwidth=SLOW) == ("lynx", [], ["break-even: 8bit"], plain)  # both streams, no drafts
    # One that cannot draft anyway still skips the codec, or not, by the link.
    assert pulled(lynx_bandwidth=300_000, lynx_draft_cap=0) == ("bf16", [], ["break-even: bf16"], exact)
    assert pulled(lynx_bandwidth=50, lynx_draft_cap=0)[:3] == ("lynx", [], [])


@pytest.mark.engine
def test_the_link_is_measured(engine: Any, prompts: list[list[int]], policy: Policy) -> None:
    answer(engine, prompts[2], lynx_bandwidth=100)
    assert not policy.links  # a link of its own says nothing about the real one
    kv = policy.kv
    assert kv is not None
    for method, a_token in (("bf16", kv.bf16), ("lynx", kv.anchor + kv.residual)):
        policy.links.clear()
        began = time.monotonic()
        answer(engine, prompts[2], lynx_method=method)
        assert 8 * 1200 * a_token / (time.monotonic() - began) < policy.links["127.0.0.1"] < 100e9


@pytest.mark.engine
def test_what_the_worker_says_of_its_cache(
    engine: Any, prompts: list[list[int]], policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = policy.kv
    assert kv is not None and kv.bf16 == pytest.approx(30 * 2 * 192 * 4, rel=0.01)  # SmolLM2-135M, float32
    assert all(1e7 < rate < 1e12 for rate in (kv.encode, kv.anchor_decode, kv.full_decode))
    complete: list[Progress] = []
    monkeypatch.setattr(policy, "on_transfer", lambda host, progress: complete.append(progress))
    answer(engine, prompts[2])
    (progress,) = complete
    assert progress.left == 0 and progress.received == pytest.approx(1200 * (kv.anchor + kv.residual), rel=0.02)


# By themselves.


def test_steps_are_timed_one_behind_the_other() -> None:
    at = iter([0.0, 1.0, 1.5, 2.0, 2.5, 9.0, 9.25])
    policy = Policy(LynxOptions(), lambda: next(at))
    policy.begin_step()  # 0
    policy.begin_step()  # 1: asynchronous, before the first one's output
    assert policy.end_step([1, 1], []) == 1.5
    assert policy.end_step([1, 1], []) == 0.5  # not from 1.0: until 1.5 the device was busy
    policy.begin_step()  # 2.5, then idle
    assert policy.end_step([], []) == 6.5
    assert policy.times.costs.tpot == pytest.approx((0.03 + 1.5 + 0.5) / 3)


def test_which_steps_tell_what() -> None:
    policy = Policy(LynxOptions(), Clock())

    def step(tokens: list[int], drafts: list[int]) -> tuple[float, float]:
        policy.begin_step()
        policy.now()
        policy.end_step(tokens, drafts)
        return policy.times.costs.tpot, policy.times.costs.verify_draft

    before = policy.times.costs.tpot, policy.times.costs.verify_draft
    assert step([], []) == before  # nothing ran
    assert step([300, 1], []) == before  # prefill
    assert step([1, 9, 300], [8]) == before
    assert step([9, 5], [8, 4]) == before  # two at once
    tpot, draft = step([9, 1], [8])
    assert tpot == before[0] and draft == pytest.approx((2 * STEP_S - tpot) / 8)
    assert step([1, 1, 1], [])[0] == pytest.approx((tpot + 2 * STEP_S) / 2)


def test_drafts_in_flight_count() -> None:
    policy = Policy(LynxOptions(), Clock())
    rejected_after(policy, kept=3)
    decoder = SpecDecoder("r", cap=64)
    decoder.on_anchor_ready()
    decoder.on_draft_token(1)

    def more(in_flight: int, window: str = "adaptive", t_residual: float = math.inf) -> bool:
        options = RequestOptions.parse(LynxOptions(window=window), None)
        return policy.drafts_more(decoder, options, t_residual=t_residual, in_flight=in_flight, others=0)

    assert [more(in_flight) for in_flight in range(4)] == [True, True, False, False]
    assert [more(in_flight, "fixed") for in_flight in (2, 62, 63)] == [True, True, False]
    assert not more(0, t_residual=0.0)


def test_progress_is_that_of_the_slowest_worker() -> None:
    fast, slow = Progress(100, 900, 1.0, 0.0), Progress(200, 800, 1.0, 0.0)
    for first, second in ((fast, slow), (slow, fast)):
        both = LynxWorkerMetadata(progress={"a": first}).aggregate(
            LynxWorkerMetadata(progress={"a": second, "b": fast})
        )
        assert both.progress == {"a": slow, "b": fast}
    assert Progress(0, 0, 0.0, 0.0).time_left == 0 and Progress(1, 0, 0.0, 0.0).time_left == math.inf
    assert slow.time_left == pytest.approx(0.25)


def test_health_can_be_turned_off() -> None:
    policy = Policy(LynxOptions(health=False), Clock())
    decoder = SpecDecoder("r", cap=1)
    decoder.on_anchor_ready()
    decoder.on_draft_token(1)
    decoder.on_residual_ready()
    decoder.on_verified([2])
    for _ in range(100):
        policy.on_verified(decoder, waited=False, overrun=9.0)
    assert policy.admits() and policy.curve.survival[0] < 0.5


def test_links_follow_the_last_transfers() -> None:
    policy = Policy(LynxOptions(), Clock())
    policy.on_transfer("a", Progress(0, 1000, 1.0, 0.0))
    policy.on_transfer("b", Progress(0, 7, 0.0, 0.0))  # too short to be timed
    assert policy.links == {"a": 8000.0}
    for _ in range(60):
        policy.on_transfer("a", Progress(0, 2000, 1.0, 0.0))
    assert policy.links["a"] == pytest.approx(16000.0, rel=0.01)


def test_links_of_the_last_hosts_alone_are_kept() -> None:
    """Requests name the hosts."""
    policy = Policy(LynxOptions(), Clock())
    for host in [*map(str, range(LINKS)), "0", "another"]:
        policy.on_transfer(host, Progress(0, 1000, 1.0, 0.0))
    assert len(policy.links) == LINKS and "1" not in policy.links and {"0", "2", "another"} <= policy.links.keys()


def test_choice_rests_on_what_was_measured() -> None:
    policy = Policy(LynxOptions(), Clock())
    options = RequestOptions.parse(LynxOptions(), None)

    def choice(host: str = "a", tokens: int = 1000, cap: int = 64) -> str:
        return policy.choose(host, tokens, 100, cap, options)

    policy.links["a"] = 100e9
    assert choice() == "lynx"  # the worker has not reported
    policy.kv = KVCosts(bf16=50_000, anchor=14_000, residual=12_000, encode=5e9, anchor_decode=9e9, full_decode=6e9)
    assert choice() == "bf16" and choice(host="b") == "lynx"  # nothing known of that one
    policy.links["a"] = 0.1e9
    assert (choice(), choice(cap=0)) == ("lynx", "8bit")


def test_a_price_measured_wrongly_does_not_keep_drafts_away_for_ever() -> None:
    policy = Policy(LynxOptions(), Clock())
    policy.times.on_verify(1, 5.0)
    options = RequestOptions.parse(LynxOptions(), None)

    def drafts() -> bool:
        """Whether the next request makes a draft."""
        decoder = SpecDecoder("r", cap=64)
        decoder.on_anchor_ready()
        if policy.drafts_more(decoder, options, t_residual=math.inf, in_flight=0, others=0):
            return True
        decoder.on_residual_ready()
        decoder.on_verified([1])
        policy.on_verified(decoder, waited=True, overrun=0.0)
        return False

    assert not any(drafts() for _ in range(100))
    assert any(drafts() for _ in range(400))
