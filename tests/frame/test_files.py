"""Frames in a file: all of them, the wanted ones, and every way the file can be wrong."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from lynx_ascend import CodecConfig, EncodedKV, FrameError, encode
from lynx_ascend.codec.config import Stream
from lynx_ascend.frame import HEADER_BYTES, FrameHeader, parse, read_frames, seal
from tests.frame.receiver import same_bits
from tests.test_api import normal


@pytest.fixture(scope="module")
def frames() -> list[bytes]:
    """Page after page: anchor, residual and exact of 3 pages; page 0 is all sink rows, so its residual is empty."""
    config = CodecConfig(chunk=4, page=4, sink_tokens=4, exact=True)
    encoded = encode(normal(10, 2, 5), config)
    pages = zip(*(encoded.frames(name) for name in ("anchor", "residual", "exact")), strict=True)
    return [frame for page in pages for frame in page]


class Raw(io.RawIOBase):
    """A file without a buffer, or a pipe, that gives three bytes at a time and cannot seek."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int = -1, /) -> bytes:
        return self._data.read(min(size, 3))


def test_all_frames(frames: list[bytes], tmp_path: Path) -> None:
    data = b"".join(frames)
    assert [bytes(frame.data) for frame in read_frames(io.BytesIO(data))] == frames
    assert [bytes(frame.data) for frame in read_frames(Raw(data))] == frames  # type: ignore[arg-type]
    path = tmp_path / "kv"
    path.write_bytes(b"before" + data)
    with path.open("rb") as file:
        file.seek(6)
        assert [bytes(frame.data) for frame in read_frames(file)] == frames
    assert list(read_frames(io.BytesIO())) == []


def test_wanted_frames(frames: list[bytes]) -> None:
    data = b"".join(frames)
    for stream in Stream:
        found = read_frames(io.BytesIO(data), lambda header, stream=stream: header.stream is stream)  # type: ignore[misc]
        assert [bytes(frame.data) for frame in found] == frames[stream::3]
    assert list(read_frames(io.BytesIO(data), lambda header: False)) == []
    exact = EncodedKV.from_frames(*([frame.data for frame in read_frames(io.BytesIO(data))][i::3] for i in range(3)))
    assert same_bits(exact.decode("exact"), normal(10, 2, 5))


def test_what_is_not_wanted_is_not_read(frames: list[bytes]) -> None:
    damaged = bytearray(b"".join(frames))
    damaged[len(frames[0]) + len(frames[1]) + HEADER_BYTES + 3] ^= 1  # the first exact payload

    def early(header: FrameHeader) -> bool:
        return header.stream is not Stream.EXACT

    assert len(list(read_frames(io.BytesIO(damaged), early))) == 6
    with pytest.raises(FrameError, match="EXACT stream, page 0: checksum"):
        list(read_frames(io.BytesIO(damaged)))


def test_every_truncation_is_an_error_wanted_or_not(frames: list[bytes]) -> None:
    data = b"".join(frames)
    ends = {0}
    for frame in frames:
        ends.add(max(ends) + len(frame))
    for size in range(len(data)):
        for wanted in (None, lambda header: False):
            found = read_frames(io.BytesIO(data[:size]), wanted)
            if size in ends:
                assert len(list(found)) == (sorted(ends).index(size) if wanted is None else 0)
            else:
                with pytest.raises(FrameError, match=r"size|payload_bytes"):
                    list(found)


def test_bytes_between_frames_are_an_error(frames: list[bytes]) -> None:
    for wanted in (None, lambda header: False):
        found = read_frames(io.BytesIO(frames[0] + b"\0" + frames[1]), wanted)
        with pytest.raises(FrameError, match="magic"):
            list(found)


def test_a_size_is_checked_before_the_payload_is_read(frames: list[bytes]) -> None:
    class Counting(io.BytesIO):
        most = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.most = max(self.most, size or 0)
            return super().read(size)

    header = parse(frames[2]).header
    most = header.tokens * 10 * 2 + 128
    with pytest.raises(FrameError, match=rf"payload_bytes: 300 is outside 8 \.\. {most}"):
        replace(header, payload_bytes=300)
    fat = bytearray(frames[2][:HEADER_BYTES]) + bytes(300)
    fat[44:48] = (300).to_bytes(4, "little")
    file = Counting(fat)
    with pytest.raises(FrameError, match="payload_bytes: 300 is outside"):
        list(read_frames(file))
    assert file.most == HEADER_BYTES
    largest = bytearray(HEADER_BYTES + most)
    seal(largest, replace(header, payload_bytes=most))
    assert parse(largest).header.payload_bytes == most
