"""Sixty requests of every kind at once, through real servers and the proxy; then the proxy is killed amid a stream."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lynx_ascend.demo.client import Completion, CompletionError, complete
from lynx_ascend.demo.cluster import Cluster, ClusterOptions
from lynx_ascend.demo.services import wait_until
from lynx_ascend.demo.trace import read_events
from tests.serving.levels import assert_back, open_sockets
from tests.serving.test_killed import kill

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PROMPTS, REQUESTS, MAX_TOKENS, TIMEOUT_S = 10, 60, 16, 400.0
ARRIVALS_A_SECOND = 2.0
CHOICES = ["yes", "no", "perhaps"]
# Out of sixty, in random order.
KINDS = ["lynx"] * 34 + ["aborted"] * 6 + ["ordinary"] * 6 + ["random"] * 7 + ["structured"] * 7


@pytest.fixture(scope="module")
def asked(model_path: str) -> list[list[int]]:
    from lynx_ascend.evaluation.model import load_tokenizer
    from lynx_ascend.evaluation.prompts import prompts

    lengths = [200 + i * 1300 // (PROMPTS - 1) for i in range(PROMPTS)]
    return prompts(load_tokenizer(Path(model_path)), PROMPTS, lengths)


@pytest.fixture(scope="module")
def cluster(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("concurrent")
    options = ClusterOptions(
        model=Path(model_path),
        logs=folder / "logs",
        dtype="float32",
        trace_dir=folder / "trace",
        max_model_len=2048,
        cache_gib=3,  # room for all at once: a prompt that waits for blocks on D longer than its lease is lost
        log_stats=True,
        # Every request that can is to draft, however long P's one core takes to get round to it.
        extra={
            "method": "lynx",
            "window": "fixed",
            "health": False,
            "request_bandwidth": True,
            "lease": 20.0,
            "stall": 300.0,
            "deadline": 300.0,
        },
        # Without a prefix cache no answer of D can come from an earlier one's KV.
        decode_args=("--no-enable-prefix-caching",),
    )
    with Cluster(options) as cluster:
        yield cluster


def ask(url: str, prompt: list[int], xargs: dict[str, Any] | None = None, **body: Any) -> Completion:
    return complete(url, prompt, max_tokens=MAX_TOKENS, xargs=xargs, timeout=TIMEOUT_S, **{"ignore_eos": True, **body})


def abort(url: str, prompt: list[int], xargs: dict[str, Any], after: float | int) -> None:
    """A client that goes away: after so many seconds, or (an int) after so many events of its stream."""
    body = {
        "model": "model", "prompt": prompt, "max_tokens": 200, "temperature": 0, "stream": True, "ignore_eos": True,
        "vllm_xargs": xargs,
    }  # fmt: skip
    timeout = httpx.Timeout(TIMEOUT_S, read=after if isinstance(after, float) else TIMEOUT_S)
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=timeout) as response:
            for i, _ in enumerate(line for line in response.iter_lines() if line):
                if isinstance(after, int) and i + 1 >= after:
                    return
    except httpx.ReadTimeout:
        return
    raise AssertionError("the answer was complete before its client went away")


def test_sixty_requests_at_once(cluster: Cluster, asked: list[list[int]], record_property: Any) -> None:
    rng = random.Random(60)
    # The 8-bit answers: no drafts, one at a time. And the ordinary ones, of D alone.
    eight = [ask(cluster.url, prompt, {"lynx_draft_cap": 0}).token_ids for prompt in asked]
    plain = [ask(cluster.decode_url, prompt).token_ids for prompt in asked[:2]]
    assert all(len(tokens) == MAX_TOKENS for tokens in eight)
    before = open_sockets(cluster)

    kinds = KINDS.copy()
    rng.shuffle(kinds)
    assert len(kinds) == REQUESTS
    began = time.monotonic()
    with ThreadPoolExecutor(REQUESTS) as pool:
        answers: list[tuple[str, int, Future[Any]]] = []
        for i, kind in enumerate(kinds):
            time.sleep(rng.expovariate(ARRIVALS_A_SECOND))
            which = i % (len(plain) if kind == "ordinary" else PROMPTS)
            link = {"lynx_bandwidth": rng.choice([20, 40, 80, 200])}
            answers.append((kind, which, pool.submit(request(kind, rng), cluster, asked[which], link)))
        done = Counter(kind for kind, which, answer in answers if right(kind, answer, which, eight, plain))
    took = time.monotonic() - began
    cluster.check()
    assert done == Counter(KINDS)

    events = read_events(cluster.options.trace_dir or Path())
    assert not [event for event in events if event["event"] == "fallback"]
    verified = [event for event in events if event["event"] == "verified"]
    drafted, accepted = (sum(event[name] for event in verified) for name in ("drafted", "accepted"))
    assert drafted > 50 and accepted > 20, "so few drafts would prove nothing"
    now = assert_back(cluster, before)
    record_property("seconds", took)
    print(f"{REQUESTS} requests in {took:.1f} s: {drafted} drafted, {accepted} accepted; {before} sockets, then {now}")


def request(kind: str, rng: random.Random) -> Callable[[Cluster, list[int], dict[str, Any]], Any]:
    after = rng.choice([rng.uniform(0.2, 2.0), rng.randint(1, 20)])
    match kind:
        case "lynx":
            return lambda cluster, prompt, link: ask(cluster.url, prompt, link)
        case "aborted":
            return lambda cluster, prompt, link: abort(cluster.url, prompt, link, after)
        case "ordinary":
            return lambda cluster, prompt, link: ask(cluster.decode_url, prompt)
        case "random":
            return lambda cluster, prompt, link: ask(cluster.url, prompt, link, temperature=0.9, top_p=0.95)
        case _:
            grammar = {"structured_outputs": {"choice": CHOICES}, "ignore_eos": False}
            return lambda cluster, prompt, link: ask(cluster.url, prompt, link, **grammar)


def right(kind: str, answer: Future[Any], which: int, eight: list[list[int]], plain: list[list[int]]) -> bool:
    got = answer.result(TIMEOUT_S)
    match kind:
        case "lynx":
            assert got.token_ids == eight[which], f"prompt {which}"
        case "ordinary":
            assert got.token_ids == plain[which], f"prompt {which}"
        case "random":
            assert len(got.token_ids) == MAX_TOKENS and got.finish_reason == "length"
        case "structured":
            assert got.text in CHOICES, got.text
    return True


def test_proxy_killed_amid_streams(cluster: Cluster, asked: list[list[int]]) -> None:
    """P and D free everything of its requests at once, and serve on."""
    prompt, other = asked[5], asked[6]
    expected = ask(cluster.decode_url, prompt).token_ids
    ask(cluster.url, prompt)  # so that P and D are connected
    before = open_sockets(cluster)
    trace = cluster.options.trace_dir or Path()
    with ThreadPoolExecutor(2) as pool:
        drafting_before = sum(event["event"] == "draft" for event in read_events(trace))
        # One drafts for some ten seconds, the other has its Anchor stream under way for as long.
        slow = [
            pool.submit(ask, cluster.url, prompt, {"lynx_bandwidth": 5}),
            pool.submit(ask, cluster.url, other, {"lynx_bandwidth": 1}),
        ]

        def drafts() -> bool:
            return sum(event["event"] == "draft" for event in read_events(trace)) >= drafting_before + 3

        wait_until(drafts, cluster.services, "no drafts", time.monotonic() + 60.0)
        assert not any(answer.done() for answer in slow)
        kill(cluster.proxy)
        killed = time.monotonic()
        for answer in slow:
            with pytest.raises(CompletionError):
                answer.result(10.0)
    assert_back(cluster, before)
    print(f"free {time.monotonic() - killed:.1f} s after the kill")
    for service in (cluster.prefill, cluster.decode):
        service.check()
    assert ask(cluster.decode_url, prompt).token_ids == expected
