"""The scheduler mixin: drafting as ordinary decoding with its output held back, then one speculative step."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from lynx_ascend.serving.scheduler_half import RemoteRequest, SchedulerHalf
from lynx_ascend.speculation.actions import Park, Verify
from lynx_ascend.speculation.decoder import State

if TYPE_CHECKING:
    _Scheduler = Any
else:
    _Scheduler = object

NEVER = 1 << 60  # a step number that is not reached: the request is parked


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
    stop rules have the last word.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        half = getattr(self.connector, "scheduler_half", None)
        self._lynx: SchedulerHalf | None = half if isinstance(half, SchedulerHalf) else None
        self._lynx_ended: list[Any] = []  # refused requests whose clients are still to be told
        if self._lynx is not None:
            self._keep_out_of_prefix_cache(self._lynx.private)

    def _keep_out_of_prefix_cache(self, private: set[str]) -> None:
        """Blocks of a reconstructed prompt must not be found by their hash: other requests would decode on them."""
        coordinator = self.kv_cache_manager.coordinator
        cache_blocks = coordinator.cache_blocks

        def filtered(request: Any, *args: Any, **kwargs: Any) -> Any:
            return None if request.request_id in private else cache_blocks(request, *args, **kwargs)

        coordinator.cache_blocks = filtered

    def _get_local_prefix_cache_hit(self, request: Any) -> Any:
        # A locally cached prefix is exact where the transferred one is not: a hit would change the 8-bit cache.
        if self._lynx is not None and request.request_id in self._lynx.private:
            return self.kv_cache_manager.empty_kv_cache_blocks, 0, 0, False
        return super()._get_local_prefix_cache_hit(request)

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
            self._lynx.give_up(remote, remote.failure or "the transfer failed")
            if not self.recompute_kv_load_failures:
                self._lynx.refused[request.request_id] = "the transfer failed"
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
        for remote in list(self._lynx.remotes.values()):
            request = self.requests.get(remote.request_id)
            if request is None or request.status != RequestStatus.RUNNING or request.num_output_placeholders:
                continue
            if remote.failure is not None:
                self._recompute_or_fail(remote, request)
            elif remote.residual_ready and remote.decoder.state in (State.DRAFTING, State.PARKED):
                self._begin_verify(remote, request)
        if self._lynx.refused:
            self._lynx_ended += self.finish_requests(list(self._lynx.refused), RequestStatus.FINISHED_ERROR)
            self._lynx.refused.clear()
        output = super().schedule(*args, **kwargs)
        self._rebuild_rows(output)
        return output

    def _begin_verify(self, remote: RemoteRequest, request: Any) -> None:
        """Back to the last prompt token, with the drafts as speculative tokens.

        Commit needs no order of its own: the worker has refined each page as its residual came (Consumer).
        """
        _, verify = remote.decoder.on_residual_ready()
        assert isinstance(verify, Verify)
        self._drop_output(request)
        request.num_computed_tokens = request.num_prompt_tokens - 1
        request.spec_token_ids = list(verify.drafts)
        request.next_decode_eligible_step = 0
        remote.row_stale = bool(verify.drafts)
        assert self._lynx is not None
        self._lynx.trace("verify_start", remote.request_id, drafted=len(verify.drafts))

    def _rebuild_rows(self, output: Any) -> None:
        """The worker's row of the request holds the drafts as output: have it built again, as after a preemption."""
        assert self._lynx is not None
        cached = output.scheduled_cached_reqs
        for remote in self._lynx.remotes.values():
            if remote.row_stale and remote.request_id in output.num_scheduled_tokens:
                index = cached.req_ids.index(remote.request_id)
                cached.resumed_req_ids.add(remote.request_id)
                cached.new_block_ids[index] = self.kv_cache_manager.get_block_ids(remote.request_id)
                cached.all_token_ids[remote.request_id] = self.requests[remote.request_id].all_token_ids.copy()
                remote.row_stale = False

    def _drop_output(self, request: Any) -> None:
        """Takes the drafts out of the request again: tokens, and the hashes of blocks they filled."""
        prompt = request.num_prompt_tokens
        request._output_token_ids.clear()
        del request._all_token_ids[prompt:]
        del request.block_hashes[prompt // self.hash_block_size :]

    # Output.

    def make_spec_decoding_stats(self, stats: Any, *args: Any, **kwargs: Any) -> Any:
        # vLLM's counters are sized for speculative_config, which a Lynx engine does not have.
        if self._lynx is not None and kwargs.get("request_id") in self._lynx.remotes:
            return stats
        return super().make_spec_decoding_stats(stats, *args, **kwargs)

    def _update_request_with_output(
        self, request: Any, new_token_ids: list[int], *args: Any, **kwargs: Any
    ) -> tuple[list[int], bool]:
        remote = self._lynx.remotes.get(request.request_id) if self._lynx else None
        if remote is None:
            return super()._update_request_with_output(request, new_token_ids, *args, **kwargs)
        if remote.decoder.state is State.VERIFYING:
            tokens, stopped = super()._update_request_with_output(request, new_token_ids, *args, **kwargs)
            assert self._lynx is not None
            drafted = len(remote.decoder.drafts)
            remote.decoder.on_verified(tokens)
            self._lynx.trace("verified", request.request_id, drafted=drafted, accepted=remote.decoder.accepted)
            self._lynx.complete(remote)
            return tokens, stopped
        assert self._lynx is not None
        for token in new_token_ids:
            request.append_output_token_ids(token)
            self._lynx.trace("draft", request.request_id)
            stop = check_stop(request, self.max_model_len)
            if stop:  # a draft never ends a request; the same rule decides again over the verified tokens
                request.status, request.stop_reason = RequestStatus.RUNNING, None
            for action in remote.decoder.on_draft_token(token, stop=stop):
                if isinstance(action, Park):
                    request.next_decode_eligible_step = NEVER
        return [], False

    def update_from_output(self, *args: Any, **kwargs: Any) -> dict[int, EngineCoreOutputs]:
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(*args, **kwargs)
        for request in self._lynx_ended:
            ended = EngineCoreOutput(
                request_id=request.request_id,
                new_token_ids=[],
                finish_reason=request.get_finished_reason(),
                events=request.take_events(),
                trace_headers=request.trace_headers,
            )
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(ended)
        self._lynx_ended.clear()
        return outputs

    # Failure.

    def _recompute_or_fail(self, remote: RemoteRequest, request: Any) -> None:
        """The residual will not come: recompute the prompt here, or end the request, as kv_load_failure_policy says."""
        assert self._lynx is not None and remote.failure is not None
        if self.recompute_kv_load_failures:
            self.running.remove(request)
            self._preempt_request(request, time.monotonic())
        else:
            self._lynx.trace("fallback", request.request_id, reason=remote.failure)
            self._lynx.refused[request.request_id] = remote.failure

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """A preempted request loses its blocks and so the transfer: drafts are dropped, the prompt is recomputed."""
        remote = self._lynx.remotes.get(request.request_id) if self._lynx else None
        if remote is not None:
            assert self._lynx is not None
            self._drop_output(request)
            request.next_decode_eligible_step = 0
            self._lynx.give_up(remote, remote.failure or "preempted")
        super()._preempt_request(request, *args, **kwargs)
