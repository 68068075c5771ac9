"""A prefill and a decode server of vLLM with LynxConnector, and a proxy in front: real processes on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lynx_ascend.demo.services import ReservedPort, Servers, Service

_SERVER_ENV = {
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The worker in the engine's process: in one of its own, the engine spins while it computes, on the cores it needs.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "0",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def default_dtype() -> str:
    """bfloat16, but float32 on a CPU with AMX tiles, for which vLLM packs bf16 keys in a way that cannot be read."""
    import torch

    return "float32" if torch.cpu._is_amx_tile_supported() else "bfloat16"


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


class Cluster(Servers):
    """Context manager: servers and proxy are up inside it, and gone after it; errors as `Servers` says.

    Attributes:
        prefill, decode, proxy: the services.
        prefill_url, decode_url, url: where they listen; requests go to `url`, the proxy's.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        options.logs.mkdir(parents=True, exist_ok=True)
        ports = [ReservedPort() for _ in range(4)]
        self.prefill_url, self.decode_url, self.url, _ = (port.url for port in ports)
        first, second = _core_halves() if options.pin else (frozenset(), frozenset())
        link = {} if options.bandwidth is None else {"bandwidth": options.bandwidth}
        transfer = lynx_transfer(options, "kv_producer", **link)
        self.prefill = vllm_server(
            "prefill", options, ports[0], transfer, cores=first, env=options.prefill_env, args=options.prefill_args
        )
        transfer = lynx_transfer(options, "kv_consumer")
        self.decode = vllm_server(
            "decode", options, ports[1], transfer, cores=second, env=options.decode_env, args=options.decode_args
        )
        command = _router_command(ports[2:], self.prefill_url, self.decode_url)
        self.proxy = Service("proxy", command, options.logs / "proxy.log")
        servers = [(self.prefill, self.prefill_url), (self.decode, self.decode_url)]
        super().__init__([servers, [(self.proxy, self.url)]], ports, options.start_s)


def lynx_transfer(options: ClusterOptions, role: str, **extra: Any) -> dict[str, Any]:
    """What --kv-transfer-config says of LynxConnector in this role; extra: more of its kv_connector_extra_config."""
    extra = {"method": options.method, **options.extra, **extra}
    if options.trace_dir is not None:
        extra["trace_dir"] = str(options.trace_dir)
    return {"kv_connector": "LynxConnector", "kv_role": role, "kv_connector_extra_config": extra}


def vllm_server(
    name: str,
    options: ClusterOptions,
    port: ReservedPort,
    transfer: Mapping[str, Any] | None,
    *,
    cores: frozenset[int] = frozenset(),
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
) -> Service:
    """`vllm serve` with what `options` says of every server; transfer: its --kv-transfer-config, None: it has none."""
    command = [
        sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(options.model),
        "--host", "127.0.0.1", "--port", str(port.number), "--served-model-name", "model",
        "--dtype", options.dtype, "--max-model-len", str(options.max_model_len),
        "--block-size", str(options.block_size), "--enforce-eager", "--no-async-scheduling",
        *(() if options.log_stats else ("--disable-log-stats",)), "--disable-uvicorn-access-log",
        *(() if transfer is None else ("--kv-transfer-config", json.dumps(transfer))), *args,
    ]  # fmt: skip
    server_env = {**_SERVER_ENV, "VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib), **(env or {})}
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
