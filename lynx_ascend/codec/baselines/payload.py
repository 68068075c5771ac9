"""The bytes of one evaluated stream: a checked head, then the parts that a method wrote."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
import xxhash
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_SUM = struct.Struct("<Q")  # xxh3 of all that follows
_HEAD = struct.Struct("<IIHHB")  # writer, tokens, heads, head_dim, index in DTYPES


class PayloadError(ValueError):
    """Bytes that are not what a method wrote; the message opens with the field that is wrong."""


def seal(writer: str, x: Tensor, parts: Sequence[Tensor]) -> bytes:
    """The bytes of one stream of x [tokens, heads, head_dim]. `writer` names the method and the stream."""
    head = _HEAD.pack(xxhash.xxh32_intdigest(writer.encode()), *x.shape, DTYPES.index(x.dtype))
    flat = (part.contiguous().view(-1) for part in parts if part.numel())
    body = head + b"".join(part.view(torch.uint8).numpy().tobytes() for part in flat)
    return _SUM.pack(xxhash.xxh3_64_intdigest(body)) + body


class Reader:
    """Takes a stream's parts in the order in which they were written.

    Attributes:
        shape: (tokens, heads, head_dim) of the tensor. dtype: its type, bf16 | fp16 | fp32.

    Raises:
        PayloadError: the bytes are damaged, cut, or of another method or stream than `writer`.
    """

    def __init__(self, data: bytes, writer: str) -> None:
        if len(data) < _SUM.size + _HEAD.size:
            raise PayloadError(f"size: {len(data)} bytes, fewer than a head's {_SUM.size + _HEAD.size}")
        if xxhash.xxh3_64_intdigest(data[_SUM.size :]) != _SUM.unpack_from(data)[0]:
            raise PayloadError("checksum: the bytes are not those that were written")
        tag, tokens, heads, head_dim, dtype = _HEAD.unpack_from(data, _SUM.size)
        if tag != xxhash.xxh32_intdigest(writer.encode()):
            raise PayloadError(f"writer: not {writer}")
        self.shape: tuple[int, int, int] = (tokens, heads, head_dim)
        self.dtype = DTYPES[dtype]
        self._rest = memoryview(data)[_SUM.size + _HEAD.size :]

    def take(self, name: str, dtype: torch.dtype, *shape: int) -> Tensor:
        """The next part, a copy. Raises PayloadError, naming it, if fewer bytes are left."""
        size = dtype.itemsize * torch.Size(shape).numel()
        if not 0 <= size <= len(self._rest):
            raise PayloadError(f"{name}: {size} bytes wanted, {len(self._rest)} left")
        part, self._rest = self._rest[:size], self._rest[size:]
        # A bytearray, because PyTorch wants memory that may be written.
        return torch.frombuffer(bytearray(part), dtype=dtype).view(shape) if size else torch.empty(shape, dtype=dtype)

    def rest(self, name: str) -> bytes:
        """All that is left. Raises PayloadError, naming it, if that is nothing."""
        if not self._rest:
            raise PayloadError(f"{name}: 0 bytes left")
        part, self._rest = bytes(self._rest), self._rest[:0]
        return part

    def end(self) -> None:
        """Raises PayloadError if bytes are left."""
        if self._rest:
            raise PayloadError(f"size: {len(self._rest)} bytes too many")


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Codes 0 .. 2^bits - 1 of any shape as uint8 1-D, 8 // bits a byte, the first lowest. bits divides 8."""
    per = 8 // bits
    flat = codes.reshape(-1).to(torch.uint8)
    rows = torch.cat([flat, flat.new_zeros(-flat.numel() % per)]).view(-1, per)
    packed = rows[:, 0].clone()
    for i in range(1, per):
        packed |= rows[:, i] << (bits * i)
    return packed


def take_codes(reader: Reader, name: str, bits: int, *shape: int) -> Tensor:
    """What pack_codes packed, uint8 of `shape`."""
    count = torch.Size(shape).numel()
    packed = reader.take(name, torch.uint8, (count * bits + 7) // 8)
    rows = torch.stack([packed >> (bits * i) & (2**bits - 1) for i in range(8 // bits)], 1)
    return rows.view(-1)[:count].view(shape)
