"""A prompt's KV on Transformers: prefill it, code it with the codec's definition, put it back as a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.reference import decode_page, encode_page


@dataclass(frozen=True)
class PromptKV:
    """K (after RoPE) and V of a prompt, one [tokens, kv_heads, head_dim] a layer, in the cache's dtype."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def cache(self, tokens: int, dtype: torch.dtype | None = None) -> Any:
        """A Transformers cache of the first `tokens` positions in `dtype` (None: this KV's own); a copy."""
        return stacked_cache([self], tokens, dtype)


def stacked_cache(rows: Sequence[PromptKV], tokens: int, dtype: torch.dtype | None = None) -> Any:
    """As PromptKV.cache, a row of the batch for each of `rows`."""
    cache = DynamicCache()
    for layer in range(len(rows[0].keys)):
        halves = ([row.keys[layer] for row in rows], [row.values[layer] for row in rows])
        # [tokens, heads, dim] a row -> [rows, heads, tokens, dim]
        parts = ([part[:tokens].to(dtype or part.dtype).transpose(0, 1) for part in half] for half in halves)
        cache.update(*(torch.stack(half) for half in parts), layer)
    return cache


@torch.inference_mode()
def prefill(model: Any, prompt_ids: Sequence[int]) -> PromptKV:
    """The exact KV of all N prompt tokens, in one forward pass.

    Raises:
        ValueError: no prompt tokens.
    """
    if not prompt_ids:
        raise ValueError("prompt_ids: empty")
    # The logits of one position are computed because the model wants at least one; they are not used.
    layers = model(torch.tensor([prompt_ids]), use_cache=True, logits_to_keep=1).past_key_values.layers
    return PromptKV(
        tuple(layer.keys[0].transpose(0, 1) for layer in layers),
        tuple(layer.values[0].transpose(0, 1) for layer in layers),
    )


@torch.inference_mode()
def reconstruct(kv: PromptKV, config: CodecConfig) -> tuple[PromptKV, PromptKV]:
    """What a receiver sees of `kv` on the Anchor alone, and on Anchor + Residual (the 8-bit cache)."""
    keys = [_reconstruct(part, config) for part in kv.keys]
    values = [_reconstruct(part, config) for part in kv.values]
    anchor, full = (PromptKV(tuple(k[i] for k in keys), tuple(v[i] for v in values)) for i in (0, 1))
    return anchor, full


def _reconstruct(x: Tensor, config: CodecConfig) -> tuple[Tensor, Tensor]:
    """[tokens, heads, dim] through both payloads, page by page from position 0."""
    anchors, fulls = [], []
    for start in range(0, x.shape[0], config.page):
        page = x[start : start + config.page]
        shape = (page.shape[0], page.shape[1], page.shape[2])
        anchor, residual = encode_page(page, config, start)
        anchors.append(decode_page(anchor, None, config, shape, x.dtype, start))
        fulls.append(decode_page(anchor, residual, config, shape, x.dtype, start))
    return torch.cat(anchors), torch.cat(fulls)
