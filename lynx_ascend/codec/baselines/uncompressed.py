"""BF16 (no compression), and BF16 split into two streams with the high bytes first.

The split is the simplest progressive transfer: the high byte of a bf16 is its sign and the upper seven bits of its
exponent. From it alone the low byte is taken as 0x80, the middle of the factor of four that is left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import Reader


@dataclass(frozen=True)
class Uncompressed(Method):
    """The values in their own type."""

    source = "no compression"

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        return [[x]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        return Decoded(readers[0].take("values", readers[0].dtype, *readers[0].shape))


@dataclass(frozen=True)
class HighByteFirst(Method):
    """bf16 in two streams of a byte an element; other types are rounded to bf16."""

    source = "no compression; ours"
    num_streams: ClassVar[int] = 2

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        pairs = x.bfloat16().contiguous().view(torch.uint8).view(-1, 2)  # little-endian
        return [[pairs[:, 1]], [pairs[:, 0]]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        shape = readers[0].shape
        high = readers[0].take("high", torch.uint8, *shape)
        low = readers[1].take("low", torch.uint8, *shape) if len(readers) == 2 else torch.full_like(high, 0x80)
        if len(readers) == 1:
            low[high & 0x7F == 0] = 0  # zero and what is next to it, not 2^-126
        return Decoded(torch.stack([low, high], -1).view(torch.bfloat16).squeeze(-1))
