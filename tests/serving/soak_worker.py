"""The worker of the soak: vLLM's V1 runner in outline, and a Consumer and a Producer whose links fail at will."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from lynx_ascend.paged import streams
from lynx_ascend.serving.metadata import LynxWorkerMetadata, Progress, PullOrder, SendOrder
from lynx_ascend.serving.transfer_params import RemotePrompt
from lynx_ascend.speculation.break_even import KVCosts
from tests.serving.soak_model import Cache, Quality, entries, next_token

COSTS = KVCosts(bf16=320.0, anchor=93.0, residual=80.0, encode=4e8, anchor_decode=8e8, full_decode=6e8)


@dataclass
class Row:
    """What the runner knows of a request. Tokens that only the device has (asynchronous scheduling) are -1."""

    prompt: list[int]
    blocks: list[int]
    output: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # of the row in the persistent batch


class Runner:
    """The bookkeeping of GPUModelRunner for one KV cache group: which row is where, and which tokens it runs."""

    def __init__(self, cache: Cache, asynchronous: bool) -> None:
        self._cache, self._async = cache, asynchronous
        self._rows: dict[str, Row] = {}
        self._batch: set[str] = set()
        self._last: dict[str, int] = {}  # prev_sampled_token_ids by request

    def run(self, output: Any) -> dict[str, list[int]]:
        """One step: the tokens sampled, by request."""
        self._update_states(output)
        sampled = {
            request_id: self._forward(request_id, self._computed[request_id], scheduled, output)
            for request_id, scheduled in output.num_scheduled_tokens.items()
        }
        if sampled:
            self._keep_books(sampled, output)
        return sampled

    def assert_empty(self) -> None:
        assert not self._rows and not self._batch, f"rows left: {self._rows.keys() | self._batch}"

    def _update_states(self, output: Any) -> None:
        for request_id in output.finished_req_ids:
            self._rows.pop(request_id, None)
            self._remove(request_id)
        for copy in getattr(output, "kv_cache_block_copies", None) or ():
            self._cache.copy(copy.src_block_id, copy.dst_block_id)
        cached = output.scheduled_cached_reqs
        for request_id in self._batch - (output.num_scheduled_tokens.keys() - cached.resumed_req_ids):
            self._remove(request_id)
        self._computed: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            assert new.req_id not in self._rows
            handed = output.kv_connector_metadata.handed  # as runner_patch takes it
            first = [handed[new.req_id]] if new.req_id in handed else []
            row = self._rows[new.req_id] = Row(list(new.prompt_token_ids), list(new.block_ids[0]), first)
            self._add(new.req_id, row)
            self._computed[new.req_id] = new.num_computed_tokens
        for i, request_id in enumerate(cached.req_ids):
            row, new_blocks, outputs = self._rows[request_id], cached.new_block_ids[i], cached.num_output_tokens[i]
            self._computed[request_id] = cached.num_computed_tokens[i]
            if outputs < len(row.output):
                del row.output[outputs:]
                del row.tokens[len(row.prompt) + outputs :]
            if request_id in cached.resumed_req_ids:
                assert request_id not in self._batch and new_blocks is not None
                row.blocks = list(new_blocks[0])
            elif new_blocks is not None:
                row.blocks += new_blocks[0]
            if request_id not in self._batch:
                if self._async and outputs > 0:
                    row.output = list(cached.all_token_ids[request_id][-outputs:])
                self._add(request_id, row)

    def _remove(self, request_id: str) -> None:
        self._batch.discard(request_id)
        self._last.pop(request_id, None)

    def _add(self, request_id: str, row: Row) -> None:
        row.tokens = row.prompt + row.output
        self._batch.add(request_id)

    def _forward(self, request_id: str, computed: int, scheduled: int, output: Any) -> list[int]:
        """Writes the step's entries; returns the tokens sampled, none in the middle of a prefill."""
        row, drafts = self._rows[request_id], output.scheduled_spec_decode_tokens.get(request_id, [])
        known = row.tokens + drafts
        tokens = known[computed : computed + scheduled]
        assert len(tokens) == scheduled, f"{request_id}: {scheduled} tokens from {computed} of {len(known)}"
        if request_id in self._last:
            tokens[len(tokens) - 1 - len(drafts)] = self._last[request_id]
        assert min(tokens) >= 0, f"{request_id}: the runner does not know the tokens {tokens}"
        digests, quality = self._cache.read(row.blocks, computed)
        before, worst = (int(digests[-1]), Quality(int(quality[-1]))) if computed else (0, Quality.EXACT)
        self._cache.write(row.blocks, computed, tokens, worst, before)
        if computed + scheduled < len(row.prompt) + len(row.output):
            return []
        digests, quality = self._cache.read(row.blocks, computed + scheduled)
        sampled: list[int] = []
        for i in range(len(drafts) + 1):
            at = computed + scheduled - 1 - len(drafts) + i
            sampled.append(next_token(int(digests[at]), Quality(int(quality[at]))))
            if i < len(drafts) and sampled[-1] != drafts[i]:
                break
        return sampled

    def _keep_books(self, sampled: dict[str, list[int]], output: Any) -> None:
        if self._async:  # and runner_patch: where a verified row goes on only the scheduler can tell
            drafted = output.scheduled_spec_decode_tokens
            self._last = {key: tokens[0] for key, tokens in sampled.items() if tokens and key not in drafted}
        for request_id, tokens in sampled.items():
            if tokens:
                row = self._rows[request_id]
                row.output += [-1] if self._async else tokens
                row.tokens += [-1] if self._async else tokens


