"""Lynx between two vllm-ascend servers on emulated NPUs: real processes, TCP between them, kernels on the host twin."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lynx_ascend.demo.client import complete
from lynx_ascend.demo.trace import read_events
from tests.emulated_npu.engine import Server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

MODES = {"--async-scheduling": "enabled", "--no-async-scheduling": "disabled"}
# Lengths of 10 prompts: one to three pages, whole and ragged. They were picked for answers without near-ties: no step's
# two most likely tokens are closer than 0.1 nats.
LENGTHS = [300, 271, 324, 367, 512, 296, 384, 419, 256, 614]
MAX_TOKENS = 20
REQUEST_S = 300.0
RESIDUAL_BITS = 45_700  # of a token on the wire
CHUNK = 128  # tokens of a prompt that P computes at a time: as long as a block, so that a prefix hit changes no chunk


@pytest.fixture(scope="module")
def model() -> str:
    from lynx_ascend.evaluation.model import ensure_model

    return str(ensure_model())


@pytest.fixture(scope="module")
def prompts(model: str) -> list[list[int]]:
    from lynx_ascend.evaluation.model import load_tokenizer
    from lynx_ascend.evaluation.prompts import prompts

    return prompts(load_tokenizer(Path(model)), len(LENGTHS), LENGTHS)


def server(model: str, folder: Path, role: str, *arguments: str) -> Server:
    """A server of one role, float32 on a float16 KV cache.

    The kernels encode 16-bit caches; float32 leaves no ties, which one pass over many tokens may break otherwise than
    one step after the other. Only emulated operators take such a pair of types.
    """
    transfer = {
        "kv_connector": "LynxConnector",
        "kv_role": role,
        # The policies could end drafting amid tests that are about drafts.
        "kv_connector_extra_config": {
            "method": "lynx",
            "window": "fixed",
            "health": False,
            "request_bandwidth": True,
            "trace_dir": str(folder / "trace"),
        },
    }
    options = ["--dtype", "float32", "--kv-cache-dtype", "float16", "--served-model-name", "model"]
    options += ["--kv-transfer-config", json.dumps(transfer)]
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    return Server(model, folder / f"{role}.log", [*options, *arguments], environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lynx")


@pytest.fixture(scope="module")
def prefill(model: str, folder: Path) -> Iterator[Server]:
    # One prompt after the other: the chunks in which a prompt is computed do not depend on those beside it.
    with server(model, folder, "kv_producer", "--max-num-seqs", "1", "--max-num-batched-tokens", str(CHUNK)) as prefill:
        yield prefill


@pytest.fixture(scope="module", params=MODES)
def decode(request: pytest.FixtureRequest, model: str, folder: Path) -> Iterator[Server]:
    with server(model, folder, "kv_consumer", request.param) as decode:
        log = (folder / "kv_consumer.log").read_text()
        assert f"Asynchronous scheduling is {MODES[request.param]}." in log
        yield decode


def prefilled(prefill: Server, prompt: list[int]) -> dict[str, Any]:
    """What P answers a proxy with: the kv_transfer_params for D."""
    body = {"model": "model", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    body["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
    answer = httpx.post(f"{prefill.url}/v1/completions", json=body, timeout=REQUEST_S)
    params: dict[str, Any] = answer.raise_for_status().json()["kv_transfer_params"]
    return params


def decoded(servers: tuple[Server, Server], prompt: list[int], **xargs: int | float) -> list[int]:
    """The text of D on the KV of P."""
    prefill, decode = servers
    params = prefilled(prefill, prompt)
    options = {"max_tokens": MAX_TOKENS, "xargs": xargs, "timeout": REQUEST_S, "ignore_eos": True}
    return complete(decode.url, prompt, kv_transfer_params=params, **options).token_ids  # type: ignore[arg-type]


def ordinary(decode: Server, prompt: list[int], max_tokens: int) -> list[int]:
    return complete(decode.url, prompt, max_tokens=max_tokens, timeout=REQUEST_S, ignore_eos=True).token_ids


def used_blocks(server: Server) -> float:
    """The share of KV blocks in use."""
    lines = httpx.get(f"{server.url}/metrics", timeout=REQUEST_S).text.splitlines()
    (value,) = (line.split()[-1] for line in lines if line.startswith("vllm:kv_cache_usage_perc{"))
    return float(value)


def wait_for_no_block_in_use(*servers: Server) -> None:
    deadline = time.monotonic() + 15.0
    while used := [s.url for s in servers if used_blocks(s)]:
        assert time.monotonic() < deadline, f"blocks in use at {used}"
        time.sleep(0.2)


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "trace") if event["event"] == name]


@pytest.fixture(scope="module")
def references(model: str, prefill: Server, prompts: list[list[int]]) -> list[list[int]]:
    """The 8-bit answers on P's KV, by the codec's definition and Transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    from tests.emulated_npu.reference import held_kv, reference_text

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found = []
    for prompt in prompts:
        params = prefilled(prefill, prompt)
        first = params["remote_first_token"]
        found.append(reference_text(loaded, prompt, held_kv(params), MAX_TOKENS, first=first))
    return found


