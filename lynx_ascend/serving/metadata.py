"""What the scheduler half and the worker half of the connector tell each other at every engine step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from lynx_ascend.serving.transfer_params import RemotePrompt


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
    """Scheduler to worker. `drops` end a transfer: of a request that has ended, or goes on without it."""

    pulls: list[PullOrder] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)
    sends: list[SendOrder] = field(default_factory=list)


@dataclass
class LynxWorkerMetadata(KVConnectorWorkerMetadata):
    """Worker to scheduler. A request's residual is ready when as many workers have said so as there are."""

    residual_ready: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> LynxWorkerMetadata:
        assert isinstance(other, LynxWorkerMetadata)
        return LynxWorkerMetadata(self.residual_ready + other.residual_ready, {**other.failures, **self.failures})


@dataclass(frozen=True)
class LynxHandshake(KVConnectorHandshakeMetadata):
    """Where this worker's StreamServer listens."""

    host: str
    port: int
