"""The runner patch: vLLM's V1 model runner verifies drafts without speculative_config, and takes first tokens over."""

from __future__ import annotations

from typing import Any

from lynx_ascend.serving import compat, verification
from lynx_ascend.serving.metadata import LynxMetadata


def install(runner: type[Any]) -> None:
    """Patches a V1 model runner's class, once. Steps without drafts to verify run as before.

    A speculative_config of its own would turn off features of ordinary requests for the whole engine, so the runner
    gets a rejection sampler, and whatever else it needs, only where a step carries speculative tokens.
    """
    if "_lynx_prepare_inputs" in runner.__dict__:
        return
    prepare_inputs, bookkeeping_sync = runner._prepare_inputs, runner._bookkeeping_sync
    update_states = runner._update_states

    def _update_states(self: Any, scheduler_output: Any) -> Any:
        metadata = scheduler_output.kv_connector_metadata
        handed = dict(metadata.handed) if isinstance(metadata, LynxMetadata) else {}
        if not handed:
            return update_states(self, scheduler_output)
        # vLLM's new requests have no output, only resumed ones do: it is there before the row is made from it.
        batch = self.input_batch
        add_request = batch.add_request

        def add_handed(request: Any) -> Any:
            if (token := handed.pop(request.req_id, None)) is not None:
                request.output_token_ids.append(token)
            return add_request(request)

        batch.add_request = add_handed
        try:
            corrections = update_states(self, scheduler_output)
        finally:
            del batch.add_request
        assert not handed, f"first tokens of requests that got no row: {list(handed)}"
        return corrections

    def verifies(self: Any, scheduler_output: Any) -> bool:
        return bool(scheduler_output.scheduled_spec_decode_tokens) and self.speculative_config is None

    def follow_drafts(self: Any, scheduler_output: Any) -> None:
        """Tells the samplers which rows draft; makes them ready the first time that one does, or verifies."""
        metadata = scheduler_output.kv_connector_metadata
        drafting = metadata.drafting if isinstance(metadata, LynxMetadata) else ()
        if not hasattr(self, "_lynx_draft_probs"):
            if not drafting and not verifies(self, scheduler_output):
                return
            self.rejection_sampler = compat.rejection_sampler(self.sampler)
            self._lynx_draft_probs = verification.install(self)
        self._lynx_draft_probs.begin_step(drafting, scheduler_output.scheduled_spec_decode_tokens)

    def _prepare_inputs(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        follow_drafts(self, scheduler_output)
        if not verifies(self, scheduler_output):
            return prepare_inputs(self, scheduler_output, *args, **kwargs)
        with compat.preparing(self):
            return prepare_inputs(self, scheduler_output, *args, **kwargs)

    def _bookkeeping_sync(self: Any, scheduler_output: Any, sampler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.use_async_scheduling or not verifies(self, scheduler_output):
            return bookkeeping_sync(self, scheduler_output, sampler_output, *args, **kwargs)
        # The next step takes each row's last token from here, before the scheduler has seen it: right for the ordinary
        # rows, which have one. Where a verified row goes on only the scheduler can tell: it has the row built again.
        self.input_batch.prev_sampled_token_ids = sampler_output.sampled_token_ids[:, :1].contiguous()
        with compat.keeping_books(self):
            books = bookkeeping_sync(self, scheduler_output, sampler_output, *args, **kwargs)
        for request_id in scheduler_output.scheduled_spec_decode_tokens:
            self.input_batch.prev_req_id_to_index.pop(request_id, None)
        return books

    runner._lynx_prepare_inputs = prepare_inputs
    runner._prepare_inputs, runner._bookkeeping_sync = _prepare_inputs, _bookkeeping_sync
    runner._update_states = _update_states
