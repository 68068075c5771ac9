"""The seeded mutator: valid frames, changed at random; half of the mutants get a right checksum again."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import xxhash

from lynx_ascend.codec.config import Stream
from lynx_ascend.frame import HEADER_BYTES, CodecId, FrameError, FrameHeader
from lynx_ascend.methods import TORCH_DTYPES, frame_layout, payload_bytes
from tests.frame.corpus import Frames, Seed

OFFSETS = {
    "magic": (0, "4s"), "version": (4, "B"), "stream": (5, "B"), "codec": (6, "B"), "dtype": (7, "B"),
    "center": (8, "B"), "kv": (9, "B"), "chunk": (10, "H"), "page": (12, "H"), "tokens": (14, "H"), "heads": (16, "H"),
    "head_offset": (18, "H"), "head_dim": (20, "H"), "layer": (22, "H"), "sink_tokens": (24, "H"),
    "reserved": (26, "H"), "page_index": (28, "I"), "token_offset": (32, "Q"), "alpha": (40, "f"),
    "payload_bytes": (44, "I"), "generation": (48, "Q"), "checksum": (56, "Q"),
}  # fmt: skip
INTEGERS = {name: at for name, at in OFFSETS.items() if at[1] in "BHIQ" and name != "checksum"}
FLOATS = (0.0, -0.0, 1e-45, -1e-45, 1e-38, 0.5, 1.0, -1.0, 1.0000001, 3.0, 100.0, 1e6, 1.0000001e6, 65504.0, 3.39e38,
          3.4028235e38, -3.4028235e38, float("inf"), float("-inf"), float("nan"))  # fmt: skip
BITS16 = (0x0000, 0x8000, 0x0001, 0x8001, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00,
          0x7E00)  # fmt: skip
LARGEST_FIT = 1 << 16  # bytes of payload that `fit` makes


class Mutant(NamedTuple):
    """Frames to try as those of one page.

    Attributes:
        sealed: whether the changed frames have a right checksum. kinds: names of the mutations.
    """

    origin: Seed
    frames: Frames
    sealed: bool
    kinds: tuple[str, ...]


def mutant(index: int, seed: int, small: list[Seed], full: list[Seed]) -> Mutant:
    """Mutant number `index` of a run; those with odd numbers are re-sealed."""
    rng = Random(seed << 40 | index)
    corpus = full if rng.random() < 0.01 else small
    origin = rng.choice(corpus)
    frames = [bytearray(frame) for frame in origin.frames]
    kinds: list[str] = []
    if rng.random() < 0.02:
        _change_partners(rng, frames, rng.choice(corpus))
        kinds.append("partners")
    at = 0 if rng.random() < 0.5 else rng.randrange(len(frames))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(CHANGES)
        change(rng, frames[at], rng.choice(rng.choice(corpus).frames))
        kinds.append(change.__name__.strip("_"))
    sealed = index % 2 == 1
    if sealed:
        _mend(rng, frames[at])
        if rng.random() < 0.3:
            for other in frames[:at] + frames[at + 1 :]:
                _copy_header(frames[at], other)
    return Mutant(origin, tuple(bytes(frame) for frame in frames), sealed, tuple(kinds))


def seal_again(frame: bytearray) -> None:
    """Writes the right checksum, whatever else the bytes are; fewer than 64 have no room for one."""
    if len(frame) >= HEADER_BYTES:
        frame[56:64] = bytes(8)
        frame[56:64] = xxhash.xxh3_64_intdigest(frame).to_bytes(8, "little")


def put(frame: bytearray, field: str, value: object) -> None:
    """Sets one header field."""
    offset, code = OFFSETS[field]
    struct.pack_into("<" + code, frame, offset, value)


def get(frame: bytes | bytearray, field: str) -> int:
    """One header field."""
    offset, code = OFFSETS[field]
    return int(struct.unpack_from("<" + code, frame, offset)[0])


def _mend(rng: Random, frame: bytearray) -> None:
    """Makes a changed frame right again as far as its checksum, often its size too: deeper checks see it then."""
    if len(frame) >= HEADER_BYTES:
        how = rng.random()
        if how < 0.5:
            _fit(frame)
        elif how < 0.6:
            put(frame, "payload_bytes", len(frame) - HEADER_BYTES)
        if how < 0.9:
            put(frame, "token_offset", get(frame, "page_index") * get(frame, "page"))
    seal_again(frame)


def _fit(frame: bytearray) -> None:
    """Cuts or repeats the payload to the size that the header implies, if that is a small one; EXACT has no such."""
    if frame[5] == Stream.EXACT:
        put(frame, "payload_bytes", len(frame) - HEADER_BYTES)
        return
    probe = bytearray(frame[:HEADER_BYTES])
    put(probe, "payload_bytes", 0)
    put(probe, "token_offset", get(frame, "page_index") * get(frame, "page"))
    try:
        header, _ = FrameHeader.unpack(probe)
    except FrameError:
        return
    size = payload_bytes(header)
    if size <= LARGEST_FIT:
        payload = bytes(frame[HEADER_BYTES:]) or b"\0"
        frame[HEADER_BYTES:] = (payload * (size // len(payload) + 1))[:size]
        put(frame, "payload_bytes", size)


def _copy_header(source: bytearray, frame: bytearray) -> None:
    """Gives a partner of a changed frame the same header, but for its stream and size."""
    if len(source) >= HEADER_BYTES <= len(frame):
        stream = frame[5]
        frame[:HEADER_BYTES] = source[:HEADER_BYTES]
        frame[5] = stream
        _fit(frame)
        seal_again(frame)


def _change_partners(rng: Random, frames: list[bytearray], other: Seed) -> None:
    """Later streams of another page, none, one too many, or the frames in the wrong order."""
    how = rng.randrange(4)
    if how == 0:
        frames[1:] = [bytearray(frame) for frame in other.frames[1:]]
    elif how == 1:
        del frames[rng.randrange(1, len(frames) + 1) :]
    elif how == 2 and len(frames) < 3:
        frames.append(bytearray(rng.choice(other.frames)))
    elif how == 3:
        frames.reverse()


def _flip_bits(rng: Random, frame: bytearray, other: bytes) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        if frame:
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)


def _flip_header_bit(rng: Random, frame: bytearray, other: bytes) -> None:
    if frame:
        frame[rng.randrange(min(HEADER_BYTES, len(frame)))] ^= 1 << rng.randrange(8)


def _set_byte(rng: Random, frame: bytearray, other: bytes) -> None:
    if frame:
        frame[rng.randrange(len(frame))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _set_field(rng: Random, frame: bytearray, other: bytes) -> None:
    """An integer field gets a value at which something may end."""
    field = rng.choice(list(INTEGERS))
    if len(frame) < HEADER_BYTES:
        return
    top = (1 << 8 * struct.calcsize("<" + INTEGERS[field][1])) - 1
    now = get(frame, field)
    power = 1 << rng.randrange(top.bit_length())
    near = (power, power - 1, power + 1, top, top - 1, now + 1, now - 1, 2 * now, now // 2)
    value = rng.choice((0, 1, 2, 3, 16, 17, 18, 255, *near))
    put(frame, field, value & top)


def _set_alpha(rng: Random, frame: bytearray, other: bytes) -> None:
    if len(frame) >= HEADER_BYTES:
        put(frame, "alpha", rng.choice(FLOATS))


def _swap_fields(rng: Random, frame: bytearray, other: bytes) -> None:
    """Two fields of one width trade values, or a field is another frame's."""
    first, second = rng.sample(list(INTEGERS), 2)
    if len(frame) < HEADER_BYTES:
        return
    if rng.random() < 0.5:
        put(frame, first, get(other, first))
    elif INTEGERS[first][1] == INTEGERS[second][1]:
        a, b = get(frame, first), get(frame, second)
        put(frame, first, b)
        put(frame, second, a)


