"""A server is killed amid transfers: its peer answers or says what is wrong, frees everything, and serves on.

Real servers, addressed directly in the proxy's two steps: what a proxy does about a dead server is its own business.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import pytest

from lynx_ascend.demo.client import CompletionError, complete
from lynx_ascend.demo.cluster import Cluster, ClusterOptions
from lynx_ascend.demo.services import Service, wait_until
from lynx_ascend.demo.trace import Event, read_events

MAX_TOKENS = 32
DEADLINE_S = 60.0  # of whatever a test waits for
# 47 blocks that can be used, 32 tokens each: a long and a short prompt together, but no two long ones.
LONG, SHORT, BLOCKS, MAX_MODEL_LEN = 1000, 400, 48, 1408

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def long_short_other(model_path: str) -> list[list[int]]:
    """Three prompts: LONG, SHORT and again LONG tokens."""
    from lynx_ascend.evaluation.model import load_tokenizer
    from lynx_ascend.evaluation.prompts import prompts

    return prompts(load_tokenizer(Path(model_path)), 3, [LONG, SHORT, LONG])


@pytest.fixture
def cluster(request: pytest.FixtureRequest, model_path: str, tmp_path: Path) -> Iterator[Cluster]:
    """Servers whose decode side has the kv_load_failure_policy that the test is parametrised with."""
    transfer = {
        "kv_connector": "LynxConnector",
        "kv_role": "kv_consumer",
        "kv_load_failure_policy": request.param,
        "kv_connector_extra_config": {
            "method": "lynx",
            "request_bandwidth": True,
            "trace_dir": str(tmp_path / "trace"),
        },
    }
    options = ClusterOptions(
        model=Path(model_path),
        logs=tmp_path / "logs",
        dtype="float32",
        trace_dir=tmp_path / "trace",
        max_model_len=MAX_MODEL_LEN,
        extra={"request_bandwidth": True},
        prefill_args=("--num-gpu-blocks-override", str(BLOCKS)),
        # The last of two equal options counts. Without a prefix cache no answer can come from an earlier one's KV.
        decode_args=("--kv-transfer-config", json.dumps(transfer), "--no-enable-prefix-caching"),
    )
    with Cluster(options) as cluster:
        yield cluster
    for service in cluster.services:
        wait_for_the_end_of(service)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(4)
    yield pool
    pool.shutdown(wait=False, cancel_futures=True)


def soon() -> float:
    return time.monotonic() + DEADLINE_S


def wait_for_the_end_of(service: Service) -> None:
    """Until no process of its group is left."""
    assert service.process is not None
    deadline = soon()
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(service.process.pid, 0)
            assert time.monotonic() < deadline, f"{service.name} left processes"
            time.sleep(0.05)


def kill(service: Service) -> None:
    """SIGKILL to the whole process group: API server, engine and worker at once, none of them can say good-bye."""
    assert service.process is not None
    os.killpg(service.process.pid, signal.SIGKILL)
    service.process.wait(DEADLINE_S)
    wait_for_the_end_of(service)


def ordinary(url: str, prompt: Sequence[int]) -> list[int]:
    return complete(url, prompt, max_tokens=MAX_TOKENS, timeout=DEADLINE_S, ignore_eos=True).token_ids


def prefill(cluster: Cluster, prompt: Sequence[int]) -> dict[str, Any]:
    """The first step of a proxy; returns the kv_transfer_params for the second."""
    body = {
        "model": "model",
        "prompt": list(prompt),
        "max_tokens": 1,
        "temperature": 0,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    answer = httpx.post(f"{cluster.prefill_url}/v1/completions", json=body, timeout=DEADLINE_S)
    params: dict[str, Any] = answer.raise_for_status().json()["kv_transfer_params"]
    assert params["remote_tokens"] == len(prompt)
    return params


def decode(cluster: Cluster, prompt: Sequence[int], params: dict[str, Any], bandwidth: float) -> list[int]:
    """The second step, on a link of `bandwidth` Mbit/s."""
    xargs = {"lynx_bandwidth": bandwidth}
    return complete(
        cluster.decode_url,
        prompt,
        max_tokens=MAX_TOKENS,
        xargs=xargs,
        timeout=DEADLINE_S,
        ignore_eos=True,
        kv_transfer_params=params,
    ).token_ids


def watch(cluster: Cluster, params: dict[str, Any]) -> Callable[[str], list[Event]]:
    """Looks up the trace of the transfer that `params` began: the events of one name, on both servers."""
    source = params["remote_request_id"]
    folder = cluster.options.trace_dir
    assert folder is not None

    def events(name: str) -> list[Event]:
        known = read_events(folder)
        ids = {source, *(event["request"] for event in known if event.get("source") == source)}
        return [event for event in known if event["event"] == name and event["request"] in ids]

    return events


def outcome(future: Future[list[int]]) -> list[int] | str:
    """The tokens that the client got in time, or the error's text."""
    try:
        return future.result(DEADLINE_S)
    except CompletionError as error:
        return str(error)


