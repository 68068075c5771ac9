"""The demo as a person runs it, at a small size, on real servers; and what it leaves behind: files, no processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.evaluation.local_engine import reference_text
from lynx_ascend.evaluation.model import ensure_model, load_tokenizer
from lynx_ascend.evaluation.prompts import prompts
from lynx_ascend.paged import wire_bytes

CONTEXT, LAYERS, HEADS, HEAD_DIM = 600, 30, 3, 64

pytestmark = pytest.mark.engine


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes that the demo with this output folder started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"LYNX_DEMO_TEST={folder}".encode() in entry.read_bytes():
                found.append((entry.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    output = tmp_path_factory.mktemp("demo")
    command = [
        sys.executable, "-m", "lynx_ascend.cli", "demo", "--json", "--context", str(CONTEXT), "--prompts", "1",
        "--methods", "int8,lynx", "--dtype", "float32", "--bandwidth", "60", "--output", str(output),
    ]  # fmt: skip
    env = {**os.environ, "LYNX_DEMO_TEST": str(output)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, "--json prints one object and nothing else"
    return json.loads(done.stdout), output


def test_bytes_are_those_of_the_format(demo: tuple[dict[str, Any], Path]) -> None:
    prompt = demo[0]["prompts"][0]
    assert [method["method"] for method in prompt["methods"]] == ["int8", "lynx"]
    for method in prompt["methods"]:
        sizes = wire_bytes(method["method"], CONTEXT, heads=HEADS, head_dim=HEAD_DIM, dtype=torch.float32)
        assert method["nbytes"] == {s.name.lower(): 2 * LAYERS * size for s, size in sizes.items()}


def test_verified_tokens_and_their_times(demo: tuple[dict[str, Any], Path]) -> None:
    int8, lynx = demo[0]["prompts"][0]["methods"]
    for method in (int8, lynx):
        assert len(method["token_ids"]) == method["tokens"] == 64
        times = [method["ttft_s"], *(method["time_to_s"][n] for n in ("2", "32", "64"))]
        assert times == sorted(times) and times[0] > 0
    assert 0 < lynx["drafted"] <= 63 and 0 <= lynx["accepted"] <= lynx["drafted"]
    assert int8["drafted"] == int8["accepted"] == 0


def test_lynx_answers_what_the_8_bit_cache_does(demo: tuple[dict[str, Any], Path]) -> None:
    """Computed without vLLM, connector or link: Transformers, the codec's definition, greedy decoding."""
    from transformers import AutoModelForCausalLM

    model = ensure_model()
    [prompt] = prompts(load_tokenizer(model), 1, [CONTEXT])
    reference = AutoModelForCausalLM.from_pretrained(model)
    expected = reference_text(reference, prompt, CodecConfig(), 64, ignore_eos=True, handover=True)
    lynx = demo[0]["prompts"][0]["methods"][1]
    assert lynx["token_ids"] == expected


def test_the_link_is_as_slow_as_asked(demo: tuple[dict[str, Any], Path]) -> None:
    for method in demo[0]["prompts"][0]["methods"]:
        transfer_s = sum(method["nbytes"].values()) * 8 / 60e6
        assert method["time_to_s"]["64"] > transfer_s
    assert demo[0]["bandwidth"] == 60


def test_files_are_there_and_no_process_is(demo: tuple[dict[str, Any], Path]) -> None:
    result, output = demo
    timeline = Path(result["prompts"][0]["timeline"])
    assert timeline.parent == output and timeline.read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (output / "logs").iterdir()} == {"prefill.log", "decode.log", "proxy.log"}
    assert processes_of(output) == []
