"""The real vllm-ascend on the emulated NPU answers as CPU vLLM of the same version: SmolLM2-135M, float32, greedy."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.emulated_npu import workload
from tests.emulated_npu.engine import Server, start_engine
from tests.emulated_npu.operators.register import calls

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / ".venv-vllm-0.23" / "bin" / "python"
# Of this package's plugins none: what is compared is vllm-ascend. tests/emulated_npu/test_lynx*.py has them.
PLUGINS = "ascend,ascend_kv_connector,ascend_model,ascend_model_loader"
OPERATORS = {
    "_npu_matmul_add_fp32",
    "_npu_reshape_and_cache",
    "_npu_rotary_embedding",
    "npu_add_rms_norm",
    "npu_fused_infer_attention_score",
    "npu_rms_norm",
    "npu_swiglu",
    "npu_top_k_top_p",
}


@pytest.fixture(scope="module")
def model() -> str:
    from lynx_ascend.evaluation.model import ensure_model

    return str(ensure_model())


@pytest.fixture(scope="module")
def reference(model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """CPU vLLM 0.23.0's answers, from its own environment."""
    if not REFERENCE.exists():
        pytest.fail(f"{REFERENCE} is missing: run scripts/setup_vllm_023.sh")
    out = tmp_path_factory.mktemp("reference") / "answers.json"
    command = [str(REFERENCE), workload.__file__, model, str(out)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM", "TORCH", "PYTHON"))}
    done = subprocess.run(command, env=environment, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    answers: dict[str, Any] = json.loads(out.read_text())
    return answers


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[Any]:
    calls.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_PLUGINS", PLUGINS)
        llm = start_engine(model)
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def emulated(llm: Any) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(json.dumps(workload.run(llm)))
    return answers


def test_what_runs_is_vllm_ascend(llm: Any) -> None:
    import torch
    import vllm.platforms
    from vllm_ascend.attention.attention_v1 import AscendAttentionBackend
    from vllm_ascend.platform import NPUPlatform
    from vllm_ascend.sample.sampler import AscendSampler
    from vllm_ascend.worker.block_table import MultiGroupBlockTable
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner
    from vllm_ascend.worker.worker import NPUWorker

    core = llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    runner = worker.model_runner
    assert type(vllm.platforms.current_platform) is NPUPlatform
    assert type(worker) is NPUWorker
    assert type(runner) is NPUModelRunner
    assert type(runner.sampler) is AscendSampler
    assert type(runner.input_batch.block_table) is MultiGroupBlockTable
    backends = {group.backend for groups in runner.attn_groups for group in groups}
    assert backends == {AscendAttentionBackend}
    assert core.batch_queue is not None, "vLLM's default here is asynchronous scheduling"
    for key, value in runner.kv_caches:
        for cache in (key, value):
            assert cache.device == torch.device("npu:0") and cache.shape[1:] == (workload.BLOCK_SIZE, 3, 64)
    assert next(runner.model.parameters()).device == torch.device("npu:0")


def test_what_is_compared(reference: dict[str, Any], emulated: dict[str, Any]) -> None:
    assert importlib.metadata.version("vllm_ascend").startswith("0.23.0")
    assert emulated["vllm"] == reference["vllm"] and reference["vllm"].startswith("0.23.0")
    assert (emulated["device"], reference["device"]) == ("npu", "cpu")


@pytest.mark.parametrize("case", ["single", "batch", "chunked", "prefix", "penalties", "bias", "logprobs"])
def test_tokens_equal_cpu_vllm(case: str, reference: dict[str, Any], emulated: dict[str, Any]) -> None:
    assert emulated[case]["tokens"] == reference[case]["tokens"]
    assert emulated[case]["cached"] == reference[case]["cached"]


def test_the_cases_are_what_they_are_called(emulated: dict[str, Any]) -> None:
    assert len(emulated["batch"]["tokens"]) == len(workload.PROMPTS)
    assert emulated["batch"]["tokens"][0] == emulated["single"]["tokens"][0]
    assert emulated["prefix"]["cached"][0] == workload.LONG // workload.BLOCK_SIZE * workload.BLOCK_SIZE
    assert emulated["penalties"]["tokens"] != emulated["batch"]["tokens"]
    assert any(tokens[-1] == 198 for tokens in emulated["bias"]["tokens"])


def test_logprobs_equal_cpu_vllm(reference: dict[str, Any], emulated: dict[str, Any]) -> None:
    for ours, theirs in zip(emulated["logprobs"]["logprobs"], reference["logprobs"]["logprobs"], strict=True):
        assert len(ours) == 8
        for step, expected in zip(ours, theirs, strict=True):
            assert step.keys() == expected.keys()
            assert step == pytest.approx(expected, abs=1e-3)


def test_seeded_sampling_is_repeatable(emulated: dict[str, Any]) -> None:
    first, again, other = (emulated[f"sampled{suffix}"]["tokens"] for suffix in ("", " again", " otherwise"))
    assert first == again
    assert first != other
    assert first != emulated["batch"]["tokens"]


def test_every_operator_was_called(emulated: dict[str, Any]) -> None:
    assert calls.keys() == OPERATORS


def test_a_server_with_synchronous_scheduling_answers_the_same(
    model: str, emulated: dict[str, Any], tmp_path: Path
) -> None:
    """Its engine core is another process: vLLM starts it, and it comes up on the emulated NPU by itself."""

    async def ask(url: str) -> list[list[int]]:
        async with httpx.AsyncClient(timeout=120.0) as client:
            body = {"model": model, "max_tokens": workload.LENGTH, "temperature": 0.0, "return_token_ids": True}
            posts = (client.post(f"{url}/v1/completions", json={**body, "prompt": text}) for text in workload.PROMPTS)
            answers = [response.raise_for_status().json() for response in await asyncio.gather(*posts)]
            return [answer["choices"][0]["token_ids"] for answer in answers]

    log = tmp_path / "server.log"
    with Server(
        model, log, ["--no-async-scheduling"], {"VLLM_PLUGINS": PLUGINS, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    ) as server:
        assert asyncio.run(ask(server.url)) == emulated["batch"]["tokens"]
    assert "EngineCore pid=" in log.read_text() and "Platform plugin ascend is activated" in log.read_text()
