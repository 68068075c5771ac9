"""The connector's scheduler half: decides what is fetched, holds one SpecDecoder a request, and gives the orders."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from vllm.v1.request import RequestStatus

from lynx_ascend.codec.config import Stream
from lynx_ascend.paged import streams
from lynx_ascend.serving import compat
from lynx_ascend.serving.counting import Listener
from lynx_ascend.serving.drafting import greedy, may_draft
from lynx_ascend.serving.handover import Handover
from lynx_ascend.serving.metadata import FallbackCause, LynxMetadata, LynxWorkerMetadata, Progress, PullOrder, SendOrder
from lynx_ascend.serving.options import AUTO, LynxOptions, OptionError, RequestOptions
from lynx_ascend.serving.policy import Policy
from lynx_ascend.serving.remote_request import RemoteRequest
from lynx_ascend.serving.transfer_params import RemotePrompt, TransferParamsError, wants_remote_decode
from lynx_ascend.speculation.actions import Verify
from lynx_ascend.speculation.decoder import SpecDecoder, State
from lynx_ascend.speculation.window import FixedWindow

logger = logging.getLogger("vllm.lynx_ascend.scheduler")
_LOADING = (State.WAITING, State.HANDED)
_UNVERIFIED = (State.DRAFTING, State.PARKED, State.VERIFYING)
LOSSLESS = "bf16"  # the one method whose KV may be shared with other requests through the prefix cache


class SchedulerHalf:
    """State of every remote request, keyed by request id.

    Attributes:
        remotes: the requests under way.
        private: requests whose blocks hold reconstructed KV and must stay out of the prefix cache, until they finish.
        refused: requests that cannot be served, with the reason; the scheduler mixin ends them with an error.
        handover: first tokens that P sampled.
        policy: what this instance has learned, and decides by.

    Args:
        unusable: methods that cannot code this model's heads, with the reason.
        drafting: False where the engine's verification would not be right for any request.
        fetching: False where the engine has no worker that fetches: a prefill instance.
    """

    def __init__(
        self,
        options: LynxOptions,
        engine_id: str,
        workers: int,
        trace: Listener,
        policy: Policy,
        handover: Handover,
        *,
        unusable: Mapping[str, str],
        drafting: bool,
        fetching: bool,
    ) -> None:
        self.options = options
        self.policy = policy
        self._unusable = unusable
        self._drafting = drafting
        self._fetching = fetching
        self.remotes: dict[str, RemoteRequest] = {}
        self.private: set[str] = set()
        self.refused: dict[str, str] = {}
        self.handover = handover
        self._engine_id = engine_id
        self._workers = workers
        self._trace = trace
        self._address: tuple[str, int] | None = None
        self._orders = LynxMetadata()
        self._votes: dict[str, int] = {}
        self._generation = 0

    def set_address(self, host: str, port: int) -> None:
        """Where this instance's worker serves KV."""
        self._address = (host, port)

    # Arrival and allocation, on the decode side.

    def on_new_request(self, request: Any) -> None:
        """Reads what the request asks for; what cannot be used is refused, never guessed."""
        params, source = request.kv_transfer_params, None
        try:
            source = RemotePrompt.from_params(params)
            if source is None:
                return
            if compat.was_turned_away(request):
                self._decline(source)
                return
            if not self._fetching:  # the request would wait, and hold its blocks, for ever
                raise OptionError("do_remote_prefill: this instance (kv_role kv_producer) fetches no KV")
            if request.sampling_params is None:
                raise OptionError("do_remote_prefill: only for requests that generate text")
            options = RequestOptions.parse(self.options, request.sampling_params.extra_args)
            if options.method in self._unusable:
                raise OptionError(f"lynx_method: {self._unusable[options.method]}")
            first = self.handover.token_for(request, source)
        except (TransferParamsError, OptionError) as error:
            request.kv_transfer_params = None  # the engine reads them too, and trusts their type
            self._refuse(request.request_id, str(error), source)
            return
        if source.remote_tokens != request.num_prompt_tokens:
            tokens = f"remote_tokens {source.remote_tokens}, but the prompt has {request.num_prompt_tokens} tokens"
            self._refuse(request.request_id, f"kv_transfer_params: {tokens}", source)
            return
        if self.handover.is_spent(source) or any(remote.source == source for remote in self.remotes.values()):
            # n > 1: a prompt is handed out once, and so is its first token, though it may have ended the request that
            # took it. The engine computes the prompt for the others, which share it as usual.
            self._trace("sibling", request.request_id, source=source.remote_request_id)
            return
        remaining = max(request.max_tokens - (first is not None), 1)
        cap = FixedWindow(options.draft_cap).draft_cap(remaining)
        cap = cap if self._drafting and may_draft(request) else 0
        method = options.method
        if method == AUTO:
            method = self.policy.choose(source.remote_host, request.num_prompt_tokens, remaining, cap, options)
            if method == "bf16" or (method == "8bit" and cap):
                self._trace("skip", request.request_id, reason=f"break-even: {method}")
            if method == "8bit":
                method, cap = "lynx", 0
            options = msgspec.structs.replace(options, method=method)
        drafts = cap > 0 and Stream.RESIDUAL in streams(method)
        if drafts and not self.policy.admits():
            self._trace("skip", request.request_id, reason="health")
            drafts = False
        decoder = SpecDecoder(request.request_id, cap=cap if drafts else 0)
        random = not greedy(request.sampling_params)
        remote = RemoteRequest(request.request_id, decoder, source, options, drafts, random, first)
        self.remotes[request.request_id] = remote
        if options.method != LOSSLESS:
            self.private.add(request.request_id)

    def on_first_token(self, remote: RemoteRequest, token: int, *, stop: bool) -> None:
        """The engine has taken over the first token. stop: it ends the request, nothing is fetched."""
        remote.decoder.on_first_token(token, stop=stop)
        self._trace("handed", remote.request_id)
        self.handover.on_handed(remote.request_id, remote.source, token)
        if stop:  # the end of the request, which comes now, has the handover forget it
            self.complete(remote)
            self._decline(remote.source)

    def _refuse(self, request_id: str, reason: str, source: RemotePrompt | None) -> None:
        logger.error("request %s refused: %s", request_id, reason)
        self._trace("refused", request_id, reason=reason)
        self.refused[request_id] = reason
        if source is not None:
            self._decline(source)

    def _decline(self, source: RemotePrompt) -> None:
        """A prompt will not be fetched: its prefill instance is told."""
        self._orders.declined.append(source)

    def tokens_to_load(self, request: Any, computed: int) -> int:
        """Tokens beyond the first `computed` that come from the prefill instance."""
        remote = self.remotes.get(request.request_id)
        if remote is None or remote.decoder.state not in _LOADING or request.skip_reading_prefix_cache:
            return 0  # the last one: prompt_logprobs, for one, needs the prompt computed here
        return max(request.num_prompt_tokens - computed, 0)

    def on_allocated(self, request: Any, block_ids: list[int], external: int) -> None:
        """Orders the transfer into the blocks that were just allocated."""
        remote = self.remotes.get(request.request_id)
        if remote is None:
            return
        if external == 0:
            if remote.decoder.state is State.HANDED:  # a lookup that may find the prompt's last token too has found all
                remote.decoder.on_exact_ready()
                self.complete(remote)
                self._decline(remote.source)
            elif remote.decoder.state is State.WAITING:
                self.give_up(remote, FallbackCause.PROMPT, "the engine must compute the prompt itself")
            return
        order = PullOrder(
            request_id=request.request_id,
            source=remote.source,
            generation=self._next_generation(),
            method=remote.options.method,
            block_ids=block_ids,
            first=request.num_prompt_tokens - external,
            wait_all=not remote.drafts,
            bandwidth=remote.options.bandwidth,
        )
        self._orders.pulls.append(order)
        remote.pulled = True
        source = remote.source.remote_request_id
        self._trace("pull", request.request_id, source=source, method=order.method, tokens=request.num_prompt_tokens)

    def _next_generation(self) -> int:
        """Microseconds since the epoch: grows from attempt to attempt, across restarts too."""
        self._generation = max(self._generation + 1, time.time_ns() // 1000)
        return self._generation

    # Every step.

    def build_meta(self, new: Iterable[str]) -> LynxMetadata:
        """The orders that came up since the last step, and who drafts in this one.

        Args:
            new: the requests that get a row on the worker.
        """
        orders, self._orders = self._orders, LynxMetadata()
        orders.drafting = [r.request_id for r in self.remotes.values() if r.random and r.decoder.state in _UNVERIFIED]
        orders.handed = self.handover.rows(new)
        return orders

    def on_worker_report(self, report: LynxWorkerMetadata | None) -> None:
        """Takes in what arrived. Acted upon in the next schedule(): the engine is between two steps only there."""
        if report is None:
            return
        if report.costs is not None:
            self.policy.kv = report.costs
        for request_id, count in report.residual_ready.items():
            votes = self._votes[request_id] = self._votes.get(request_id, 0) + count
            if votes >= self._workers:
                del self._votes[request_id]
                if request_id in self.remotes:
                    self.remotes[request_id].residual_ready = True
        for request_id, progress in report.progress.items():
            if request_id in self.remotes:
                self.remotes[request_id].progress = progress
                if not progress.left:
                    self._on_complete(self.remotes[request_id], progress)
        for request_id, reason in report.failures.items():
            if request_id in self.remotes:
                self.remotes[request_id].failure = reason

    def _on_complete(self, remote: RemoteRequest, progress: Progress) -> None:
        if remote.residual_at is None and remote.options.bandwidth is None:
            self.policy.on_transfer(remote.source.remote_host, progress)
        remote.residual_at = self.policy.now() - progress.age

    def drafts_more(self, remote: RemoteRequest, in_flight: int, others: int) -> bool:
        """Whether the next step of a request that drafts is worth it (Policy.drafts_more)."""
        t_residual = math.inf if remote.progress is None else remote.progress.time_left
        more = self.policy.drafts_more(
            remote.decoder, remote.options, t_residual=t_residual, in_flight=in_flight, others=others
        )
        remote.waited |= not more
        return more

    def begin_verify(self, remote: RemoteRequest, *, alone: bool) -> tuple[int, ...]:
        """The Residual is there and nothing of the request is in flight: its drafts, to be verified.

        alone: the engine serves no other request; else the step in which the Residual came ran in any case.
        """
        _, verify = remote.decoder.on_residual_ready()
        assert isinstance(verify, Verify)
        if alone and remote.residual_at is not None:
            remote.overrun = max(0.0, self.policy.now() - remote.residual_at)
        self._trace("verify_start", remote.request_id, drafted=len(verify.drafts))
        return verify.drafts

    # The end.

    def on_verified(self, remote: RemoteRequest, tokens: list[int]) -> None:
        """The verify pass gave `tokens`: the request is an ordinary one from here on."""
        drafted = len(remote.decoder.drafts)
        remote.decoder.on_verified(tokens)
        self.policy.on_verified(remote.decoder, waited=remote.waited, overrun=remote.overrun)
        self._trace("verified", remote.request_id, drafted=drafted, accepted=remote.decoder.accepted)
        self.complete(remote)

    def give_up(self, remote: RemoteRequest, cause: FallbackCause, reason: str) -> None:
        """The request leaves the transfer behind; the caller recomputes it or ends it."""
        logger.warning("request %s: transfer given up: %s", remote.request_id, reason)
        self._trace("fallback", remote.request_id, cause=cause, reason=reason)
        remote.decoder.on_failure(reason)
        self._forget(remote.request_id)
        self.private.discard(remote.request_id)
        self._end_transfer(remote)

    def _end_transfer(self, remote: RemoteRequest) -> None:
        if remote.pulled:
            self._orders.drops.append(remote.request_id)
        else:
            self._decline(remote.source)

    def complete(self, remote: RemoteRequest) -> None:
        """The request is an ordinary one from here on; the worker has let go of the transfer by itself."""
        self._forget(remote.request_id)

    def on_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """The request ends, whatever the reason.

        Returns:
            (True, params) where the blocks must wait for a decode instance to fetch them; else (False, None).
        """
        request_id = request.request_id
        remote = self.remotes.get(request_id)
        if remote is not None:
            remote.decoder.on_abort()
            self._trace("abort", request_id)
            self._forget(request_id)
            self._end_transfer(remote)
        self.private.discard(request_id)
        self.refused.pop(request_id, None)
        self.handover.forget(request_id)
        finished = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
        if not wants_remote_decode(request.kv_transfer_params) or request.status not in finished:
            return False, None
        if self._address is None:
            logger.error("request %s: no worker serves KV here: is kv_role kv_consumer?", request_id)
            return False, None
        tokens = request.num_prompt_tokens
        self._orders.sends.append(SendOrder(request_id, block_ids, tokens))
        self._trace("prefilled", request_id, tokens=tokens)
        host, port = self._address
        first = request.output_token_ids[0] if request.num_output_tokens == 1 else None
        return True, RemotePrompt(self._engine_id, request_id, host, port, tokens, first).to_params()

    def trace(self, event: str, request_id: str, **fields: Any) -> None:
        """Tells of an event: it is counted, and traced if there is a trace."""
        self._trace(event, request_id, **fields)

    def _forget(self, request_id: str) -> None:
        self.remotes.pop(request_id, None)
        self._votes.pop(request_id, None)