def _truncate(rng: Random, frame: bytearray, other: bytes) -> None:
    del frame[rng.choice((0, 1, 55, 56, 63, 64, 65, max(len(frame) - 1, 0), rng.randrange(len(frame) + 1))) :]


def _extend(rng: Random, frame: bytearray, other: bytes) -> None:
    frame += rng.choice((b"\0", rng.randbytes(rng.randrange(1, 65)), other))


def _splice(rng: Random, frame: bytearray, other: bytes) -> None:
    """The head of one frame and the tail of another, cut at one place or at two."""
    cut = rng.randrange(len(frame) + 1)
    at = min(cut, len(other)) if rng.random() < 0.5 else rng.randrange(len(other))
    frame[cut:] = other[at:]


def _duplicate(rng: Random, frame: bytearray, other: bytes) -> None:
    """A stretch of the frame appears twice: in place of what was there, or in between."""
    begin = rng.randrange(len(frame) + 1)
    piece = frame[begin : begin + rng.randrange(1, 65)]
    to = rng.randrange(len(frame) + 1)
    frame[to : to + (len(piece) if rng.random() < 0.5 else 0)] = piece


def _set_metadata(rng: Random, frame: bytearray, other: bytes) -> None:
    """A number in the payload's metadata becomes NaN, Inf or extreme, or a range runs backwards."""
    try:
        header, _ = FrameHeader.unpack(frame)
    except FrameError:
        return
    parts = _parts(header)
    if len(frame) < HEADER_BYTES + parts[-1][1]:
        return
    begin, stop, width = rng.choice(parts)
    if rng.random() < 0.1 and len(parts) > 1:  # gamma_min and gamma_max trade places
        size = parts[1][0] - parts[0][0]
        low, high = HEADER_BYTES, HEADER_BYTES + size
        frame[low:high], frame[high : high + size] = frame[high : high + size], frame[low:high]
    elif begin < stop:
        value = {1: bytes([rng.choice((0, 1, 127, 128, 254, 255))]), 2: struct.pack("<H", rng.choice(BITS16))}.get(
            width, struct.pack("<f", rng.choice(FLOATS))
        )
        where = HEADER_BYTES + begin + width * rng.randrange((stop - begin) // width)
        frame[where : where + width] = value


def _parts(header: FrameHeader) -> list[tuple[int, int, int]]:
    """(first byte, end, bytes of a number) of each part of a payload that holds more than codes."""
    dtype = TORCH_DTYPES[header.dtype]
    if header.codec is CodecId.RAW:
        return [(0, payload_bytes(header), dtype.itemsize)]
    if not header.codec.is_split:
        return [(0, 8, 4)]
    if header.stream is not Stream.ANCHOR:  # EXACT: the checksum, the head of the zstd frame. RESIDUAL has none
        return [(0, min(24, header.payload_bytes) if header.stream is Stream.EXACT else 0, 1)]
    at = frame_layout(header)
    gamma, scale = at.gamma_dtype.itemsize, at.metadata_dtype.itemsize
    return [
        (0, at.gamma_max, gamma),
        (at.gamma_max, at.mu, gamma),
        (at.mu, at.sigma, scale),
        (at.sigma, at.widths, scale),
        (at.widths, at.sink, 1),
        (at.sink, at.codes, dtype.itemsize),
    ]


CHANGES: tuple[Callable[[Random, bytearray, bytes], None], ...] = (
    _flip_bits, _flip_header_bit, _set_byte, _set_field, _set_field, _set_alpha, _swap_fields, _truncate, _extend,
    _splice, _duplicate, _set_metadata, _set_metadata, _set_metadata,
)  # fmt: skip
