"""What Lynx measures, by name, and how it reaches vLLM's Prometheus endpoint and its log (docs/operations.md)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from lynx_ascend.codec.config import Stream
from lynx_ascend.methods import METHODS
from lynx_ascend.serving.metadata import FallbackCause
from lynx_ascend.transport.events import FaultKind

# By metric, then by label values ("0,anchor"): a number, or a histogram's observations.
Data = dict[str, dict[str, Any]]

_STREAM = {"stream": tuple(stream.name.lower() for stream in (Stream.ANCHOR, Stream.RESIDUAL))}
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_TOKENS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
# Why a decode worker gave a transfer up: the transport's kinds, and what only the worker can see.
FAILURES = (*(kind.value for kind in FaultKind), "frame", "deadline", "refused")
STAGES = ("load_anchor", "load_all", "draft", "verify")


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as exported, without vLLM's prefix "vllm:"; its unit is in it.
        where: which process of which instance counts it.
        labels: beside vLLM's own (model_name, engine), each with all its values. A worker's metrics have `rank` too:
            their sum over it is the instance's.
        buckets: of a histogram.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    where: Literal["P worker", "D worker", "P scheduler", "D scheduler"]
    help: str
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    @property
    def by_rank(self) -> bool:
        return self.where.endswith("worker")


METRICS = {
    metric.name: metric
    for metric in (
        Metric("lynx_held_prompts_total", "counter", "P scheduler", "Prompts held for a decode instance."),
        Metric("lynx_held_tokens_total", "counter", "P scheduler", "Tokens of these prompts."),
        Metric("lynx_sent_bytes_total", "counter", "P worker", "Bytes of complete streams sent.", _STREAM),
        Metric("lynx_send_seconds", "histogram", "P worker", "A stream's first to last byte.", _STREAM, _SECONDS),
        Metric("lynx_encode_seconds_total", "counter", "P worker", "Time spent encoding pages."),
        Metric(
            "lynx_cancelled_sends_total",
            "counter",
            "P worker",
            "Transfers that ended before all was sent, or were declined.",
        ),
        Metric("lynx_expired_prompts_total", "counter", "P worker", "Held prompts that nobody fetched in time."),
        Metric("lynx_received_bytes_total", "counter", "D worker", "Bytes of complete streams received.", _STREAM),
        Metric(
            "lynx_receive_seconds",
            "histogram",
            "D worker",
            "A stream's first to last byte.",
            _STREAM,
            _SECONDS,
        ),
        Metric(
            "lynx_decode_seconds_total",
            "counter",
            "D worker",
            "Time the engine's thread spent checking and decoding a stream's frames, between forward passes.",
            _STREAM,
        ),
        Metric("lynx_staging_bytes", "gauge", "D worker", "Bytes of received frames that are held."),
        Metric("lynx_transfers_total", "counter", "D worker", "Transfers complete, all their streams decoded."),
        Metric(
            "lynx_failed_transfers_total",
            "counter",
            "D worker",
            "Transfers that failed, by what went wrong.",
            {"reason": FAILURES},
        ),
        Metric(
            "lynx_handed_tokens_total",
            "counter",
            "D scheduler",
            "First tokens that the prefill instance sampled and clients got at once.",
        ),
        Metric(
            "lynx_pulls_total", "counter", "D scheduler", "Prompts that were to be fetched.", {"method": tuple(METHODS)}
        ),
        Metric(
            "lynx_skips_total",
            "counter",
            "D scheduler",
            "Requests that could have drafted and were not let to, by the policy that decided so.",
            {"reason": ("break-even: bf16", "break-even: 8bit", "health")},
        ),
        Metric(
            "lynx_stage_seconds",
            "histogram",
            "D scheduler",
            "Time a request spent loading the anchor, loading everything (no drafts), drafting, being verified.",
            {"stage": STAGES},
            _SECONDS,
        ),
        Metric("lynx_drafted_tokens_total", "counter", "D scheduler", "Drafts that were verified."),
        Metric("lynx_accepted_tokens_total", "counter", "D scheduler", "Drafts that held."),
        Metric("lynx_verifications_total", "counter", "D scheduler", "Verify passes over one draft or more."),
        Metric("lynx_whole_drafts_total", "counter", "D scheduler", "Of these, those that accepted every draft."),
        Metric(
            "lynx_draft_window_tokens",
            "histogram",
            "D scheduler",
            "Drafts that a request had when its verification began.",
            {},
            _TOKENS,
        ),
        Metric(
            "lynx_fallbacks_total",
            "counter",
            "D scheduler",
            "Requests that left a transfer behind: recomputed, or ended by kv_load_failure_policy.",
            {"reason": tuple(cause.value for cause in FallbackCause)},
        ),
        Metric("lynx_aborted_total", "counter", "D scheduler", "Requests that ended before their transfer did."),
        Metric("lynx_refused_requests_total", "counter", "D scheduler", "Requests refused for what they asked."),
    )
}


@dataclass
class LynxStats(KVConnectorStats):
    """What was measured since the last report; `data` goes from the workers to the scheduler to the logger."""

    data: Data = field(default_factory=dict)

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> LynxStats:
        """Adds another report: later gauges replace earlier ones, all else is summed. Ranks stay apart."""
        for name, values in other.data.items():
            kind, mine = METRICS[name].kind, self.data.setdefault(name, {})
            for labels, value in values.items():
                mine[labels] = value if kind == "gauge" or labels not in mine else mine[labels] + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """The line that vLLM logs every few seconds in which something happened."""

        def total(name: str) -> float:
            return sum(self.data.get(name, {}).values())

        line = {
            "sent MB": total("lynx_sent_bytes_total") / 1e6,
            "received MB": total("lynx_received_bytes_total") / 1e6,
            "transfers": total("lynx_transfers_total"),
            "failed transfers": total("lynx_failed_transfers_total"),
            "expired prompts": total("lynx_expired_prompts_total"),
            "drafted": total("lynx_drafted_tokens_total"),
            "accepted": total("lynx_accepted_tokens_total"),
            "fallbacks": total("lynx_fallbacks_total"),
            "refused requests": total("lynx_refused_requests_total"),
        }
        return {name: round(value, 2) for name, value in line.items() if value}

    def is_empty(self) -> bool:
        return not self.data


class Meter:
    """Collects measurements from any thread until the engine's next step takes them.

    Args:
        rank: a worker's, None in a scheduler.
    """

    def __init__(self, rank: int | None = None) -> None:
        self._prefix = [] if rank is None else [str(rank)]
        self._lock = threading.Lock()
        self._data: Data = {}

    def add(self, name: str, value: float = 1, *labels: str) -> None:
        """Adds to a counter."""
        with self._lock:
            values = self._data.setdefault(name, {})
            key = self._key(labels)
            values[key] = values.get(key, 0) + value

    def observe(self, name: str, value: float, *labels: str) -> None:
        """One observation of a histogram."""
        with self._lock:
            self._data.setdefault(name, {}).setdefault(self._key(labels), []).append(value)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Sets a gauge."""
        with self._lock:
            self._data.setdefault(name, {})[self._key(labels)] = value

    def take(self) -> LynxStats | None:
        """What came since the last call; None if nothing did."""
        if not self._data:
            return None
        with self._lock:
            data, self._data = self._data, {}
        return LynxStats(data)

    def _key(self, labels: tuple[str, ...]) -> str:
        return ",".join([*self._prefix, *labels])


