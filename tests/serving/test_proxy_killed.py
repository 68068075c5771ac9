"""The proxy is killed amid streams: P and D let go of everything and serve on."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from lynx_ascend.demo.client import Completion, CompletionError, complete
from lynx_ascend.demo.cluster import Cluster, ClusterOptions
from lynx_ascend.demo.services import Service, wait_until
from lynx_ascend.demo.trace import read_events
from tests.serving.test_killed import kill

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MAX_TOKENS, TIMEOUT_S = 16, 120.0
METRIC = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|lynx_staging_bytes)\b[^ ]* (\S+)$", re.M
)


@dataclass(frozen=True)
class Level:
    """What a server holds while it has nothing to do."""

    sockets: int
    metrics: dict[str, float]


@pytest.fixture(scope="module")
def two_prompts(model_path: str) -> list[list[int]]:
    from lynx_ascend.evaluation.model import load_tokenizer
    from lynx_ascend.evaluation.prompts import prompts

    return prompts(load_tokenizer(Path(model_path)), 2, [850, 1000])


@pytest.fixture(scope="module")
def cluster(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("proxy")
    options = ClusterOptions(
        model=Path(model_path),
        logs=folder / "logs",
        dtype="float32",
        trace_dir=folder / "trace",
        max_model_len=2048,
        log_stats=True,
        # Every request that can is to draft.
        extra={"method": "lynx", "window": "fixed", "health": False, "request_bandwidth": True, "lease": 5.0},
        # Without a prefix cache no answer of D can come from an earlier one's KV.
        decode_args=("--no-enable-prefix-caching",),
    )
    with Cluster(options) as cluster:
        yield cluster


def sockets(service: Service) -> int:
    """Open sockets of a server's processes."""
    assert service.process is not None
    group, count = service.process.pid, 0
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.getpgid(int(process.name)) == group:
                count += sum(os.readlink(fd).startswith("socket:") for fd in (process / "fd").iterdir())
        except OSError:  # it, or the descriptor, is gone
            continue
    return count


def metrics(url: str) -> dict[str, float]:
    """Requests running and waiting, and the share of the KV cache in use."""
    text = httpx.get(f"{url}/metrics", timeout=10.0).text
    found = METRIC.findall(text)
    values: Counter[str] = Counter()
    for name, value in found:
        values[name] += float(value)
    assert {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"} <= values.keys(), text[:2000]
    return dict(values)


def level(url: str, service: Service) -> Level:
    return Level(sockets(service), metrics(url))


def assert_back(cluster: Cluster, before: dict[str, int]) -> dict[str, Any]:
    """Both servers hold nothing, and no more sockets than before, within a minute."""
    deadline = time.monotonic() + 60.0
    while True:
        now = {
            "prefill": level(cluster.prefill_url, cluster.prefill),
            "decode": level(cluster.decode_url, cluster.decode),
        }
        if all(level.sockets <= before[name] and not any(level.metrics.values()) for name, level in now.items()):
            return now
        assert time.monotonic() < deadline, f"sockets before {before}, now {now}"
        time.sleep(0.5)


def ask(url: str, prompt: list[int], xargs: dict[str, Any] | None = None, **body: Any) -> Completion:
    return complete(url, prompt, max_tokens=MAX_TOKENS, xargs=xargs, timeout=TIMEOUT_S, **{"ignore_eos": True, **body})


def test_proxy_killed_amid_streams(cluster: Cluster, two_prompts: list[list[int]]) -> None:
    """P and D free everything of its requests at once, and serve on."""
    prompt, other = two_prompts
    expected = ask(cluster.decode_url, prompt).token_ids
    ask(cluster.url, prompt)  # so that P and D are connected
    before = {name: sockets(service) for name, service in (("prefill", cluster.prefill), ("decode", cluster.decode))}
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
