"""The scheduler mixin: drafting as ordinary decoding with its output held back, then one speculative step."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from lynx_ascend.serving.metadata import FallbackCause
from lynx_ascend.serving.private_blocks import keep_out_of_prefix_cache
from lynx_ascend.serving.remote_request import RemoteRequest
from lynx_ascend.serving.scheduler_half import SchedulerHalf
from lynx_ascend.speculation.decoder import State

if TYPE_CHECKING:
    _Scheduler = Any
else:
    _Scheduler = object


@functools.cache
def with_mixin(scheduler: type[Any]) -> type[Any]:
    """`scheduler` with LynxSchedulerMixin in front."""
    if issubclass(scheduler, LynxSchedulerMixin):
        return scheduler
    return type(f"Lynx{scheduler.__name__}", (LynxSchedulerMixin, scheduler), {})


class LynxSchedulerMixin(_Scheduler):
    """Drives the SpecDecoders of a vLLM scheduler's remote requests; inert where the connector is another.

    While a request drafts it is in the ordinary batch; `_update_request_with_output` keeps its tokens from the client.
    Verification clears them, hands them to the next step as `spec_token_ids` and lets vLLM's own rejection sampler and
    stop rules have the last word. With asynchronous scheduling the next step is scheduled before the last one's output
    is back, so a request is held until nothing of it is in flight before its tokens are changed behind the worker.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        half = getattr(self.connector, "scheduler_half", None)
        self._lynx: SchedulerHalf | None = half if isinstance(half, SchedulerHalf) else None
        self._lynx_told: list[tuple[int, EngineCoreOutput]] = []  # what clients (by index) are to be told in this step
        self._lynx_in_flight: Counter[str] = Counter()  # steps of a remote request whose output is not back
        self._lynx_void: Counter[str] = Counter()  # those of them that a preemption made void
        self._lynx_stale_rows: set[str] = set()  # requests whose tokens were changed behind the worker
        if self._lynx is not None:
            keep_out_of_prefix_cache(self.kv_cache_manager, self._lynx.private)

    # Arrival.

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        remote = self._lynx.remotes.get(request.request_id) if self._lynx else None
        if remote is not None and remote.first is not None:
            self._hand_over(remote, request, remote.first)

    def _hand_over(self, remote: RemoteRequest, request: Any, token: int) -> None:
        """The token that the prefill instance sampled becomes the request's first output, and may be its last."""
        assert self._lynx is not None
        waiting = request.status
        request.append_output_token_ids(token)
        stop = check_stop(request, self.max_model_len)
        self._lynx.on_first_token(remote, token, stop=stop)
        if stop:
            finished, request.status = request.status, waiting
            self.finish_requests(request.request_id, finished)
        # What vLLM tells of a request with its first token. A prompt that is computed here in the end stays counted as
        # fetched.
        if (stats := request.take_prefill_stats()) is not None:
            tokens = request.num_prompt_tokens
            stats.set(num_prompt_tokens=tokens, num_local_cached_tokens=0, num_external_cached_tokens=tokens)
        self._tell(request, [token], stats)

    def _tell(self, request: Any, tokens: list[int], prefill_stats: Any = None) -> None:
        """A request's client gets tokens, or hears of its end, with the next step's output."""
        if self.log_stats:  # the front end takes times from it, which would be the machine's uptime without it
            request.record_event(EngineCoreEventType.SCHEDULED)
        output = EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=tokens,
            finish_reason=request.get_finished_reason(),
            stop_reason=request.stop_reason,
            events=request.take_events(),
            prefill_stats=prefill_stats,
            trace_headers=request.trace_headers,
        )
        self._lynx_told.append((request.client_index, output))

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        if finished_status == RequestStatus.FINISHED_ABORTED and request_ids is not None:
            request_ids = {request_ids} if isinstance(request_ids, str) else set(request_ids)
            # Nobody is told of them any more, were it the token that has ended one: an id may be another's by then.
            self._lynx_told = [told for told in self._lynx_told if told[1].request_id not in request_ids]
        return super().finish_requests(request_ids, finished_status)

    # Loading.

    def _update_waiting_for_remote_kv(self, request: Any) -> None:
        remote = self._lynx.remotes.get(request.request_id) if self._lynx else None
        if remote is None:
            super()._update_waiting_for_remote_kv(request)
            return
        assert self._lynx is not None
        if remote.failure is not None and request.request_id not in self.failed_recving_kv_req_ids:
            # The anchor came, then the residual failed while the request still waited for a place in the batch.
            request.num_computed_tokens = 0
            self.failed_recving_kv_req_ids.add(request.request_id)
        failed = request.request_id in self.failed_recving_kv_req_ids
        super()._update_waiting_for_remote_kv(request)
        if failed:
            self._lynx.give_up(remote, FallbackCause.TRANSFER, remote.failure or "the transfer failed")
        elif remote.drafts:
            remote.decoder.on_anchor_ready()
            self._lynx.trace("draft_start", request.request_id)
            if remote.residual_ready:
                self._begin_verify(remote, request)
        else:
            remote.decoder.on_exact_ready()
            self._lynx.trace("exact", request.request_id)
            self._lynx.complete(remote)

    # Scheduling.

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._lynx is None:
            return super().schedule(*args, **kwargs)
        self._lynx.policy.begin_step()
        if not self.recompute_kv_load_failures:
            self._end_failed()
        for remote, request in self._running_remotes():
            if self._lynx_in_flight[remote.request_id]:
                continue
            if remote.failure is not None:
                self.running.remove(request)
                self._preempt_request(request, time.monotonic())  # which has it recomputed
            elif remote.residual_ready and remote.decoder.state in (State.DRAFTING, State.PARKED):
                self._begin_verify(remote, request)
        if self._lynx.refused:
            refused = [self.requests[key] for key in self._lynx.refused if key in self.requests]
            self.finish_requests(list(self._lynx.refused), RequestStatus.FINISHED_ERROR)
            for request in refused:
                self._tell(request, [])
            self._lynx.refused.clear()
        with self._held():
            output = super().schedule(*args, **kwargs)
        self._lynx_in_flight.update(self._lynx.remotes.keys() & output.num_scheduled_tokens.keys())
        self._rebuild_rows(output)
        return output

    def _running_remotes(self) -> list[tuple[RemoteRequest, Any]]:
        assert self._lynx is not None
        pairs = [(remote, self.requests.get(remote.request_id)) for remote in self._lynx.remotes.values()]
        return [(remote, r) for remote, r in pairs if r is not None and r.status == RequestStatus.RUNNING]

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Keeps schedule() away from the requests that are parked, on their way there, or being verified, and from
        those whose next draft is not worth its step.

        They look as if nothing of them were left to compute: every scheduler passes over such a request. Those that
        would enter the batch with their first draft look as if they were still being loaded.
        """
        assert self._lynx is not None
        held, loading = [], []
        running = self._running_remotes()
        batch = len(self.running) - sum(remote.decoder.state is State.PARKED for remote, _ in running)
        for remote, request in running:
            if self._is_held(remote, batch - 1):
                everything = min(request.num_tokens_with_spec + request.num_output_placeholders, self.max_model_len - 1)
                held.append((request, request.num_computed_tokens, everything))
                request.num_computed_tokens = everything
        for request_id in self.finished_recving_kv_req_ids - self.failed_recving_kv_req_ids:
            entering = self._lynx.remotes.get(request_id)
            if entering is not None and entering.may_wait and not self._lynx.drafts_more(entering, 0, batch):
                loading.append(request_id)
        self.finished_recving_kv_req_ids.difference_update(loading)
        try:
            yield
        finally:
            self.finished_recving_kv_req_ids.update(loading)
            for request, computed, everything in held:
                if request.num_computed_tokens == everything:  # else it was preempted meanwhile
                    request.num_computed_tokens = computed

    def _is_held(self, remote: RemoteRequest, others: int) -> bool:
        assert self._lynx is not None
        in_flight = self._lynx_in_flight[remote.request_id]
        match remote.decoder.state:
            case State.PARKED:
                return True
            case State.VERIFYING:
                return in_flight > 0
            case State.DRAFTING:
                return not remote.may_wait or not self._lynx.drafts_more(remote, in_flight, others)
        return False

    def _begin_verify(self, remote: RemoteRequest, request: Any) -> None:
        """Back to the last prompt token, or to the one handed over, with the drafts as speculative tokens.

        Commit needs no order of its own: the worker has refined each page as its residual came (Consumer).
        """
        assert self._lynx is not None
        drafts = self._lynx.begin_verify(remote, alone=self.running == [request])
        self._drop_drafts(remote, request)
        request.num_computed_tokens = request.num_tokens - 1
        request.spec_token_ids = list(drafts)
        if drafts:  # else the request may be a new one, which has no row
            self._lynx_stale_rows.add(remote.request_id)

    def _rebuild_rows(self, output: Any) -> None:
        """Has the worker build a request's row again, as after a preemption, where its tokens have changed."""
        cached = output.scheduled_cached_reqs
        for request_id in self._lynx_stale_rows & output.num_scheduled_tokens.keys():
            index = cached.req_ids.index(request_id)
            cached.resumed_req_ids.add(request_id)
            cached.new_block_ids[index] = self.kv_cache_manager.get_block_ids(request_id)
            cached.all_token_ids[request_id] = self.requests[request_id].all_token_ids.copy()
            self._lynx_stale_rows.remove(request_id)

    def _drop_drafts(self, remote: RemoteRequest, request: Any) -> None:
        """Takes the drafts out of the request again: tokens, and the hashes of blocks they filled."""
        handed = int(remote.decoder.first is not None)
        kept = request.num_prompt_tokens + handed
        del request._output_token_ids[handed:]
        del request._all_token_ids[kept:]
        del request.block_hashes[kept // self.kv_cache_manager.block_pool.hash_block_size :]

    # Output.

    def make_spec_decoding_stats(self, stats: Any, *args: Any, **kwargs: Any) -> Any:
        # vLLM's counters are sized for speculative_config, which a Lynx engine does not have.
        if self._lynx is not None and kwargs.get("request_id") in self._lynx.remotes:
            return stats
        return super().make_spec_decoding_stats(stats, *args, **kwargs)

    def make_stats(self, spec: Any = None, kv_connector_stats: Any = None, *args: Any, **kwargs: Any) -> Any:
        # vLLM 0.23 asks the connector before it goes through a step's outputs, and only beside a worker's report: a
        # verification would not show before another step.
        if self._lynx is not None and self.log_stats and (ours := self.connector.get_kv_connector_stats()) is not None:
            kv_connector_stats = ours if kv_connector_stats is None else kv_connector_stats.aggregate(ours)
        return super().make_stats(spec, kv_connector_stats, *args, **kwargs)

    def _update_request_with_output(
        self, request: Any, new_token_ids: list[int], *args: Any, **kwargs: Any
    ) -> tuple[list[int], bool]:
        remote = self._lynx.remotes.get(request.request_id) if self._lynx else None
        if remote is None:
            return super()._update_request_with_output(request, new_token_ids, *args, **kwargs)
        assert self._lynx is not None
        if remote.decoder.state is State.VERIFYING:
            tokens, stopped = super()._update_request_with_output(request, new_token_ids, *args, **kwargs)
            self._lynx.on_verified(remote, tokens)
            # With asynchronous scheduling the worker does not know yet how many tokens were accepted.
            self._lynx_stale_rows.add(request.request_id)
            return tokens, stopped
        if request.num_output_placeholders:  # asynchronous scheduling
            request.num_output_placeholders -= len(new_token_ids)
        for token in new_token_ids:
            if remote.decoder.state is State.PARKED:  # was in flight when the draft became complete
                break
            request.append_output_token_ids(token)
            self._lynx.trace("draft", request.request_id)
            stop = check_stop(request, self.max_model_len)
            if stop:  # a draft never ends a request; the same rule decides again over the verified tokens
                request.status, request.stop_reason = RequestStatus.RUNNING, None
            remote.decoder.on_draft_token(token, stop=stop)
        return [], False

    def update_from_output(
        self, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any
    ) -> dict[int, EngineCoreOutputs]:
        if self._lynx is not None:
            scheduled = scheduler_output.num_scheduled_tokens
            drafts = scheduler_output.scheduled_spec_decode_tokens
            self._lynx.policy.end_step(scheduled.values(), [len(tokens) for tokens in drafts.values()])
        for request_id in self._lynx_in_flight.keys() & scheduler_output.num_scheduled_tokens.keys():
            _take_one(self._lynx_in_flight, request_id)
            if request_id in self._lynx_void:
                _take_one(self._lynx_void, request_id)
                if model_runner_output.sampled_token_ids:
                    model_runner_output.sampled_token_ids[model_runner_output.req_id_to_index[request_id]] = []
        told, self._lynx_told = self._lynx_told, []
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output, *args, **kwargs
        )
        for client, output in reversed(told):  # before what vLLM tells: a first token before the error that follows it
            outputs.setdefault(client, EngineCoreOutputs()).outputs.insert(0, output)
        self._lynx_stale_rows &= self.requests.keys()
        return outputs

    # Failure.

    def _end_failed(self) -> None:
        """kv_load_failure_policy "fail": also while a request waits, lest the next step begins to recompute it."""
        assert self._lynx is not None
        for remote in self._lynx.remotes.values():
            if remote.failure is not None:
                cause = FallbackCause.TRANSFER
                self._lynx.trace("fallback", remote.request_id, cause=cause, reason=remote.failure)
                self._lynx.refused[remote.request_id] = remote.failure

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """A preempted request loses its blocks and so the transfer: drafts are dropped, the prompt is recomputed."""
        remote = self._lynx.remotes.get(request.request_id) if self._lynx else None
        if remote is None:
            super()._preempt_request(request, *args, **kwargs)
            return
        assert self._lynx is not None
        self._drop_drafts(remote, request)
        cause = FallbackCause.PREEMPTED if remote.failure is None else FallbackCause.TRANSFER
        self._lynx.give_up(remote, cause, remote.failure or "preempted")
        super()._preempt_request(request, *args, **kwargs)
        # What is still in flight was computed on the approximate cache, whatever vLLM does with other requests' output.
        request.num_output_placeholders = 0
        if self._lynx_in_flight[request.request_id]:
            self._lynx_void[request.request_id] = self._lynx_in_flight[request.request_id]
        self._lynx_stale_rows.discard(request.request_id)
        # It may be resumed by this very schedule(): the worker must take its row for a new one all the same.
        self.prev_step_scheduled_req_ids.discard(request.request_id)


def _take_one(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
