"""int8 and int4: linear quantisation between the minimum and the maximum of a layer's whole K or V.

q = rne((x - low) / scale), x_hat = low + q * scale, scale = (high - low) / (2^bits - 1), in fp32. Both sides work on
halves, so that neither the range nor the product overflows. The payload is low and scale (fp32), then the codes: a byte
each, or two a byte with the even element in the low nibble.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_RANGE_BYTES = 8


class Range(NamedTuple):
    """What the codes are relative to, as Python floats that hold fp32 values."""

    low: float
    scale: float


def measure(low: Tensor, high: Tensor, bits: int) -> Range:
    """The range from the smallest and the largest value (fp32 scalars, finite)."""
    return Range(float(low), 2.0 * float((0.5 * high - 0.5 * low) / (2**bits - 1)))


def payload_bytes(values: int, bits: int) -> int:
    """Bytes that `values` elements take."""
    return _RANGE_BYTES + (values * bits + 7) // 8


def encode(x: Tensor, limits: Range, bits: int, payload: Tensor) -> None:
    """Writes x [tokens, heads, head_dim] into `payload`, uint8 1-D of payload_bytes."""
    payload[:_RANGE_BYTES] = torch.tensor(limits, dtype=torch.float32).view(torch.uint8)
    if limits.scale == 0.0:
        payload[_RANGE_BYTES:] = 0
        return
    z = x.reshape(-1).float().mul(0.5).sub_(0.5 * limits.low).div_(0.5 * limits.scale)
    q = z.round_().clamp_(0, 2**bits - 1).to(torch.uint8)
    if bits == 4:
        q = torch.cat([q, q.new_zeros(q.numel() % 2)])
        q = q[0::2] | q[1::2] << 4
    payload[_RANGE_BYTES:] = q


def bad_range(payload: Tensor) -> str | None:
    """The name of the field that no encoder writes, "low" or "scale", or None if both are sound."""
    low, scale = _read_range(payload)
    if not math.isfinite(low):
        return "low"
    return None if math.isfinite(scale) and scale >= 0 else "scale"


def decode(payload: Tensor, bits: int, shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """The reconstruction, [tokens, heads, head_dim] = `shape`. `payload` is uint8 1-D of payload_bytes, checked."""
    low, scale = _read_range(payload)
    q = payload[_RANGE_BYTES:]
    if bits == 4:
        q = torch.stack([q & 15, q >> 4], 1).view(-1)
    count = shape[0] * shape[1] * shape[2]
    half = q[:count].float().mul_(0.5 * scale).add_(0.5 * low)
    largest = torch.finfo(dtype).max
    return half.mul_(2.0).clamp_(-largest, largest).to(dtype).view(shape)


def _read_range(payload: Tensor) -> Range:
    low, scale = payload[:_RANGE_BYTES].clone().view(torch.float32).tolist()
    return Range(low, scale)
