"""The right value of a frame's bytes, by the PyTorch reference and, where there is none, by docs/frame.md in NumPy."""

from __future__ import annotations

import numpy as np
import torch
import xxhash
import zstandard
from torch import Tensor

from lynx_ascend.codec import reference
from lynx_ascend.frame import CodecId, Frame, FrameHeader
from lynx_ascend.methods import LINEAR_BITS, TORCH_DTYPES


def right_value(anchor: Frame, residual: Frame | None) -> Tensor:
    """What docs/frame.md gives for these frames, by the PyTorch reference; int8 and int4 by their formula in NumPy."""
    header = anchor.header
    shape, dtype = (header.tokens, header.heads, header.head_dim), TORCH_DTYPES[header.dtype]
    payload = np.frombuffer(bytearray(anchor.payload), np.uint8)
    if header.codec.is_split:
        fine = None if residual is None else torch.from_numpy(np.frombuffer(bytearray(residual.payload), np.uint8))
        return reference.decode_page(
            torch.from_numpy(payload), fine, header.config(), shape, dtype, header.token_offset
        )
    if header.codec is CodecId.RAW:
        return torch.from_numpy(payload).view(dtype).view(shape)
    low, scale = payload[:8].view("<f4")
    q = payload[8:]
    if LINEAR_BITS[header.codec] == 4:
        q = np.stack([q & 15, q >> 4], 1).reshape(-1)
    with np.errstate(over="ignore"):
        x = np.float32(2) * (q.astype(np.float32) * (scale / np.float32(2)) + low / np.float32(2))
    largest = np.float32(torch.finfo(dtype).max)
    return torch.from_numpy(np.clip(x, -largest, largest))[: np.prod(shape)].to(dtype).view(shape)


def right_exact_value(payload: bytes, header: FrameHeader, reconstruction: Tensor) -> Tensor | None:
    """What docs/frame.md gives for an exact payload, by its formulas in NumPy; None where it gives nothing.

    Args:
        header: the page's anchor's. reconstruction: from its anchor and residual.
    """
    if payload[:8] != xxhash.xxh3_64_digest(as_bytes(reconstruction).numpy())[::-1]:
        return None
    (tokens, heads, head_dim), size = reconstruction.shape, reconstruction.itemsize
    skipped = min(max(header.sink_tokens - header.token_offset, 0), tokens) * heads * head_dim
    unsigned, bits = np.dtype(f"<u{size}"), 8 * size
    values = as_bytes(reconstruction).numpy().view(unsigned).copy()
    count = (values.size - skipped) * size
    try:
        planes = zstandard.ZstdDecompressor().stream_reader(payload[8:]).read(count + 1) if count else payload[8:]
    except zstandard.ZstdError:
        return None
    if len(planes) != count:
        return None
    zigzag = np.frombuffer(planes, np.uint8).reshape(size, -1).T.copy().view(unsigned).reshape(-1)
    one, top = unsigned.type(1), unsigned.type(bits - 1)
    distance = (zigzag >> one) ^ (~(zigzag & one) + one)
    ordinal = _flip_negative(values[skipped:], top) + distance
    values[skipped:] = _flip_negative(ordinal, top)
    restored = torch.from_numpy(values.view(np.uint8)).view(reconstruction.dtype).view(reconstruction.shape)
    return restored if bool(restored.isfinite().all()) else None


def _flip_negative(bits: np.ndarray, top: np.unsignedinteger) -> np.ndarray:
    """Float bits to ordinals modulo 2^bits, and back: numbers with the sign bit have all other bits inverted."""
    one = bits.dtype.type(1)
    return bits ^ ((bits >> top) * ((one << top) - one))


def as_bytes(x: Tensor) -> Tensor:
    """uint8 1-D: the elements' bytes in order."""
    return x.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
