"""Which requests may draft: those whose verification vLLM's stock rejection sampler gets exactly right."""

from __future__ import annotations

from typing import Any


def may_draft(request: Any) -> bool:
    """True for a greedy text request without anything that looks at, or changes, the logits of each step.

    The others wait for the whole KV and are then decoded ordinarily: correct, only without drafts.

    Args:
        request: a vLLM Request.
    """
    params = request.sampling_params
    return (
        params is not None
        and not request.resumable
        and params.temperature < 1e-5
        and params.structured_outputs is None
        and params.logprobs is None
        and params.prompt_logprobs is None
        and not params.logit_bias
        and not params.bad_words
        and not params.allowed_token_ids
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
        and params.repetition_penalty == 1.0
        and request.lora_request is None
    )
