"""A model runner's own sampler and rejection sampler, told what verifying drafts takes."""

from __future__ import annotations

from typing import Any

import torch

from lynx_ascend.serving.draft_probs import DraftProbs


def install(runner: Any) -> DraftProbs:
    """Has a runner's sampler fill a new DraftProbs, and its rejection sampler judge by it."""
    kept = DraftProbs()

    def capture(sampler: Any, args: tuple[Any, ...]) -> None:
        logits, _, top_k, top_p = args
        kept.capture(runner.input_batch.req_ids, logits, top_k, top_p)

    def judge(rejection_sampler: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        metadata, draft_probs, logits, sampling = args
        assert draft_probs is None, "an engine without speculative_config has no draft model"
        if not sampling.all_greedy:
            drafts, counts = metadata.draft_token_ids, metadata.num_draft_tokens
            draft_probs = kept.take(runner.input_batch.req_ids, counts, drafts, logits.shape[-1])
        return metadata, draft_probs, logits, sampling

    runner.sampler.topk_topp_sampler.register_forward_pre_hook(capture)
    runner.rejection_sampler.register_forward_pre_hook(judge)
    _mend_min_tokens(runner.rejection_sampler)
    return kept


def _mend_min_tokens(rejection_sampler: Any) -> None:
    """The token after a request's last draft may end it where the drafts before it already are min_tokens.

    vLLM counts the drafts where it judges them, but not where it samples what follows them.
    """
    masks: list[tuple[Any, Any]] = []

    def narrow(module: Any, args: tuple[Any, ...]) -> None:
        from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor

        metadata, *_, sampling = args
        for processor in sampling.logitsprocs.non_argmax_invariant:
            if not isinstance(processor, MinTokensLogitsProcessor):
                continue
            reached = [
                row
                for row, (minimum, output, *_) in processor.min_toks.items()
                if metadata.num_draft_tokens[row] and len(output) + metadata.num_draft_tokens[row] >= minimum
            ]
            if reached:
                masks.append((processor, processor.logits_slice))
                rows, tokens = processor.logits_slice
                left = ~torch.isin(rows, torch.tensor(reached, dtype=rows.dtype, device=rows.device))
                processor.logits_slice = rows[left], tokens[left]

    def widen(module: Any, args: tuple[Any, ...], output: Any) -> None:
        while masks:
            processor, mask = masks.pop()
            processor.logits_slice = mask

    rejection_sampler.register_forward_pre_hook(narrow)
    rejection_sampler.register_forward_hook(widen)
