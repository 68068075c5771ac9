"""Which requests may draft (the rejection sampler gets their verification right), and which take P's first token."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import msgspec

from lynx_ascend.serving.transfer_params import wants_remote_decode

_GREEDY_BELOW = 1e-5  # vLLM's own limit of temperature
# What the rejection sampler applies to every draft, or what only looks at tokens that have been verified.
_DRAFTED = {
    *("temperature", "top_k", "top_p", "seed", "n"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words"),
    *("logprobs", "flat_logprobs"),
    *("max_tokens", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "include_stop_str_in_output"),
    *("detokenize", "skip_special_tokens", "spaces_between_special_tokens", "output_text_buffer_length"),
    "watermarking",  # the V2 model runner's alone, which Lynx refuses
    *("output_kind", "stream_interval", "skip_clone", "skip_reading_prefix_cache", "extra_args"),
}
# Where a token sampled elsewhere, under the same parameters, is all that the client is to get. min_tokens is not among
# them: proxies lower it for the prefill instance, which then may end what must not end here.
_HANDED = _DRAFTED - {"logprobs", "flat_logprobs", "min_tokens"} | {"min_p", "logit_bias", "allowed_token_ids"}


def may_draft(request: Any) -> bool:
    """True for a text request that asks for nothing which its verification would not respect.

    The others (logit_bias, min_p, structured output, ..., and whatever a later vLLM adds) wait for the whole KV and are
    then decoded ordinarily: correct, only without drafts.

    Args:
        request: a vLLM Request.
    """
    params = request.sampling_params
    return params is not None and not request.resumable and not _set(params) - _DRAFTED


def takes_first_token(request: Any) -> bool:
    """True for a request whose first token may be the one that the prefill instance sampled for it.

    Not where the answer needs more than the token (logprobs), where a state goes with it (structured output, streamed
    input), where the engine computes the prompt itself, or where another one is to fetch the KV from this one: the
    token could end the request before the KV is here. Nor where a seed drives the sampling: this engine would draw the
    second token with the very noise that drew the first one.

    Args:
        request: a vLLM Request.
    """
    params = request.sampling_params
    if params is None or request.resumable or request.skip_reading_prefix_cache:
        return False
    if wants_remote_decode(request.kv_transfer_params):
        return False
    return (greedy(params) or params.seed is None) and not _set(params) - _HANDED


def _set(params: Any) -> set[str]:
    """The fields of a vLLM SamplingParams that are not at their defaults; vLLM fills in those that begin with _."""
    found = set()
    for field in msgspec.structs.fields(params):
        value, default = getattr(params, field.name), field.default
        unset = value is default or value == default if default is not None else value in (None, [], {})
        if not unset and not field.name.startswith("_"):
            found.add(field.name)
    return found


def engine_may_draft(vllm_config: Any) -> bool:
    """False where the engine has logits processors of its own: a verification would not apply them."""
    return not (vllm_config.model_config.logits_processors or entry_points(group="vllm.logits_processors"))


def greedy(params: Any) -> bool:
    """True where vLLM takes the most likely token.

    Args:
        params: a vLLM SamplingParams.
    """
    return bool(params.temperature < _GREEDY_BELOW)