class LynxPromMetrics(KVConnectorPromMetrics):
    """The metrics at vLLM's /metrics. Every series is there from the start, at 0."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        ranks = tuple(str(rank) for rank in range(vllm_config.parallel_config.world_size))
        self._metrics = {}
        for metric in METRICS.values():
            labels = {"rank": ranks, **metric.labels} if metric.by_rank else metric.labels
            self._metrics[metric.name] = exported = self._export(metric, [*labelnames, *labels], metric_types)
            for engine in per_engine_labelvalues.values():
                for values in _products(tuple(labels.values())):
                    exported.labels(*engine, *values)

    def _export(self, metric: Metric, labelnames: list[str], types: dict[Any, Any]) -> Any:
        common = {"name": f"vllm:{metric.name}", "documentation": metric.help, "labelnames": labelnames}
        match metric.kind:
            case "counter":
                return types[Counter](**common)
            case "gauge":
                return types[Gauge](**common, multiprocess_mode="mostrecent")
            case "histogram":
                return types[Histogram](**common, buckets=metric.buckets)

    def observe(self, transfer_stats_data: Data, engine_idx: int = 0) -> None:
        engine = self.per_engine_labelvalues[engine_idx]
        for name, values in transfer_stats_data.items():
            for labels, value in values.items():
                child = self._metrics[name].labels(*engine, *(labels.split(",") if labels else ()))
                match METRICS[name].kind:
                    case "counter":
                        child.inc(value)
                    case "gauge":
                        child.set(value)
                    case "histogram":
                        for observation in value:
                            child.observe(observation)


def _products(values: tuple[tuple[str, ...], ...]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [()]
    for column in values:
        rows = [(*row, value) for row in rows for value in column]
    return rows
