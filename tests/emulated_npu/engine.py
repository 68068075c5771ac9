"""Starts vllm-ascend on the emulated NPU: an engine in this process, or an OpenAI server in processes of its own.

llm = start_engine(model)
with Server(model, log=tmp_path / "server.log", arguments=["--no-async-scheduling"]) as server:
    httpx.post(f"{server.url}/v1/completions", json={"model": model, "prompt": "Once", "max_tokens": 8})
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from lynx_ascend.demo.services import ReservedPort, Service, stop_all, wait_until

START_S = 180.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "kv_cache_memory_bytes": 1 << 28,
    "enforce_eager": True,
    "seed": 0,
}
"""Small and fast to start; float32, so that tokens can be compared with another engine's."""


def start_engine(model: str, **options: Any) -> Any:
    """A vllm.LLM with its engine in this process; `options` replace those of OPTIONS or add to them.

    vLLM allows one in a process. To have its engine core in a process of its own, set VLLM_ENABLE_V1_MULTIPROCESSING=1.
    """
    os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **ENVIRONMENT})
    from vllm import LLM

    return LLM(model, **{**OPTIONS, **options})


class Server:
    """A context: `vllm serve` of this interpreter, with its engine core in another process; both end with it.

    Args:
        log: where its output goes.
        arguments: of `vllm serve`, after those for OPTIONS.
        env: added to the environment.

    Raises (on entering):
        lynx_ascend.demo.services.ServiceError: it ended, or did not answer within START_S; the log's end is in it.
    """

    def __init__(
        self, model: str, log: Path, arguments: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self._port = ReservedPort()
        self.url = self._port.url
        flags = [part for name, value in OPTIONS.items() for part in _flag(name, value)]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *flags, *arguments]
        command += ["--host", "127.0.0.1", "--port", str(self._port.number)]
        self._service = Service("server", command, log, {**ENVIRONMENT, **(env or {})})

    def __enter__(self) -> Server:
        self._service.start()
        try:
            wait_until(self._answers, [self._service], "the server did not answer", time.monotonic() + START_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stop_all([self._service])
        self._port.close()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200
        except httpx.TransportError:
            return False


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    return [flag] if value is True else [flag, str(value)]
