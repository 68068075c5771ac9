"""A real vLLM engine in this process, in both roles: it prefills, serves its KV on a socket, and pulls from itself.

With LYNX_TEST_ASYNC=1 in the environment it schedules asynchronously: all tests that use it hold in both modes. On the
emulated NPU (`-m npu`) it is vllm-ascend's.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine import EngineCoreRequest

from lynx_ascend.serving import compat
from lynx_ascend.serving.consumer import Consumer
from lynx_ascend.serving.producer import Producer
from lynx_ascend.serving.scheduler_half import SchedulerHalf
from tests.serving.force_async import force_async

ASYNC = os.environ.get("LYNX_TEST_ASYNC") == "1"
DEADLINE_S = 120.0


@dataclass
class Answer:
    """What the client of one request saw."""

    tokens: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)  # tokens in each output
    finish_reason: str | None = None
    text: str = ""
    params: dict[str, Any] | None = None
    logprobs: list[dict[int, Any]] | None = None  # of each token, where the request asked for them


class Engine:
    """Steps a vLLM engine by hand, so that a test can act between two steps."""

    def __init__(
        self,
        model: str,
        policy: str = "recompute",
        blocks: int | None = None,
        tokenizer: bool = True,
        **extra_config: Any,
    ) -> None:
        if compat.on_ascend():
            # The kernels take 16-bit caches; float32 over one is for emulated operators alone.
            platform: dict[str, Any] = {"block_size": 128, "kv_cache_dtype": "float16", "async_scheduling": ASYNC}
            platform["kv_cache_memory_bytes"] = 1 << 28
        else:
            platform = {"block_size": 32}
            if ASYNC:
                force_async()
        transfer = KVTransferConfig(
            kv_connector="LynxConnector",
            kv_role="kv_both",
            kv_load_failure_policy=policy,
            # The policies could end all drafting amid tests that are about drafts.
            kv_connector_extra_config={
                "method": "lynx",
                "window": "fixed",
                "health": False,
                "request_bandwidth": True,
                "stall": 5.0,
                **extra_config,
            },
        )
        self.llm = LLM(
            model,
            dtype="float32",
            max_model_len=8192,
            enforce_eager=True,
            disable_log_stats=False,
            kv_transfer_config=transfer,
            num_gpu_blocks_override=blocks,
            skip_tokenizer_init=not tokenizer,
            **platform,
        )
        self.engine = self.llm.llm_engine
        self.core = core = self.engine.engine_core.engine_core
        self.scheduler = core.scheduler
        assert isinstance(self.scheduler, AsyncScheduler) == ASYNC and (core.batch_queue is not None) == ASYNC
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        worker = get_kv_transfer_group()
        self.half: SchedulerHalf = self.scheduler.connector.scheduler_half
        self.producer: Producer = worker._producer
        self.consumer: Consumer = worker._consumer
        self.answers: dict[str, Answer] = {}
        self.completions: dict[str, dict[int, Any]] = {}  # by request and index, where n > 1
        self._free = self.free_blocks()
        self._count = 0

    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def add(self, prompt: list[int], params: dict[str, Any] | None = None, **kwargs: Any) -> str:
        """Adds a request; `lynx_*` keywords ride in its vllm_xargs, the others are sampling parameters."""
        self._count += 1
        request_id = f"test-{self._count}"
        extra: dict[str, Any] = {key: kwargs.pop(key) for key in list(kwargs) if key.startswith("lynx_")}
        if params is not None:
            extra["kv_transfer_params"] = params
        defaults = {"temperature": 0.0, "max_tokens": 64, "detokenize": self.llm.llm_engine.tokenizer is not None}
        sampling = SamplingParams(extra_args=extra or None, **{**defaults, **kwargs})
        self.engine.add_request(request_id, {"prompt_token_ids": prompt}, sampling)
        self.answers[request_id] = Answer()
        return request_id

    def step(self) -> None:
        for output in self.engine.step():
            answer, completion = self.answers[output.request_id], output.outputs[0]
            self.completions.setdefault(output.request_id, {}).update({c.index: c for c in output.outputs})
            answer.chunks.append(len(completion.token_ids) - len(answer.tokens))
            answer.tokens, answer.text = list(completion.token_ids), completion.text
            answer.logprobs = completion.logprobs
            if output.finished:
                answer.finish_reason, answer.params = completion.finish_reason, output.kv_transfer_params

    def run(self, *request_ids: str) -> list[Answer]:
        """Steps until all requests have ended and returns the answers asked for."""
        deadline = time.monotonic() + DEADLINE_S
        while self.engine.has_unfinished_requests():
            assert time.monotonic() < deadline, f"unfinished after {DEADLINE_S} s: {self.scheduler.requests.keys()}"
            self.step()
        return [self.answers[request_id] for request_id in request_ids]

    def answer(self, prompt: list[int], params: dict[str, Any] | None = None, **kwargs: Any) -> Answer:
        return self.run(self.add(prompt, params, **kwargs))[0]

    def prefill(self, prompt: list[int], **sampling: Any) -> dict[str, Any]:
        """Prefills for a remote decode; returns the kv_transfer_params that a proxy would pass on.

        sampling: the request's parameters; a proxy leaves them as they are, but for the number of tokens.
        """
        sampling = {**sampling, "max_tokens": 1, "n": 1, "min_tokens": min(sampling.get("min_tokens", 0), 1)}
        params = self.answer(prompt, {"do_remote_decode": True}, **sampling).params
        assert params is not None and params["do_remote_prefill"] is True
        self.step_until(lambda: params["remote_request_id"] in self.producer._held, "the prompt's hold")
        return params

    def remote(self, prompt: list[int], **kwargs: Any) -> Answer:
        """A request that is prefilled for, and decoded, under the same sampling parameters."""
        sampling = {key: value for key, value in kwargs.items() if not key.startswith("lynx_")}
        return self.answer(prompt, self.prefill(prompt, **sampling), **kwargs)

    def expire_leases(self) -> None:
        """As if the lease of every prompt that nobody fetched were over."""
        for held in self.producer._held.values():
            held.expires = 0.0

    def state(self, request_id: str) -> str | None:
        """The name of the SpecDecoder's state, None for a request that has none (any more)."""
        found = [remote for key, remote in self.half.remotes.items() if key.startswith(request_id + "-")]
        return found[0].decoder.state.name if found else None

    def step_until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"never came: {what}"
            self.step()

    def abort(self, request_id: str) -> None:
        self.engine.abort_request([request_id])

    def turn_away(self, params: dict[str, Any]) -> None:
        """What vLLM's API server does when a request with these kv_transfer_params has failed there."""
        sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": params})
        request = EngineCoreRequest(
            request_id="turned-away", prompt_token_ids=[0], mm_features=None, sampling_params=sampling,
            pooling_params=None, arrival_time=time.time(), lora_request=None, cache_salt=None,
            data_parallel_rank=None, abort_immediately=True,
        )  # fmt: skip
        self.core.add_request(*self.core.preprocess_add_request(request))

    def assert_clean(self) -> None:
        """Every pool, queue and table is back where it started."""
        deadline = time.monotonic() + 20.0
        while True:
            left = {
                "blocks": self._free - self.free_blocks(),
                "requests": len(self.scheduler.requests),
                "remotes": len(self.half.remotes),
                "private": len(self.half.private),
                "refused": len(self.half.refused),
                "first tokens": len(self.half.handover),
                "steps in flight": self.scheduler._lynx_in_flight.total(),
                "void steps": self.scheduler._lynx_void.total(),
                "stale rows": len(self.scheduler._lynx_stale_rows),
                "staged bytes": self.consumer.staged_bytes(),
                "jobs": len(self.consumer._jobs),
                "held prompts": len(self.producer._held),
                "queued bytes": self.producer.server.queued_bytes(),
            }
            if not any(left.values()):
                return
            assert time.monotonic() < deadline, f"not clean: {left}"
            if self.scheduler.has_requests() or self.core.batch_queue:
                self.step()
            else:
                time.sleep(0.01)
