"""What differs between the releases of vLLM that Lynx serves on, and vllm-ascend: no other file of serving knows."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
import vllm

from lynx_ascend.serving.releases import VLLM_ASCEND

# What vLLM 0.32 looks at while it prepares a step that verifies.
_STAND_IN = types.SimpleNamespace(method="lynx", num_speculative_tokens=1)


def vllm_version() -> str:
    """Major and minor number of the vLLM in use: "0.32"."""
    return ".".join(vllm.__version__.split(".")[:2])


def on_ascend() -> bool:
    """True where the engine is vllm-ascend's."""
    from vllm.platforms import current_platform

    return bool(current_platform.device_type == "npu")


def unmet_by_ascend(vllm_config: Any) -> list[str]:
    """What of a vllm-ascend engine Lynx would serve wrongly, each with the way out."""
    options, unmet = vllm_config.additional_config or {}, []
    if vllm_version() != VLLM_ASCEND:
        unmet.append(f"vllm-ascend for vLLM {vllm_version()}: install vllm-ascend {VLLM_ASCEND}")
    if vllm_config.kv_transfer_config.is_kv_consumer:
        # Their schedulers give up a running request's blocks without saying so: a transfer would write into them.
        if options.get("recompute_scheduler_enable"):
            unmet.append("recompute_scheduler_enable: remove it; kv_load_failure_policy says what preemption leads to")
        if options.get("SLO_limits_for_dynamic_batch", -1) != -1:
            unmet.append("SLO_limits_for_dynamic_batch: remove it on instances that decode")
    if (options.get("rejection_sampler_config") or {}).get("enable_entropy_verify"):
        unmet.append("enable_entropy_verify: accepts drafts that greedy decoding would not; remove it")
    return unmet


def was_turned_away(request: Any) -> bool:
    """True for what stands in for a request that failed at the API (vLLM 0.32): it ends at once, so that P is told."""
    return bool(getattr(request, "abort_immediately", False))


def tells_more_than_tokens(vllm_config: Any) -> bool:
    """Whether the engine gives clients more of each token than the token: sampling masks (0.32), routed experts."""
    places = (vllm_config.model_config, getattr(vllm_config, "aux_output_config", None))
    names = ("return_sampling_mask", "enable_return_routed_experts")
    return any(getattr(place, name, False) for place in places for name in names)


def model_runner() -> type[Any]:
    """The V1 model runner's class that `runner_patch` patches."""
    if on_ascend():
        import vllm_ascend.worker.worker  # noqa: F401  first: model_runner_v1 cannot be imported on its own
        from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

        return NPUModelRunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    return GPUModelRunner


def rejection_sampler(sampler: Any) -> Any:
    """The platform's rejection sampler over an engine's sampler."""
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    if on_ascend():
        from vllm_ascend.sample.rejection_sampler import HAS_TRITON, AscendRejectionSampler

        if not HAS_TRITON:
            # Its own without Triton takes one row a request, and a request that is verified has several.
            AscendRejectionSampler.apply_penalties = staticmethod(rejection_sampler.RejectionSampler.apply_penalties)
        return AscendRejectionSampler(sampler)
    if current_platform.is_cpu():
        _mend_cpu_kernels(rejection_sampler)
    return rejection_sampler.RejectionSampler(sampler)


def _mend_cpu_kernels(module: Any) -> None:
    """What vLLM's CPU rejection sampler gets wrong where one request of the batch samples at random."""
    # 0.23 and 0.32: its own fills an int64 copy and returns uninitialised memory, so that greedy drafts were verified
    # by logits divided by whatever lay there.
    module.expand_batch_to_tokens = expand_batch_to_tokens
    if vllm_version() == "0.23":  # its CPU kernel does not know a keyword that it is called with
        from vllm.utils import cpu_triton_utils as cpu

        def sample_recovered_tokens(*args: Any, USE_FP64_GUMBEL: bool, **kwargs: Any) -> None:
            assert not USE_FP64_GUMBEL, "not on vLLM 0.23's CPU backend"
            cpu._sample_recovered_tokens_kernel_impl(*args, **kwargs)

        module.sample_recovered_tokens_kernel = cpu._FuncWrapper(sample_recovered_tokens)


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: float = 0, replace_to: float = 0
) -> torch.Tensor:
    """[batch] -> [num_tokens], any dtype: x[i] once for each of request i's tokens, replace_from as replace_to.

    Args:
        cu_num_tokens: [batch] running total of the requests' tokens.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)


def attention_isa(vllm_config: Any, spec: Any) -> str | None:
    """The kernel family that vLLM's CPU attention has chosen ("vec", "amx", ...); None on other platforms.

    0.32 also leaves it at the attention layers, 0.23 does not.

    Args:
        spec: the layers' KVCacheSpec.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return None
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    dtype, cache_dtype = vllm_config.model_config.dtype, vllm_config.cache_config.cache_dtype
    return str(_get_attn_isa(dtype, spec.block_size, spec.head_size, cache_dtype))


@contextlib.contextmanager
def preparing(runner: Any) -> Iterator[None]:
    """Around `_prepare_inputs` of a step that verifies, in an engine without speculative_config.

    0.32 asks for that configuration; 0.23 and vllm-ascend ask whether the step carries speculative tokens, and
    vllm-ascend would choose other attention kernels if there were one.
    """
    if vllm_version() == "0.23":
        yield
        return
    runner.speculative_config = _STAND_IN
    try:
        yield
    finally:
        runner.speculative_config = None


@contextlib.contextmanager
def keeping_books(runner: Any) -> Iterator[None]:
    """Around `_bookkeeping_sync` of such a step with asynchronous scheduling.

    vllm-ascend asserts that without speculation a row has one token. vLLM asserts it only where nobody has said
    which tokens the next step starts from.
    """
    if not on_ascend():
        yield
        return
    configured, runner.num_spec_tokens = runner.num_spec_tokens, 1
    try:
        yield
    finally:
        runner.num_spec_tokens = configured