def test_text_equals_the_8_bit_cache(
    prefill: Server, decode: Server, prompts: list[list[int]], references: list[list[int]], folder: Path
) -> None:
    """Two at a time, beside ordinary requests, which answer as when they are alone."""
    beside = [prompts[2][:50], prompts[3][:80]]  # no near-ties in these answers either
    alone = [ordinary(decode, prompt, 24) for prompt in beside]
    began = time.monotonic()
    assert decoded((prefill, decode), prompts[0], lynx_draft_cap=0) == references[0]
    took = time.monotonic() - began
    before = len(events(folder, "verified"))
    with ThreadPoolExecutor(len(beside)) as others, ThreadPoolExecutor(2) as pool:
        answers = [others.submit(ordinary, decode, prompt, 24) for prompt in beside]
        # Links slower than P's host twin encodes two prompts: else no Residual is later than its Anchor.
        rate = 1e-6 * RESIDUAL_BITS / (2 * took)
        texts = list(
            pool.map(lambda prompt: decoded((prefill, decode), prompt, lynx_bandwidth=len(prompt) * rate), prompts)
        )
        assert [answer.result() for answer in answers] == alone
    assert texts == references
    verified = events(folder, "verified")[before:]
    assert len(verified) == len(prompts)
    assert sum(event["accepted"] for event in verified) >= 2 * len(prompts)
    wait_for_no_block_in_use(prefill, decode)


@pytest.mark.parametrize("after", ["draft", "verified"])
def test_abort_returns_all_blocks(
    prefill: Server, decode: Server, prompts: list[list[int]], folder: Path, after: str
) -> None:
    """The client hangs up while its request drafts, or amid its answer."""
    prompt = prompts[3]
    params = prefilled(prefill, prompt)
    seen = len(events(folder, after))
    body = {
        "model": "model",
        "prompt": prompt,
        "max_tokens": 600,  # at most 20 a second: an answer that went on would hold its blocks too long
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "kv_transfer_params": params,
        "vllm_xargs": {"lynx_bandwidth": 5.0},
    }
    client = httpx.Client(timeout=REQUEST_S)

    def read() -> None:
        with contextlib.suppress(httpx.HTTPError, RuntimeError):
            client.post(f"{decode.url}/v1/completions", json=body)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    deadline = time.monotonic() + REQUEST_S
    while len(events(folder, after)) <= seen:
        assert time.monotonic() < deadline, f"no {after}"
        time.sleep(0.05)
    assert used_blocks(decode) > 0
    client.close()
    wait_for_no_block_in_use(prefill, decode)
    assert ordinary(decode, prompt[:50], 8)