@dataclass
class Plan:
    """What becomes of one transfer: times of the fake clock, after its order. `fails`: when, if at all."""

    anchor: float
    residual: float
    fails: float | None
    reason: str = "the link broke"


@dataclass
class _Job:
    order: PullOrder
    plan: Plan
    started: float
    deadline: float
    written: dict[Quality, int] = field(default_factory=dict)  # tokens of each quality, from order.first on
    reported: bool = False


class FakeConsumer:
    """serving.consumer.Consumer without a network: the same calls, reports and rules.

    plan: says what becomes of an order's transfer.
    prompts: the tokens of the remote prompts by remote_request_id.
    """

    def __init__(
        self,
        cache: Cache,
        clock: Callable[[], float],
        deadline: float,
        prompts: dict[str, list[int]],
        plan: Callable[[PullOrder], Plan],
        rng: random.Random,
    ) -> None:
        self._cache, self._clock, self._deadline = cache, clock, deadline
        self._prompts, self._plan, self._rng = prompts, plan, rng
        self.jobs: dict[str, _Job] = {}
        self._finished: set[str] = set()
        self._failed: set[int] = set()
        self._report = LynxWorkerMetadata(costs=COSTS)
        self._completed: dict[str, Progress] = {}  # since the last report
        self._old: list[str] = []  # requests whose transfers are over: their reports may come again
        self.counts: Counter[str] = Counter()
        self.told: set[str] = set()  # prompts of which the prefill side has heard: fetched, or declined

    def pull(self, order: PullOrder) -> None:
        source = order.source.remote_request_id
        rivals = any(job.order.source.remote_request_id == source for job in self.jobs.values())
        now = self._clock()
        assert order.request_id not in self.jobs
        self.told.add(source)
        self.jobs[order.request_id] = job = _Job(order, self._plan(order), now, now + self._deadline)
        if rivals:
            self._fail(job, "another request is fetching this prompt")

    def decline(self, prompt: RemotePrompt) -> None:
        self.told.add(prompt.remote_request_id)
        self.counts["declined"] += 1

    def drop(self, request_id: str) -> None:
        job = self.jobs.get(request_id)
        if job is not None:
            self._forget(job)
            if not job.reported:
                self._finished.add(request_id)

    def poll(self) -> None:
        now = self._clock()
        for job in list(self.jobs.values()):
            self._progress(job, now)
        if self._old and self._rng.random() < 0.05:  # twice and late
            request_id = self._rng.choice(self._old)
            if self._rng.random() < 0.5:
                self._report.residual_ready[request_id] += 1
            else:
                self._report.failures[request_id] = "said again"
            self.counts["repeated reports"] += 1

    def finished(self) -> set[str]:
        finished, self._finished = self._finished, set()
        return finished

    def failed_blocks(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def report(self) -> LynxWorkerMetadata | None:
        report, self._report = self._report, LynxWorkerMetadata()
        moving = {job.order.request_id: self._progress_of(job) for job in self.jobs.values() if job.reported}
        report.progress, self._completed = {**moving, **self._completed}, {}
        return report if report != LynxWorkerMetadata() else None

    def close(self) -> None:
        pass

    def _progress(self, job: _Job, now: float) -> None:
        plan, order = job.plan, job.order
        all_streams = streams(order.method)
        ended = plan.anchor if len(all_streams) == 1 else plan.residual
        final = Quality.EXACT if order.method == "bf16" else Quality.EIGHT
        if plan.fails is not None and now >= plan.fails:
            self._fail(job, plan.reason)
            return
        if not order.wait_all:
            self._write(job, Quality.ANCHOR, (now - job.started) / (plan.anchor - job.started))
        begun = job.started if len(all_streams) == 1 else plan.anchor
        self._write(job, final, (now - begun) / (ended - begun))
        if not job.reported and now >= (ended if order.wait_all else plan.anchor):
            job.reported = True
            self._finished.add(order.request_id)
        if now >= ended:
            if not order.wait_all:
                self._report.residual_ready[order.request_id] += 1
            self.counts["transfers completed"] += 1
            self._completed[order.request_id] = self._progress_of(job)
            self._forget(job)
        elif now > job.deadline:
            self._fail(job, "not complete after the deadline")

    def _progress_of(self, job: _Job) -> Progress:
        """As if a token had COSTS' bytes in each stream."""
        now, tokens = self._clock(), job.order.source.remote_tokens
        final = Quality.EXACT if job.order.method == "bf16" else Quality.EIGHT
        there = {quality: job.written.get(quality, 0) for quality in (Quality.ANCHOR, final)}
        left = int(COSTS.residual * (tokens - there[final]))
        received = int(COSTS.anchor * there[Quality.ANCHOR] + COSTS.residual * there[final])
        return Progress(left, received, now - job.started, 0.0)

    def _write(self, job: _Job, quality: Quality, share: float) -> None:
        """Has at least that share of the prompt in the blocks, in pieces of any length."""
        order = job.order
        prompt = self._prompts[order.source.remote_request_id]
        start = job.written.get(quality, order.first)
        end = len(prompt) if share >= 1 else order.first + int(max(share, 0.0) * (len(prompt) - order.first))
        if end > start:
            before = int(entries(prompt[:start]).sum())
            self._cache.write(order.block_ids, start, prompt[start:end], quality, before)
            job.written[quality] = end

    def _fail(self, job: _Job, reason: str) -> None:
        order = job.order
        self._report.failures[order.request_id] = reason
        self.counts["failed before the anchor" if not job.reported else "failed after the anchor"] += 1
        if not job.reported:
            job.reported = True
            self._failed.update(order.block_ids[order.first // self._cache.block_size :])
            self._finished.add(order.request_id)
        self._forget(job)

    def _forget(self, job: _Job) -> None:
        del self.jobs[job.order.request_id]
        self._old = [*self._old[-20:], job.order.request_id]


class FakeProducer:
    """serving.producer.Producer without a network: prompts are fetched, or their leases end, after `hold_s()`."""

    def __init__(self, clock: Callable[[], float], hold_s: Callable[[], float]) -> None:
        self._clock, self._hold_s = clock, hold_s
        self.held: dict[str, float] = {}

    def hold(self, order: SendOrder) -> None:
        self.held[order.request_id] = self._clock() + self._hold_s()

    def finished(self) -> set[str]:
        over = {request_id for request_id, until in self.held.items() if self._clock() > until}
        for request_id in over:
            del self.held[request_id]
        return over

    def close(self) -> None:
        pass


class Worker:
    """One engine worker: the runner and a real LynxConnector whose two halves are the stand-ins."""

    def __init__(self, connector: Any, runner: Runner, load_first: bool) -> None:
        self.connector, self.runner = connector, runner
        self._load_first = load_first  # vLLM 0.23 loads before the forward pass, 0.32 after it

    def execute(self, output: Any) -> ModelRunnerOutput:
        orders = output.kv_connector_metadata
        self.connector.handle_preemptions(orders)
        self.connector.bind_connector_metadata(orders)
        if self._load_first:
            self.connector.start_load_kv(None)
        sampled = self.runner.run(output)
        if not self._load_first:
            self.connector.start_load_kv(None)
        sent, received = self.connector.get_finished(output.finished_req_ids)
        report = KVConnectorOutput(
            finished_sending=sent or None,
            finished_recving=received or None,
            invalid_block_ids=self.connector.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=self.connector.build_connector_worker_meta(),
        )
        self.connector.clear_connector_metadata()
        ids: Sequence[str] = list(sampled)
        return ModelRunnerOutput(
            req_ids=list(ids),
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[list(tokens) for tokens in sampled.values()],
            kv_connector_output=report,
        )
