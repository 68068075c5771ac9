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


def bad_values(payload: Tensor, dtype: torch.dtype) -> str | None:
    """ "values" if any of them is NaN or Inf, which no encoder writes, otherwise None."""
    ends = torch.stack(payload.clone().view(dtype).aminmax())  # they propagate both, far faster than isfinite(x)
    return None if bool(ends.isfinite().all()) else "values"


def decode(payload: Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """The values, [tokens, heads, head_dim] = `shape`. `payload` is uint8 1-D of payload_bytes."""
    return payload.clone().view(dtype).view(shape)
