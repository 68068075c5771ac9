"""What an engine must be for Lynx to serve on it; everything that is not met is named at once, at start-up."""

from __future__ import annotations

from typing import Any

from lynx_ascend.methods import METHODS, unmet_by_heads
from lynx_ascend.serving import compat
from lynx_ascend.serving.releases import VLLM


class UnsupportedError(RuntimeError):
    """A configuration that Lynx would serve wrongly; the message lists every unmet condition and the way out."""


def unusable_methods(vllm_config: Any) -> dict[str, str]:
    """The transfer methods that cannot code this model's heads, with the reason."""
    head_dim, npu = vllm_config.model_config.get_head_size(), compat.on_ascend()
    found = {method: unmet_by_heads(method, head_dim, npu=npu) for method in METHODS}
    return {method: why for method, why in found.items() if why}


def check_config(vllm_config: Any) -> None:
    """Raises UnsupportedError unless `vllm_config` (a VllmConfig with LynxConnector) can be served."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    unmet = []
    if compat.vllm_version() not in VLLM:
        unmet.append(f"vLLM {compat.vllm_version()}: install one of {', '.join(VLLM)}")
    if parallel.pipeline_parallel_size > 1:
        unmet.append(f"pipeline_parallel_size {parallel.pipeline_parallel_size}: only 1 is supported")
    if parallel.tensor_parallel_size > 1:
        unmet.append(f"tensor_parallel_size {parallel.tensor_parallel_size}: only 1 is supported yet")
    if vllm_config.speculative_config is not None:
        unmet.append("speculative_config: Lynx drafts by itself; remove it")
    if vllm_config.lora_config is not None:
        # An adapter changes the KV, and nothing that is handed over says which one the prompt was prefilled with.
        unmet.append("enable_lora: not supported yet; serve a model with the adapter merged into it")
    if vllm_config.use_v2_model_runner:
        unmet.append("the V2 model runner: set VLLM_USE_V2_MODEL_RUNNER=0")
    if model.use_mla:
        unmet.append("MLA attention: not supported yet")
    if str(vllm_config.cache_config.cache_dtype) not in ("auto", "bfloat16", "float16"):
        unmet.append(f"kv_cache_dtype {vllm_config.cache_config.cache_dtype}: Lynx encodes bf16, fp16 and fp32 caches")
    if compat.on_ascend():
        unmet += compat.unmet_by_ascend(vllm_config)
    if unmet:
        raise UnsupportedError("LynxConnector cannot serve this engine: " + "; ".join(unmet))
