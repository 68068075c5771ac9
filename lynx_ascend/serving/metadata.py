"""What the scheduler half and the worker half of the connector tell each other at every engine step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from lynx_ascend.serving.transfer_params import RemotePrompt
from lynx_ascend.speculation.break_even import KVCosts
from lynx_ascend.speculation.latency import time_left


class FallbackCause(StrEnum):
    """Why a request left its transfer behind: a word for metrics, beside the reason for people."""

    TRANSFER = "transfer"  # it failed
    PREEMPTED = "preempted"
    PROMPT = "prompt"  # the engine must compute the prompt itself


@dataclass(frozen=True)
class PullOrder:
    """Fetch a prompt's KV into the blocks of a request.

    `first`: absolute position of the first token to write; earlier blocks are shared with other requests.
    `wait_all`: report the load when every stream is decoded (no drafting), not when the anchor is.
    """

    request_id: str
    source: RemotePrompt
    generation: int
    method: str
    block_ids: list[int]
    first: int
    wait_all: bool
    bandwidth: float | None


@dataclass(frozen=True)
class SendOrder:
    """Hold a prefilled prompt's blocks until they have been fetched."""

    request_id: str
    block_ids: list[int]
    tokens: int


@dataclass
class LynxMetadata(KVConnectorMetadata):
    """Scheduler to worker.

    `drops` end a transfer: of a request that has ended, or goes on without it. `drafting` are the requests whose drafts
    are sampled at random and not verified yet, at every step anew. `declined` are prompts that nobody fetches. `handed`
    are the first tokens of requests that get their row in this step: their output begins with it.
    """

    pulls: list[PullOrder] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)
    sends: list[SendOrder] = field(default_factory=list)
    drafting: list[str] = field(default_factory=list)
    declined: list[RemotePrompt] = field(default_factory=list)
    handed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """How far a transfer is, as one worker sees it.

    left: bytes of the Residual that are still to come. received: bytes of all streams, in the `seconds` from the first
    to the last of them. age: seconds since that last one.
    """

    left: int
    received: int
    seconds: float
    age: float

    @property
    def time_left(self) -> float:
        """Seconds until the Residual is there; infinite if that is not known."""
        return time_left(self.left, self.received, self.seconds)


@dataclass
class LynxWorkerMetadata(KVConnectorWorkerMetadata):
    """Worker to scheduler. A request's residual is ready when as many workers have said so as there are.

    progress: of the transfers whose Anchor is in place, the slowest worker's, and once of each that is complete.
    costs: in the first report alone.
    """

    residual_ready: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    progress: dict[str, Progress] = field(default_factory=dict)
    costs: KVCosts | None = None

    def aggregate(self, other: KVConnectorWorkerMetadata) -> LynxWorkerMetadata:
        assert isinstance(other, LynxWorkerMetadata)
        progress = dict(self.progress)
        for request_id, theirs in other.progress.items():
            ours = progress.setdefault(request_id, theirs)
            progress[request_id] = max(ours, theirs, key=lambda p: p.time_left)
        return LynxWorkerMetadata(
            self.residual_ready + other.residual_ready,
            {**other.failures, **self.failures},
            progress,
            self.costs or other.costs,
        )


@dataclass(frozen=True)
class LynxHandshake(KVConnectorHandshakeMetadata):
    """Where this worker's StreamServer listens."""

    host: str
    port: int
