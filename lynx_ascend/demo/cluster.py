"""A prefill and a decode server of vLLM with LynxConnector, and a proxy in front: real processes on this machine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from lynx_ascend.demo.services import ReservedPort, Service, stop_all, wait_until

_SERVER_ENV = {
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "0",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class ClusterOptions:
    """How the servers run.

    Attributes:
        model: directory of the model, Hugging Face format.
        dtype: of weights, compute and KV cache: float32 or bfloat16.
        logs: folder for the servers' logs.
        bandwidth: Mbit/s of the emulated link of the prefill server; None: loopback as it is.
        method: for requests that name none.
        extra: more fields of kv_connector_extra_config, for both servers.
        trace_dir: where the connector writes its trace; None: nowhere.
        cache_gib: KV cache of each server.
        pin: give each server cores of its own, where there are two or more.
        log_stats: have the servers fill their /metrics.
        start_s: seconds until everything must be up.
        prefill_env, decode_env: more environment for one server.
        prefill_args, decode_args: more arguments of `vllm serve` for one server.
    """

    model: Path
    logs: Path
    dtype: str = "bfloat16"
    bandwidth: float | None = None
    method: str = "lynx"
    extra: Mapping[str, Any] = field(default_factory=dict)
    trace_dir: Path | None = None
    max_model_len: int = 8192
    block_size: int = 32
    cache_gib: int = 1
    pin: bool = True
    log_stats: bool = False
    start_s: float = 180.0
    prefill_env: Mapping[str, str] = field(default_factory=dict)
    decode_env: Mapping[str, str] = field(default_factory=dict)
    prefill_args: tuple[str, ...] = ()
    decode_args: tuple[str, ...] = ()


class Cluster:
    """Context manager: servers and proxy are up inside it, and gone after it.

    Attributes:
        prefill, decode, proxy: the services.
        prefill_url, decode_url, url: where they listen; requests go to `url`, the proxy's.

    Raises (on entering):
        ServiceError: one of them died or was not up in time, with its log's tail.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        options.logs.mkdir(parents=True, exist_ok=True)
        self._ports = [ReservedPort() for _ in range(4)]
        self.prefill_url, self.decode_url, self.url, _ = (port.url for port in self._ports)
        first, second = _core_halves() if options.pin else (frozenset(), frozenset())
        self.prefill = self._server("prefill", "kv_producer", self._ports[0], first, options.prefill_env)
        self.decode = self._server("decode", "kv_consumer", self._ports[1], second, options.decode_env)
        command = _router_command(self._ports[2:], self.prefill_url, self.decode_url)
        self.proxy = Service("proxy", command, options.logs / "proxy.log")

    @property
    def services(self) -> list[Service]:
        """All three, in the order in which they are ended."""
        return [self.prefill, self.decode, self.proxy]

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """Raises ServiceError if a server or the proxy has died."""
        for service in self.services:
            service.check()

    def stop(self) -> None:
        """Ends every process that was started."""
        stop_all(self.services)
        for port in self._ports:
            port.close()

    def _start(self) -> None:
        deadline = time.monotonic() + self.options.start_s
        servers = [self.prefill, self.decode]
        for service in servers:
            service.start()
        for url in (self.prefill_url, self.decode_url):
            wait_until(lambda url=url: _healthy(url), servers, "not healthy", deadline)  # type: ignore[misc]
        self.proxy.start()
        wait_until(lambda: _healthy(self.url), self.services, "not healthy", deadline)

    def _server(
        self, name: str, role: str, port: ReservedPort, cores: frozenset[int], env: Mapping[str, str]
    ) -> Service:
        options = self.options
        extra: dict[str, Any] = {"method": options.method, **options.extra}
        if options.trace_dir is not None:
            extra["trace_dir"] = str(options.trace_dir)
        if options.bandwidth is not None and role == "kv_producer":
            extra["bandwidth"] = options.bandwidth
        transfer = {"kv_connector": "LynxConnector", "kv_role": role, "kv_connector_extra_config": extra}
        command = [
            sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(options.model),
            "--host", "127.0.0.1", "--port", str(port.number), "--served-model-name", "model",
            "--dtype", options.dtype, "--max-model-len", str(options.max_model_len),
            "--block-size", str(options.block_size), "--enforce-eager", "--no-async-scheduling",
            *([] if options.log_stats else ["--disable-log-stats"]),
            "--disable-uvicorn-access-log", "--kv-transfer-config", json.dumps(transfer),
            *(options.prefill_args if role == "kv_producer" else options.decode_args),
        ]  # fmt: skip
        server_env = {**_SERVER_ENV, "VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib), **env}
        return Service(name, command, options.logs / f"{name}.log", server_env, cores)


def _core_halves() -> tuple[frozenset[int], frozenset[int]]:
    """The CPUs we may use, halved; both empty (no pinning) where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    return frozenset(cores[:half]), frozenset(cores[half:]) if half else frozenset()


def _router_command(ports: Sequence[ReservedPort], prefill: str, decode: str) -> list[str]:
    """ports: for requests, and for metrics, whose default would be the same for all clusters of a machine."""
    port, metrics = (str(port.number) for port in ports)
    return [
        sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", port,
        "--prometheus-port", metrics,
        "--vllm-pd-disaggregation", "--prefill", prefill, "--decode", decode, "--kv-connector", "nixl",
    ]  # fmt: skip


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False
