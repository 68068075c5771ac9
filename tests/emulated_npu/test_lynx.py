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

pytestmark = [pytest.mark.engine, pytest.mark.timeout(500)]

MODES = {"--async-scheduling": "enabled", "--no-async-scheduling": "disabled"}
# Lengths of 10 prompts: one to three pages, whole and ragged.
LENGTHS = [300, 270, 320, 384, 256, 345, 290, 410, 512, 600]
MAX_TOKENS = 20
REQUEST_S = 120.0
# Nats between the two most likely tokens below which a step's token is no fact: in float16 logits of 16 to 32 lie 1/64
# apart, and one pass over many tokens rounds otherwise than one step after the other.
TIE = 0.1


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
    """A server of one role. The kernels encode 16-bit caches, and float16 has fewer ties than bfloat16."""
    transfer = {
        "kv_connector": "LynxConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"method": "lynx", "request_bandwidth": True, "trace_dir": str(folder / "trace")},
    }
    options = ["--dtype", "float16", "--served-model-name", "model", "--kv-transfer-config", json.dumps(transfer)]
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    return Server(model, folder / f"{role}.log", [*options, *arguments], environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lynx")


@pytest.fixture(scope="module")
def prefill(model: str, folder: Path) -> Iterator[Server]:
    with server(model, folder, "kv_producer") as prefill:
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


def decoded(servers: tuple[Server, Server], prompt: list[int], **xargs: int | float | str) -> list[int]:
    """The text of D on the KV of P."""
    prefill, decode = servers
    params = prefilled(prefill, prompt)
    options = {"max_tokens": MAX_TOKENS, "xargs": xargs, "timeout": REQUEST_S, "ignore_eos": True}
    return complete(decode.url, prompt, kv_transfer_params=params, **options).token_ids  # type: ignore[arg-type]


def reference(decode: Server, prompt: list[int], max_tokens: int, **body: Any) -> tuple[list[int], int]:
    """The text of D, one token a step, and how many of its tokens come before the first tie."""
    request = {
        "model": "model",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 2,
        "return_token_ids": True,
        **body,
    }
    answer = httpx.post(f"{decode.url}/v1/completions", json=request, timeout=REQUEST_S)
    (choice,) = answer.raise_for_status().json()["choices"]
    text: list[int] = choice["token_ids"]
    assert len(text) == max_tokens
    for index, likely in enumerate(choice["logprobs"]["top_logprobs"]):
        first, *others = sorted(likely.values(), reverse=True)
        if not others or first - others[0] < TIE:  # one alone: two tokens of the same spelling
            return text, index
    return text, max_tokens


def undrafted(servers: tuple[Server, Server], prompt: list[int]) -> tuple[list[int], int]:
    """The reference on the KV of P."""
    prefill, decode = servers
    params = prefilled(prefill, prompt)
    return reference(decode, prompt, MAX_TOKENS, kv_transfer_params=params, vllm_xargs={"lynx_draft_cap": 0})


def assert_equal_up_to_ties(texts: list[list[int]], references: list[tuple[list[int], int]]) -> None:
    for text, (wanted, decided) in zip(texts, references, strict=True):
        assert len(text) == len(wanted)
        assert text[:decided] == wanted[:decided]


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
def references() -> dict[str, Any]:
    """Texts of the first mode that ran: they must hold for the second one too."""
    return {}


def test_text_equals_the_8_bit_cache(
    prefill: Server, decode: Server, prompts: list[list[int]], references: dict[str, Any], folder: Path
) -> None:
    """Beside ordinary requests. The reference: the same engine without drafts, one token a step on the same KV.

    Token for token up to a text's first tie, which float16 may break either way, and most texts to their end.
    """
    servers = prefill, decode
    beside = [prompts[0][:40], prompts[1][:70]]
    with ThreadPoolExecutor(4) as pool:
        if not references:
            references["lynx"] = list(pool.map(lambda prompt: undrafted(servers, prompt), prompts))
            references["ordinary"] = [reference(decode, prompt, 40) for prompt in beside]
        before = len(events(folder, "verified"))
        others = [pool.submit(ordinary, decode, prompt, 40) for prompt in beside]
        # Links on which the Residual takes some 10 decode steps.
        options = {"lynx_window": "fixed"}
        texts = list(
            pool.map(lambda prompt: decoded(servers, prompt, lynx_bandwidth=len(prompt) / 100, **options), prompts)
        )
        ordinary_texts = [other.result() for other in others]
    assert_equal_up_to_ties(texts, references["lynx"])
    assert_equal_up_to_ties(ordinary_texts, references["ordinary"])
    assert sum(decided for _, decided in references["lynx"]) >= 60, "too few steps without a tie to tell anything"
    equal = sum(text == wanted for text, (wanted, _) in zip(texts, references["lynx"], strict=True))
    assert equal >= 7, f"{equal} of {len(texts)} texts are equal to their end"
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