@pytest.mark.parametrize("cluster", ["fail", "recompute"], indirect=True)
def test_prefill_server_killed(
    cluster: Cluster, long_short_other: list[list[int]], pool: ThreadPoolExecutor, request: pytest.FixtureRequest
) -> None:
    """One transfer is in its Anchor stream, another in its Residual stream with its request drafting."""
    asked = long_short_other[:2]
    before = [ordinary(cluster.decode_url, prompt) for prompt in asked]
    params = [prefill(cluster, prompt) for prompt in asked]
    anchor, residual = (watch(cluster, given) for given in params)
    # An Anchor stream takes some 27 s and 4 s.
    answers = [
        pool.submit(decode, cluster, prompt, given, bandwidth)
        for prompt, given, bandwidth in zip(asked, params, (2, 6), strict=True)
    ]
    servers = [cluster.prefill, cluster.decode]
    wait_until(lambda: len(residual("draft")) >= 3, servers, "no drafts", soon())
    assert anchor("encoded") and not any(answer.done() for answer in answers)

    kill(cluster.prefill)
    outcomes = [outcome(answer) for answer in answers]

    assert not anchor("received"), "the Anchor stream had ended before the kill"
    assert [event["stream"] for event in residual("received")] == ["anchor"], "the kill was not amid the Residual"
    cluster.decode.check()
    if request.node.callspec.params["cluster"] == "recompute":
        assert outcomes == before
        assert anchor("fallback") and residual("fallback")
    else:
        assert all(isinstance(text, str) and "error" in text.lower() for text in outcomes), outcomes
        log = cluster.decode.log.read_text()
        for given in params:
            assert f"KV transfer from {given['remote_host']}:{given['remote_port']} failed" in log
    assert [ordinary(cluster.decode_url, prompt) for prompt in asked] == before


@pytest.mark.parametrize("cluster", ["fail"], indirect=True)
def test_decode_server_killed(cluster: Cluster, long_short_other: list[list[int]], pool: ThreadPoolExecutor) -> None:
    """The prefill server gets back the blocks of a prompt that nobody takes any more, at once and not by a lease."""
    prompt, _, other = long_short_other
    expected = ordinary(cluster.decode_url, other)
    params = prefill(cluster, prompt)
    events = watch(cluster, params)
    # The sender holds the blocks until all but 4 MiB of the Anchor stream is on the link: for some 45 s.
    broken = pool.submit(decode, cluster, prompt, params, 0.5)
    wait_until(lambda: bool(events("encoded")), [cluster.prefill, cluster.decode], "nothing encoded", soon())
    waiting = pool.submit(ordinary, cluster.prefill_url, other)
    assert not wait([waiting], 10.0).done, "the other prompt found room beside the one that is held"

    kill(cluster.decode)

    assert waiting.result(25.0) == expected
    with pytest.raises(CompletionError):
        broken.result(DEADLINE_S)
    assert not events("received")
    cluster.prefill.check()
    assert ordinary(cluster.prefill_url, prompt)
