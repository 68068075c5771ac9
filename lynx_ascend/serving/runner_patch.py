"""The runner patch: lets vLLM's V1 model runner verify drafts in an engine without speculative_config."""

from __future__ import annotations

import types
from typing import Any

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
