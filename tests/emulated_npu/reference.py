"""The 8-bit answer to a prompt that a prefill server holds: its KV, the codec's definition, and Transformers' decoding.

No vLLM, no kernels. The KV is the server's own, pulled uncompressed: an engine that computes a prompt otherwise rounds
some elements of a 16-bit cache the other way, layer after layer more of them, and has another 8-bit cache.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from lynx_ascend.codec.baselines import raw
from lynx_ascend.codec.config import CodecConfig, Stream
from lynx_ascend.evaluation.kv import PromptKV, reconstruct
from lynx_ascend.evaluation.local_engine import greedy_text
from lynx_ascend.frame import parse
from lynx_ascend.methods import TORCH_DTYPES
from lynx_ascend.serving.transfer_params import RemotePrompt
from lynx_ascend.transport import Received, StreamClient, StreamEnd, StreamFault

CACHE_DTYPE = torch.float16
UNCOMPRESSED = "bf16"  # the method's name, whatever 16-bit type the cache has
MAX_BYTES = 1 << 30


class _Layer(DynamicLayer):
    """Holds what CACHE_DTYPE can hold, in float32; what is decoded is read back from it, as vllm-ascend does."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return super().update(*(x.to(CACHE_DTYPE).float() for x in (key_states, value_states)), *args, **kwargs)


class _Reconstruction(PromptKV):
    """A prompt's KV whose cache is that of the engine."""

    def cache(self, tokens: int, dtype: torch.dtype | None = None) -> Cache:
        plain = super().cache(tokens, torch.float32)
        cache = Cache(layer_class_to_replicate=_Layer)
        for index, layer in enumerate(plain.layers):
            cache.update(layer.keys, layer.values, index)
        return cache


def held_kv(params: Mapping[str, Any], timeout: float = 60.0) -> PromptKV:
    """The KV of a prompt as the prefill server's cache holds it.

    Args:
        params: the kv_transfer_params that the server answered with; they are used up.
    """
    prompt = RemotePrompt.from_params(params)
    assert prompt is not None
    client = StreamClient("reference")
    pages: dict[tuple[int, bool, int], Tensor] = {}
    deadline = time.monotonic() + timeout
    try:
        address = prompt.remote_host, prompt.remote_port
        args: dict[str, str | int] = {"method": UNCOMPRESSED, "tokens": prompt.remote_tokens}
        client.pull(
            address,
            prompt.remote_request_id,
            time.time_ns() // 1000,
            Stream.ANCHOR,
            args,
            max_bytes=MAX_BYTES,
            engine_id=prompt.remote_engine_id,
        )
        ended = False
        while not ended:
            assert client.wait(deadline - time.monotonic()), f"not complete after {timeout} s"
            for item in client.drain(64):
                assert not isinstance(item, StreamFault), item.reason
                ended = ended or isinstance(item, StreamEnd)
                if isinstance(item, Received):
                    frame = parse(item.frame)
                    header, shape = frame.header, (frame.header.tokens, frame.header.heads, frame.header.head_dim)
                    payload = torch.frombuffer(bytearray(frame.payload), dtype=torch.uint8)
                    values = raw.decode(payload, shape, TORCH_DTYPES[header.dtype])
                    pages[header.layer, header.is_value, header.page_index] = values
    finally:
        client.close()
    halves: list[tuple[Tensor, ...]] = []
    for is_value in (False, True):
        layers: dict[int, list[Tensor]] = {}
        for layer, half, page in sorted(pages):
            if half == is_value:
                layers.setdefault(layer, []).append(pages[layer, half, page])
        halves.append(tuple(torch.cat(parts) for parts in layers.values()))
    kv = PromptKV(*halves)
    assert all(x.dtype == CACHE_DTYPE and len(x) == prompt.remote_tokens for x in (*kv.keys, *kv.values))
    return kv


def reference_text(model: Any, prompt_ids: Sequence[int], kv: PromptKV, max_tokens: int, *, first: int) -> list[int]:
    """Greedy token ids on the Anchor + Residual cache of `kv`, past EOS.

    Args:
        model: a Transformers causal LM in float32.
        first: the token that the prefill server handed over.
    """
    _, full = reconstruct(kv, CodecConfig())
    cache = _Reconstruction(full.keys, full.values)
    return greedy_text(model, prompt_ids, cache, max_tokens, ignore_eos=True, first=first)
