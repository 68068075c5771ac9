"""The runner patch: lets vLLM's V1 model runner verify drafts in an engine without speculative_config."""

from __future__ import annotations

import types
from typing import Any

import torch

# What _prepare_inputs looks at; present only while it prepares a step that verifies.
_STAND_IN = types.SimpleNamespace(method="lynx", num_speculative_tokens=1)


def install(runner: type[Any]) -> None:
    """Patches a V1 GPUModelRunner class, once. Steps without drafts to verify run as before.

    A speculative_config of its own would turn off features of ordinary requests for the whole engine, so the runner
    gets a rejection sampler, and the configuration's stand-in, only where a step carries speculative tokens.
    """
    if "_lynx_prepare_inputs" in runner.__dict__:
        return
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    prepare_inputs = runner._prepare_inputs

    def _prepare_inputs(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if self.speculative_config is not None or not scheduler_output.scheduled_spec_decode_tokens:
            return prepare_inputs(self, scheduler_output, *args, **kwargs)
        if not hasattr(self, "rejection_sampler"):
            self.rejection_sampler = RejectionSampler(self.sampler)
        self.speculative_config = _STAND_IN
        try:
            return prepare_inputs(self, scheduler_output, *args, **kwargs)
        finally:
            self.speculative_config = None

    runner._lynx_prepare_inputs = prepare_inputs
    runner._prepare_inputs = _prepare_inputs
    _mend_cpu_sampler()


def _mend_cpu_sampler() -> None:
    """Gives vLLM's CPU rejection sampler its requests' temperature, top_k and top_p.

    vLLM 0.32's own expansion fills an int64 copy and returns uninitialised memory: one random request in the batch, and
    greedy drafts were verified by logits divided by whatever lay there.
    """
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    if current_platform.is_cpu():
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: float = 0, replace_to: float = 0
) -> torch.Tensor:
    """[batch] -> [num_tokens], any dtype: x[i] once for each of request i's tokens, replace_from as replace_to.

    Args:
        cu_num_tokens: [batch] running total of the requests' tokens.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)
