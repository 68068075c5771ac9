"""The 64-byte frame header: its fields, their limits, and how they are packed (docs/frame.md)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Literal, TypeVar

from ..codec.config import CodecConfig, Stream, head_problem
from .errors import FrameError

E = TypeVar("E", bound=IntEnum)

MAGIC = b"LYNX"
VERSION = 1
HEADER_BYTES = 64
CHECKSUM_OFFSET = 56
MAX_CHANNELS = 1 << 16  # heads * head_dim
MAX_PAYLOAD_BYTES = 1 << 28  # what a receiver may have to allocate for one frame

_LAYOUT = struct.Struct("<4s 4B 2B 9H I Q f I Q Q")
_FIELD_BITS = {
    "chunk": 16, "page": 16, "tokens": 16, "heads": 16, "head_offset": 16, "head_dim": 16, "layer": 16,
    "sink_tokens": 16, "page_index": 32, "payload_bytes": 32, "generation": 64,
}  # fmt: skip


class CodecId(IntEnum):
    """What the payload holds."""

    GRID = 1
    ALG1 = 2
    PAIR = 3
    RAW = 16
    INT8 = 17
    INT4 = 18

    @property
    def is_split(self) -> bool:
        """Whether the codec writes a residual beside the anchor."""
        return self in (CodecId.GRID, CodecId.ALG1, CodecId.PAIR)


class DType(IntEnum):
    """T, the type of the cache."""

    BF16 = 1
    FP16 = 2
    FP32 = 3

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return 4 if self is DType.FP32 else 2


class Center(IntEnum):
    """What chunks are centred on; readers do not need it to decode."""

    MIDRANGE = 0
    MEAN = 1


# The split codecs, as CodecConfig calls them.
CODEC_NAMES: dict[CodecId, Literal["grid", "alg1", "pair"]] = {
    CodecId.GRID: "grid", CodecId.ALG1: "alg1", CodecId.PAIR: "pair",
}  # fmt: skip


@dataclass(frozen=True)
class FrameHeader:
    """Everything the header says but the checksum, in the order in which readers check it.

    A receiver that knows what it is waiting for builds the header it expects and passes it to `parse`.

    Attributes:
        page: tokens a full page holds; tokens: those of this one. page_index counts from the sequence's start, so the
            first token's absolute position is token_offset = page_index * page.
        heads: KV heads in the frame; head_offset: the first one's number in the whole model.
        chunk, sink_tokens, alpha, center: as in CodecConfig; zero for codecs that are not split.
        generation: the transfer attempt; frames of another one are stale.
    """

    stream: Stream
    codec: CodecId
    dtype: DType
    layer: int
    is_value: bool
    page_index: int
    page: int
    tokens: int
    heads: int
    head_dim: int
    payload_bytes: int
    generation: int = 0
    head_offset: int = 0
    chunk: int = 0
    sink_tokens: int = 0
    alpha: float = 0.0
    center: Center = Center.MIDRANGE

    def __post_init__(self) -> None:
        for name, bits in _FIELD_BITS.items():
            if not 0 <= getattr(self, name) < 1 << bits:
                raise self.error(name, f"{getattr(self, name)} does not fit {bits} bits")
        if self.codec.is_split:
            try:
                self.config()
            except ValueError as problem:
                name, _, text = str(problem).partition(": ")
                raise self.error(name, text) from None
        else:
            self._check_monolithic()
        if not 1 <= self.tokens <= self.page:
            raise self.error("tokens", f"{self.tokens} is outside 1 .. page ({self.page})")
        if self.heads < 1 or self.head_dim < 1 or self.heads * self.head_dim > MAX_CHANNELS:
            name = "heads" if self.heads < 1 else "head_dim"
            raise self.error(name, f"{self.heads} x {self.head_dim} channels are outside 1 .. {MAX_CHANNELS}")
        if unfit := head_problem(CODEC_NAMES.get(self.codec, ""), self.head_dim):
            raise self.error("head_dim", unfit)
        if self.payload_bytes > MAX_PAYLOAD_BYTES:
            raise self.error("payload_bytes", f"{self.payload_bytes} is above {MAX_PAYLOAD_BYTES}")
        if self.stream is Stream.EXACT:
            self._check_exact()

    def _check_monolithic(self) -> None:
        if self.stream is not Stream.ANCHOR:
            raise self.error("stream", f"{self.codec.name} sends everything as ANCHOR")
        for name in ("chunk", "sink_tokens", "alpha", "center"):
            if getattr(self, name) != 0:
                raise self.error(name, f"{getattr(self, name)} must be 0 for {self.codec.name}")
        if not 1 <= self.page <= 32768:
            raise self.error("page", f"{self.page} is outside 1 .. 32768")

    def _check_exact(self) -> None:
        """The other streams have one possible size, which their codec knows; this one's varies."""
        size = self.tokens * self.heads * self.head_dim * self.dtype.itemsize
        most = size + size // 256 + 128  # zstd's own bound, the checksum, and room for a block header a byte plane
        if not 8 <= self.payload_bytes <= most:
            raise self.error("payload_bytes", f"{self.payload_bytes} is outside 8 .. {most}")

    @property
    def token_offset(self) -> int:
        """Absolute position of the first token."""
        return self.page_index * self.page

    def config(self) -> CodecConfig:
        """The parameters of a split codec.

        Raises:
            ValueError: one of them is out of range, or the codec is not split.
        """
        if not self.codec.is_split:
            raise ValueError(f"codec: {self.codec.name} has no CodecConfig")
        return CodecConfig(
            CODEC_NAMES[self.codec],
            alpha=self.alpha,
            center="mean" if self.center is Center.MEAN else "midrange",
            chunk=self.chunk,
            page=self.page,
            sink_tokens=self.sink_tokens,
        )

    def error(self, field: str, problem: str) -> FrameError:
        """A FrameError that says which frame it is about."""
        return FrameError(field, problem, page=self.page_index, stream=self.stream.name)

    def require(self, expected: FrameHeader) -> None:
        """Raises FrameError naming the first field that differs from the `expected` header's."""
        for field in fields(self):
            found, wanted = getattr(self, field.name), getattr(expected, field.name)
            if found != wanted:
                raise self.error(field.name, f"{_show(found)}, expected {_show(wanted)}")

    def pack(self, checksum: int = 0) -> bytes:
        """The 64 bytes."""
        return _LAYOUT.pack(
            MAGIC, VERSION, self.stream, self.codec, self.dtype, self.center, self.is_value, self.chunk, self.page,
            self.tokens, self.heads, self.head_offset, self.head_dim, self.layer, self.sink_tokens, 0,
            self.page_index, self.token_offset, self.alpha, self.payload_bytes, self.generation, checksum,
        )  # fmt: skip

    @staticmethod
    def unpack(data: bytes | bytearray | memoryview) -> tuple[FrameHeader, int]:
        """Header and checksum from the first 64 bytes of `data`; the payload is not looked at.

        A receiver calls this before it allocates `payload_bytes`.

        Raises:
            FrameError: naming the first field that is wrong.
        """
        if len(data) < HEADER_BYTES:
            raise FrameError("size", f"{len(data)} bytes are fewer than the header's {HEADER_BYTES}")
        (magic, version, stream, codec, dtype, center, kv, chunk, page, tokens, heads, head_offset, head_dim, layer,
         sink_tokens, reserved, page_index, token_offset, alpha, payload_bytes, generation, checksum,
         ) = _LAYOUT.unpack_from(data)  # fmt: skip
        if magic != MAGIC:
            raise FrameError("magic", f"{magic!r} is not {MAGIC!r}")
        if version != VERSION:
            raise FrameError("version", f"{version} is not {VERSION}, the only one this reader knows")
        known_stream = _known(Stream, "stream", stream, page_index, None)
        where = page_index, known_stream.name
        if kv > 1:
            raise FrameError("kv", f"{kv} is neither 0 (K) nor 1 (V)", page=page_index, stream=known_stream.name)
        header = FrameHeader(
            stream=known_stream,
            codec=_known(CodecId, "codec", codec, *where),
            dtype=_known(DType, "dtype", dtype, *where),
            layer=layer,
            is_value=bool(kv),
            page_index=page_index,
            page=page,
            tokens=tokens,
            heads=heads,
            head_dim=head_dim,
            payload_bytes=payload_bytes,
            generation=generation,
            head_offset=head_offset,
            chunk=chunk,
            sink_tokens=sink_tokens,
            alpha=alpha,
            center=_known(Center, "center", center, *where),
        )
        if reserved != 0:
            raise header.error("reserved", f"{reserved} is not 0")
        if token_offset != header.token_offset:
            raise header.error("token_offset", f"{token_offset} is not page_index * page, {header.token_offset}")
        return header, checksum


def _known(kind: type[E], field: str, value: int, page: int, stream: str | None) -> E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(f"{member.value} ({member.name})" for member in kind)
        raise FrameError(field, f"{value} is none of {known}", page=page, stream=stream) from None


def _show(value: object) -> str:
    return value.name if isinstance(value, IntEnum) else str(value)
