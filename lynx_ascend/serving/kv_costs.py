"""What a token of the KV cache costs here: its bytes by stream, and the codec's speed, measured once at start."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lynx_ascend.buffers import wait
from lynx_ascend.codec.config import CodecConfig, Stream
from lynx_ascend.frame import Frame, parse
from lynx_ascend.paged import PageEncoder, wire_bytes, write_page
from lynx_ascend.serving.layout import BlockTable, LayerKV
from lynx_ascend.speculation.break_even import KVCosts

METHOD = "lynx"
RUNS = 5  # the fastest counts
PROMPT = 1024  # tokens over which frame headers are spread


def kv_costs(layers: list[LayerKV]) -> KVCosts:
    """Measured on one page of the first layer's keys, into which it writes zeros: to be called before any request.

    The prefill instance is taken to encode as fast as this one.

    Args:
        layers: the KV cache; every layer has the first one's shape.
    """
    cache = layers[0].key
    blocks, block_size, heads, head_dim = cache.shape
    tokens = min(CodecConfig().page, blocks * block_size)
    table = BlockTable(list(range(-(-tokens // block_size))), cache.device)
    target = layers[0].paged(False, table)
    target.scatter(0, torch.zeros(tokens, heads, head_dim, dtype=cache.dtype))  # whatever the memory held
    encoder = PageEncoder(METHOD, target, tokens, layer=0, is_value=False, generation=0)
    anchor, residual = (parse(frame) for frame in encoder.page(0).values())

    def decode(later: Frame | None) -> None:
        write_page(anchor, later, target)
        wait(cache.device)

    raw = tokens * heads * head_dim * cache.element_size()
    wire, uncompressed = (
        wire_bytes(method, PROMPT, heads=heads, head_dim=head_dim, dtype=cache.dtype) for method in (METHOD, "bf16")
    )
    a_token = 2 * len(layers) / PROMPT
    return KVCosts(
        bf16=uncompressed[Stream.ANCHOR] * a_token,
        anchor=wire[Stream.ANCHOR] * a_token,
        residual=wire[Stream.RESIDUAL] * a_token,
        encode=raw / _seconds(lambda: encoder.page(0)),
        anchor_decode=raw / _seconds(lambda: decode(None)),
        full_decode=raw / _seconds(lambda: decode(residual)),
    )


def _seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
