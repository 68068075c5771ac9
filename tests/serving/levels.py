"""What two servers hold: sockets, requests, blocks and staged bytes; to be back where it was when a test ends."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx

from lynx_ascend.demo.cluster import Cluster
from lynx_ascend.demo.services import Service

METRIC = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|lynx_staging_bytes)\b[^ ]* (\S+)$", re.M
)


@dataclass(frozen=True)
class Level:
    """What a server holds while it has nothing to do."""

    sockets: int
    metrics: dict[str, float]


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


def open_sockets(cluster: Cluster) -> dict[str, int]:
    return {"prefill": sockets(cluster.prefill), "decode": sockets(cluster.decode)}


def assert_back(cluster: Cluster, before: dict[str, int]) -> dict[str, Level]:
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
