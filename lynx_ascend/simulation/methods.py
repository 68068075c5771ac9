"""How a cache is sent: bits an element by stream, in one piece or layer by layer, with or without drafts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from lynx_ascend.codec.config import Stream
from lynx_ascend.methods import wire_bytes

_TOKENS = 16384  # of the prompt on which bits are counted; they fall by 0.003 from here to 131,072


@dataclass(frozen=True)
class DraftModel:
    """Classical speculation after the transfer: a small model proposes `length` tokens before each pass.

    Args:
        acceptance: of a draft whose predecessors were accepted.
        step: seconds of one of its steps, as a share of the model's.
    """

    length: int = 4
    acceptance: float = 0.7
    step: float = 0.15

    def rounds(self, n: int) -> float:
        """Passes until n tokens are there, a mean: each gives the accepted drafts and one more."""
        held = [self.acceptance**i * (1 - self.acceptance) for i in range(self.length)]
        gives = [*held, self.acceptance**self.length]  # at i: the probability of i + 1 tokens
        passes = [0.0]
        for tokens in range(1, n + 1):
            rest = (p * passes[max(0, tokens - i)] for i, p in enumerate(gives, 1))
            passes.append(1 + sum(rest))
        return passes[n]


@dataclass(frozen=True)
class Method:
    """One way to transfer a cache.

    Args:
        first, second: bits an element on the wire by stream, headers included; second > 0: D drafts on the first.
        coded: P encodes and D decodes.
        layerwise: each layer is sent when its prefill is done, while the next one is computed.
    """

    name: str
    first: float
    second: float = 0.0
    coded: bool = True
    layerwise: bool = False
    draft_model: DraftModel | None = None

    @property
    def split(self) -> bool:
        """D drafts on the first stream."""
        return self.second > 0

    def nbytes(self, bf16: float) -> tuple[float, float]:
        """Bytes of both streams of a cache that takes `bf16` bytes."""
        return bf16 * self.first / 16, bf16 * self.second / 16


@cache
def _bits(method: str, heads: int, head_dim: int) -> tuple[float, float]:
    sizes = wire_bytes(method, _TOKENS, heads=heads, head_dim=head_dim, dtype=torch.bfloat16)
    values = _TOKENS * heads * head_dim
    return 8 * sizes[Stream.ANCHOR] / values, 8 * sizes.get(Stream.RESIDUAL, 0) / values


CACHEGEN_BITS = 8 / 3.5  # its paper: 3.5 to 4.3 times less than 8-bit quantisation


def methods(heads: int = 8, head_dim: int = 128, cachegen_bits: float = CACHEGEN_BITS) -> dict[str, Method]:
    """All methods by name, for a cache of that shape (the bits of headers and metadata hardly depend on it).

    Raises:
        ValueError: cachegen_bits is not positive and finite.
    """
    if not 0 < cachegen_bits < math.inf:
        raise ValueError(f"cachegen_bits: {cachegen_bits} is not positive and finite")
    bf16, int8, int4 = (_bits(name, heads, head_dim)[0] for name in ("bf16", "int8", "int4"))
    lynx = _bits("lynx", heads, head_dim)
    found = [
        Method("bf16", bf16, coded=False),
        Method("bf16, layer-wise", bf16, coded=False, layerwise=True),
        Method("int8", int8),
        Method("int8, layer-wise", int8, layerwise=True),
        Method("int8, draft model", int8, draft_model=DraftModel()),
        Method("int4", int4),
        Method("cachegen", cachegen_bits),
        Method("lynx-int8", int4, int4),
        Method("lynx", *lynx),
        Method("lynx, layer-wise", *lynx, layerwise=True),
    ]
    return {method.name: method for method in found}
