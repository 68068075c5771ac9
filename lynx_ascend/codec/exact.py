"""The exact stream: how far each element lies from its reconstruction, so that a receiver restores the input's bits.

Distances are counted in ordinals of T: the integers that floats map to in order, -0.0 just below +0.0. Payload:
docs/frame.md.
"""

from __future__ import annotations

import torch
import xxhash
import zstandard
from torch import Tensor

CHECKSUM_BYTES = 8

_NARROW = {2: torch.int16, 4: torch.int32}
_WIDE = {2: torch.int32, 4: torch.int64}


def encode(x: Tensor, reconstruction: Tensor, sink_rows: int) -> bytes:
    """The payload that leads from `reconstruction` to `x`.

    Args:
        x, reconstruction: one page, [tokens, heads, head_dim], T = bf16 | fp16 | fp32, finite; what encode_page was
            given and what decode_page makes of both its payloads. sink_rows: first rows, which are equal in both.
    """
    checksum = xxhash.xxh3_64_intdigest(_to_bytes(reconstruction)).to_bytes(CHECKSUM_BYTES, "little")
    rows = x[sink_rows:]
    return checksum + _compress(_planes(_distances(rows, reconstruction[sink_rows:]))) if rows.numel() else checksum


def decode(payload: bytes | bytearray | memoryview, reconstruction: Tensor, sink_rows: int) -> Tensor:
    """The encoder's `x`, bit for bit.

    Args:
        payload: what `encode` returned. reconstruction, sink_rows: as there.

    Raises:
        ValueError: `payload` is not one of this reconstruction; nothing was decompressed beyond its size.
    """
    if len(payload) < CHECKSUM_BYTES:
        raise ValueError(f"payload_bytes: {len(payload)} do not hold a checksum")
    stored = int.from_bytes(payload[:CHECKSUM_BYTES], "little")
    found = xxhash.xxh3_64_intdigest(_to_bytes(reconstruction))
    if stored != found:
        raise ValueError(f"reconstruction: its checksum is {found:#018x}, the encoder's was {stored:#018x}")
    x, rows = reconstruction.clone(), reconstruction[sink_rows:]
    planes = _decompress(payload[CHECKSUM_BYTES:], rows.nbytes)
    if planes:
        x[sink_rows:] = _restore(rows, torch.frombuffer(planes, dtype=torch.uint8).view(rows.itemsize, -1))
    if not bool(torch.stack(x.aminmax()).isfinite().all()):  # they propagate NaN and Inf, faster than x.isfinite()
        raise ValueError("distances: lead to NaN or Inf, which no encoder writes")
    return x


def _ordinals(x: Tensor) -> Tensor:
    """The bits of x as signed integers, of a negative number all but the sign inverted; its own inverse."""
    bits = x.contiguous().view(_NARROW[x.itemsize])
    return bits ^ ((bits >> (8 * x.itemsize - 1)) & torch.iinfo(bits.dtype).max)


def _distances(x: Tensor, reconstruction: Tensor) -> Tensor:
    """x - reconstruction in ordinals, modulo 2^bits, zigzag: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    bits = 8 * x.itemsize
    # Subtracted in a wider type: torch does not define what a signed overflow gives, only what narrowing does.
    difference = (_ordinals(x).to(_WIDE[x.itemsize]) - _ordinals(reconstruction)).to(_NARROW[x.itemsize])
    return (difference << 1) ^ (difference >> (bits - 1))


def _restore(reconstruction: Tensor, planes: Tensor) -> Tensor:
    """The inverse of `_distances` and `_planes`."""
    narrow = _NARROW[reconstruction.itemsize]
    zigzag = torch.zeros(reconstruction.numel(), dtype=narrow)
    for index, plane in enumerate(planes):
        zigzag |= plane.to(narrow) << 8 * index
    zigzag = zigzag.view(reconstruction.shape)
    difference = ((zigzag >> 1) & torch.iinfo(narrow).max) ^ -(zigzag & 1)
    ordinals = (_ordinals(reconstruction).to(_WIDE[narrow.itemsize]) + difference).to(narrow)
    return _ordinals(ordinals).view(reconstruction.dtype)


def _planes(zigzag: Tensor) -> Tensor:
    """uint8 [itemsize, elements], the lowest bytes first."""
    flat = zigzag.reshape(-1)
    return torch.stack([(flat >> shift).to(torch.uint8) for shift in range(0, 8 * zigzag.itemsize, 8)])


def _compress(planes: Tensor) -> bytes:
    """One zstd frame; each plane begins a block, and so has its own Huffman table."""
    # The distances have no repeats worth a match, and every match that is found by chance costs more than its literals.
    # Hence the weakest search that zstd has. (Negative levels search less, but leave literals uncoded.)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        1, source_size=planes.numel(), strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=8
    )
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=planes.numel())
    parts = [stream.compress(_to_bytes(plane)) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for plane in planes]
    return b"".join([*parts, stream.flush()])


def _decompress(data: bytes | bytearray | memoryview, size: int) -> bytearray:
    """Exactly `size` bytes from one zstd frame that says so itself; none for size 0."""
    if not size:
        if len(data):
            raise ValueError(f"distances: {len(data)} bytes where there are no elements")
        return bytearray()
    try:
        declared = zstandard.get_frame_parameters(data).content_size
        if declared != size:  # checked here because zstandard allocates what the frame declares
            raise ValueError(f"distances: zstd frame of {declared} bytes, expected {size}")
        planes = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"distances: {error}") from None
    return bytearray(planes)


def _to_bytes(x: Tensor) -> bytearray:
    """The bytes of x in order, copied."""
    data = bytearray(x.nbytes)
    if data:
        torch.frombuffer(data, dtype=x.dtype).copy_(x.reshape(-1))
    return data
