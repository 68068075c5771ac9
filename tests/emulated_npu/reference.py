"""The 8-bit answer of an engine that computes in float32 on a 16-bit KV cache: Transformers and the codec's definition.

No vLLM, no kernels, no wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.evaluation.kv import PromptKV, reconstruct
from lynx_ascend.evaluation.local_engine import greedy_text

CACHE_DTYPE = torch.float16


class _Layer(DynamicLayer):
    """Holds what CACHE_DTYPE can hold, in float32.

    As vllm-ascend's attention it reads a prompt's later chunks, and its own last tokens, back from the cache; the first
    chunk, of which nothing is cached, it takes as it was computed.
    """

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        first = self.get_seq_length() == 0
        rounded = super().update(*(x.to(CACHE_DTYPE).float() for x in (key_states, value_states)), *args, **kwargs)
        return (key_states, value_states) if first else rounded


class _Reconstruction(PromptKV):
    """A prompt's KV whose cache is that of the engine."""

    def cache(self, tokens: int, dtype: torch.dtype | None = None) -> Cache:
        plain = super().cache(tokens, torch.float32)
        cache = Cache(layer_class_to_replicate=_Layer)
        for index, layer in enumerate(plain.layers):
            cache.update(layer.keys, layer.values, index)
        return cache


@torch.inference_mode()
def reference_text(model: Any, prompt_ids: Sequence[int], chunk: int, max_tokens: int) -> list[int]:
    """Greedy token ids on the Anchor + Residual cache, past EOS.

    Args:
        model: a Transformers causal LM in float32.
        chunk: how many tokens of the prompt the engine prefills at a time.
    """
    cache = Cache(layer_class_to_replicate=_Layer)
    for start in range(0, len(prompt_ids), chunk):
        model(torch.tensor([prompt_ids[start : start + chunk]]), past_key_values=cache, logits_to_keep=1)
    keys = tuple(layer.keys[0].transpose(0, 1).to(CACHE_DTYPE) for layer in cache.layers)
    values = tuple(layer.values[0].transpose(0, 1).to(CACHE_DTYPE) for layer in cache.layers)
    _, full = reconstruct(PromptKV(keys, values), CodecConfig())
    return greedy_text(model, prompt_ids, _Reconstruction(full.keys, full.values), max_tokens, ignore_eos=True)
