"""The fuzz target: all that a receiver does with the frames of one page, and what must hold for any bytes.

`fuzz_one(data)` suits every driver that feeds bytes: `atheris.Setup(sys.argv, fuzz_one); atheris.Fuzz()`.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lynx_ascend.api import EncodedKV, StreamName
from lynx_ascend.codec.config import Stream
from lynx_ascend.frame import HEADER_BYTES, Frame, FrameError, FrameHeader, parse
from lynx_ascend.methods import TORCH_DTYPES
from lynx_ascend.paged import PagedKV, check_frame, decode_page
from tests.frame.corpus import Frames
from tests.frame.right import as_bytes, right_exact_value, right_value

# Every name that a FrameError may give: header fields, payload parts, and properties of the frames themselves.
FIELDS = frozenset(
    (
        "size", "magic", "version", "stream", "codec", "dtype", "center", "kv", "chunk", "page", "tokens", "heads",
        "head_offset", "head_dim", "layer", "sink_tokens", "reserved", "page_index", "token_offset", "alpha",
        "payload_bytes", "generation", "checksum", "is_value", "gamma_min", "gamma_max", "mu", "sigma", "widths",
        "sink", "codes", "low", "scale", "values", "reconstruction", "distances", "residual",
    )
)  # fmt: skip
STREAMS: tuple[StreamName, ...] = ("anchor", "residual", "exact")
BLOCK = 8
ROOM = 1 << 15  # tokens that the receiver's cache can hold
GUARD = 0xA5  # what every byte of the cache holds that decoding must leave alone


class Verdict(NamedTuple):
    """What a receiver made of one page: the field it was refused for, or its reconstructions.

    Attributes:
        field: named by the FrameError; None: accepted.
        values: [tokens, heads, head_dim] from the anchor alone, from the residual too, from all three streams: as many
            as there are frames. whole: field for which EncodedKV refuses the tensor that ends in this page, or None.
    """

    field: str | None
    values: tuple[Tensor, ...] = ()
    whole: str | None = None


def fuzz_one(data: bytes) -> None:
    """Any bytes: the frames of one page (anchor, residual, exact), each behind its length (4 bytes, little-endian)."""
    frames: list[bytes] = []
    while data and len(frames) < len(STREAMS):
        size = int.from_bytes(data[:4], "little")
        frames.append(data[4 : 4 + size])
        data = data[4 + size :]
    receive(tuple(frames) or (b"",))


def receive(frames: Frames, before: tuple[Frames, ...] = ()) -> Verdict:
    """Runs the receiver's whole path, and asserts that it ends in a FrameError naming a field or in the right value.

    Args:
        frames: one to three, of any bytes. before: valid frames of the pages before.
    """
    try:
        verdict = Verdict(None, _by_page(frames[:2]))
    except FrameError as error:
        verdict = Verdict(named(error))
    whole = _whole(frames[:2], before, verdict.values)
    if verdict.field is None and whole is not None:
        first = FrameHeader.unpack(frames[0])[0].page_index == 0
        assert before or not first, f"EncodedKV alone refuses it for {whole}"
    if len(frames) < 3:
        return verdict._replace(whole=whole)
    return _with_exact(frames, before, verdict._replace(whole=whole))


def receive_expected(frames: Frames, expected: list[FrameHeader]) -> str | None:
    """The field for which a receiver that knows the headers refuses these frames, or None.

    The size of an exact frame is not known beforehand: of its header the rest is.
    """
    try:
        for data, header in zip(frames, expected, strict=False):
            frame = parse(data, None if header.stream is Stream.EXACT else header)
            frame.header.require(replace(header, payload_bytes=frame.header.payload_bytes))
            check_frame(frame)
    except FrameError as error:
        return named(error)
    return None


def named(error: FrameError) -> str:
    """The field of a FrameError, which its message must name."""
    assert error.field in FIELDS and f"{error.field}: " in str(error), f"unclear error: {error}"
    return error.field


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal in shape, dtype and every bit."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(as_bytes(a), as_bytes(b))


def _by_page(frames: Frames) -> tuple[Tensor, ...]:
    """The receiver of a paged cache: reconstructions from the anchor, and from both if there are two frames."""
    buffers = [bytearray(data) for data in frames]
    header, _ = FrameHeader.unpack(frames[0])
    parsed = [parse(buffer) for buffer in buffers]
    assert parsed[0].header == header
    for frame in parsed:
        check_frame(frame)
    # From here on sizes are those of the payloads that are there, so what is allocated is in proportion.
    values = tuple(_decoded(parsed[0], later) for later in (None, *parsed[1:]))
    assert all(map(operator.eq, buffers, frames)), "decoding wrote into a frame"
    return values


def _whole(frames: Frames, before: tuple[Frames, ...], values: tuple[Tensor, ...]) -> str | None:
    """The receiver of a whole tensor: the field it is refused for; None if the last page is `values`, as it must be."""
    columns = [[page[at] if at < len(page) else b"" for page in before] + [frame] for at, frame in enumerate(frames)]
    try:
        encoded = EncodedKV.from_frames(*columns)
        found = [encoded.decode(stream) for stream in STREAMS[: len(frames)]]
    except FrameError as error:
        return named(error)
    assert values, "EncodedKV alone accepts it"
    for got, wanted in zip(found, values, strict=True):
        assert same_bits(got[-wanted.shape[0] :], wanted), "EncodedKV and decode_page differ"
    return None


def _with_exact(frames: Frames, before: tuple[Frames, ...], verdict: Verdict) -> Verdict:
    """The verdict over all three frames, after that over the first two. EncodedKV alone reads the third."""
    if verdict.field is not None or verdict.whole is not None:
        assert _whole(frames, before, ()) is not None
        return Verdict(verdict.field or verdict.whole, whole=verdict.whole)
    values = verdict.values
    wanted = right_exact_value(frames[2][HEADER_BYTES:], FrameHeader.unpack(frames[0])[0], values[1])
    field = _whole(frames, before, () if wanted is None else (*values, wanted))
    return Verdict(None, (*values, wanted)) if field is None and wanted is not None else Verdict(field, whole=field)


def _decoded(anchor: Frame, residual: Frame | None) -> Tensor:
    """What decode_page writes, which must be the right value, and nothing beside it."""
    target = _target(anchor.header)
    decode_page(anchor, residual, target)
    wanted = right_value(anchor, residual)
    assert bool(wanted.isfinite().all()), "the reconstruction is not finite"
    untouched = PagedKV(_guarded(target.cache.shape, target.cache.dtype), target.block_ids)
    untouched.scatter(anchor.header.token_offset, wanted)
    assert same_bits(target.cache, untouched.cache), "kernels and reference differ"
    return wanted


def _target(header: FrameHeader) -> PagedKV:
    """A guarded cache with blocks for this page, one before it and one that no token is in."""
    end = min(header.token_offset + header.tokens, ROOM)
    before = min(header.token_offset, ROOM) // BLOCK
    blocks = -(-end // BLOCK) - before
    ids = torch.cat([torch.zeros(before, dtype=torch.int64), 1 + torch.arange(blocks).flip(0)])
    shape = (blocks + 2, BLOCK, header.heads, header.head_dim)
    return PagedKV(_guarded(torch.Size(shape), TORCH_DTYPES[header.dtype]), ids)


def _guarded(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.full((shape.numel() * dtype.itemsize,), GUARD, dtype=torch.uint8).view(dtype).view(shape)
