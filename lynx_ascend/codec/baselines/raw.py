"""No compression: the values of a page as they are."""

from __future__ import annotations

import torch
from torch import Tensor


def payload_bytes(values: int, dtype: torch.dtype) -> int:
    """Bytes that `values` elements of `dtype` take."""
    return values * dtype.itemsize


def encode(x: Tensor, payload: Tensor) -> None:
    """Writes x [tokens, heads, head_dim] into `payload`, uint8 1-D of payload_bytes."""
    payload.copy_(x.contiguous().view(-1).view(torch.uint8))


def decode(payload: Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """The values, [tokens, heads, head_dim] = `shape`. `payload` is uint8 1-D of payload_bytes."""
    return payload.clone().view(dtype).view(shape)
