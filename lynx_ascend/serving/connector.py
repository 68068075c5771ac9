"""LynxConnector: vLLM's face of Lynx. It hands each call to the scheduler half or to the worker half."""

from __future__ import annotations

import logging
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from lynx_ascend.paged import streams
from lynx_ascend.serving import compat
from lynx_ascend.serving.checks import UnsupportedError, check_config, unusable_methods
from lynx_ascend.serving.consumer import Consumer
from lynx_ascend.serving.counting import SchedulerCounts, WorkerCounts
from lynx_ascend.serving.drafting import engine_may_draft
from lynx_ascend.serving.handover import Handover
from lynx_ascend.serving.kv_costs import kv_costs
from lynx_ascend.serving.layout import layer_views
from lynx_ascend.serving.metadata import LynxHandshake, LynxMetadata, LynxWorkerMetadata
from lynx_ascend.serving.metrics import LynxPromMetrics, LynxStats, Meter
from lynx_ascend.serving.options import AUTO, LynxOptions
from lynx_ascend.serving.policy import Policy
from lynx_ascend.serving.producer import Producer
from lynx_ascend.serving.runner_patch import install
from lynx_ascend.serving.scheduler_half import LOSSLESS, SchedulerHalf
from lynx_ascend.serving.trace import Trace

logger = logging.getLogger("vllm.lynx_ascend")


class LynxConnector(KVConnectorBase_V1):
    """Progressive speculative KV transfer; docs/architecture.md follows one request through it.

    Raises:
        OptionError: kv_connector_extra_config holds a value that cannot be used.
        UnsupportedError: the engine is of a kind that Lynx cannot serve.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        options = LynxOptions.parse(transfer.kv_connector_extra_config)
        check_config(vllm_config)
        unusable = unusable_methods(vllm_config)
        if options.method in unusable:
            raise UnsupportedError(f"kv_connector_extra_config.method: {unusable[options.method]}")
        self._options = options
        self._engine_id: str = transfer.engine_id
        self._vllm_config = vllm_config
        self._cache_config = kv_cache_config
        self.scheduler_half: SchedulerHalf | None = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._meter = Meter(None if role == KVConnectorRole.SCHEDULER else vllm_config.parallel_config.rank)
        self._staged = 0  # bytes, as last reported
        if role == KVConnectorRole.SCHEDULER:
            trace = SchedulerCounts(Trace(options.trace_dir, f"scheduler-{transfer.kv_role}"), self._meter)
            drafting = engine_may_draft(vllm_config)
            if not drafting and transfer.is_kv_consumer:
                logger.warning("this engine has logits processors of its own: no request drafts")
            self.scheduler_half = SchedulerHalf(
                options,
                self._engine_id,
                vllm_config.parallel_config.world_size,
                trace,
                Policy(options),
                Handover.of(options, vllm_config),
                unusable=unusable,
                drafting=drafting,
                fetching=transfer.is_kv_consumer,
            )
            if options.method != LOSSLESS and transfer.is_kv_consumer:
                split = options.method == AUTO or len(streams(options.method)) > 1
                logger.warning(
                    "method %s is lossy: answers follow the %s, not %sthe uncompressed cache",
                    options.method,
                    "8-bit cache" if split else f"{options.method} cache",
                    "always " if options.method == AUTO else "",
                )

    # Worker half.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        install(compat.model_runner())
        isa = compat.attention_isa(self._vllm_config, self._cache_config.kv_cache_groups[0].kv_cache_spec)
        layers = layer_views(kv_caches, self._cache_config, isa)
        transfer = self._vllm_config.kv_transfer_config
        if transfer.is_kv_producer:
            trace = WorkerCounts(Trace(self._options.trace_dir, "producer"), self._meter)
            self._producer = Producer(layers, self._options, self._engine_id, trace)
            logger.info("serving KV on %s:%d", self._producer.server.host, self._producer.server.port)
        if transfer.is_kv_consumer:
            trace = WorkerCounts(Trace(self._options.trace_dir, "consumer"), self._meter)
            self._consumer = Consumer(layers, self._options, self._engine_id, trace, kv_costs(layers))

    def get_handshake_metadata(self) -> LynxHandshake | None:
        if self._producer is None:
            return None
        return LynxHandshake(self._options.host, self._producer.server.port)

    def handle_preemptions(self, kv_connector_metadata: LynxMetadata) -> None:
        # Comes before the step's forward pass, also in vLLM 0.32, whose start_load_kv comes after it. A prompt must not
        # wait for a long pass of others: the decode instance has heard of it and asks already.
        if self._producer is not None:
            for send in kv_connector_metadata.sends:
                self._producer.hold(send)
        # The engine may give the blocks of a dropped request to another one in this very step: let go of them first.
        if self._consumer is not None:
            for request_id in kv_connector_metadata.drops:
                self._consumer.drop(request_id)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        orders = self._get_connector_metadata()
        assert isinstance(orders, LynxMetadata)
        if self._consumer is not None:
            for pull in orders.pulls:
                self._consumer.pull(pull)
            for prompt in orders.declined:
                self._consumer.decline(prompt)
            self._consumer.poll()

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        sent = self._producer.finished() if self._producer else set()
        return sent, self._consumer.finished() if self._consumer else set()

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._consumer.failed_blocks() if self._consumer else set()

    def build_connector_worker_meta(self) -> LynxWorkerMetadata | None:
        return self._consumer.report() if self._consumer else None

    def shutdown(self) -> None:
        if self._producer is not None:
            self._producer.close()
        if self._consumer is not None:
            self._consumer.close()

    # Metrics, of both halves.

    def get_kv_connector_stats(self) -> LynxStats | None:
        if self._consumer is not None and (staged := self._consumer.staged_bytes()) != self._staged:
            self._staged = staged
            self._meter.set("lynx_staging_bytes", staged)
        return self._meter.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> LynxStats:
        return LynxStats(data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> LynxPromMetrics:
        return LynxPromMetrics(*args)

    # Scheduler half.

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        handshake = metadata.get(0)
        if isinstance(handshake, LynxHandshake):  # a pure decode instance has none
            self._half.set_address(handshake.host, handshake.port)

    def on_new_request(self, request: Any) -> None:
        self._half.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        tokens = self._half.tokens_to_load(request, num_computed_tokens)
        return tokens, tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._half.on_allocated(request, list(blocks.get_block_ids()[0]), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> LynxMetadata:
        return self._half.build_meta(new.req_id for new in scheduler_output.scheduled_new_reqs)

    def update_connector_output(self, connector_output: Any) -> None:
        self._half.on_worker_report(connector_output.kv_connector_worker_meta)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._half.on_finished(request, block_ids)

    @property
    def _half(self) -> SchedulerHalf:
        assert self.scheduler_half is not None, "called on a worker's connector"
        return self.scheduler_half
