"""The stored frames are what the encoder writes, and they decode to the stored values (README.md)."""

from __future__ import annotations

import io

import pytest

from lynx_ascend import EncodedKV
from lynx_ascend.codec.config import Stream
from lynx_ascend.frame import CodecId, DType, read_frames
from tests.golden.make import DTYPES, FOLDER, MONOLITHIC, SPLIT, contents, stored, to_bytes

STREAMS = ("anchor", "residual", "exact")
FRAMES = sorted(name for name in stored() if not name.endswith(".values"))


def frames(name: str) -> list[bytes]:
    """The frames of a stored file."""
    return [bytes(frame.data) for frame in read_frames(io.BytesIO((FOLDER / name).read_bytes()))]


def test_the_encoder_writes_these_bytes() -> None:
    made = contents()
    assert made.keys() == stored()
    # How the exact stream is compressed is the writer's choice: what it restores is checked below.
    pinned = [name for name in made if not name.endswith(".exact")]
    assert [name for name in pinned if made[name] != (FOLDER / name).read_bytes()] == []


@pytest.mark.parametrize("name", FRAMES)
def test_these_bytes_decode_to_these_values(name: str) -> None:
    case, stream = name.split(".")
    needed = STREAMS[: STREAMS.index(stream) + 1]
    encoded = EncodedKV.from_frames(*(frames(f"{case}.{one}") for one in needed))
    wanted = f"input-{case.split('-')[1]}.values" if stream == "exact" else f"{name}.values"
    assert to_bytes(encoded.decode(stream)) == (FOLDER / wanted).read_bytes()  # type: ignore[arg-type]


def test_every_codec_type_and_stream_is_there() -> None:
    found = set()
    for name in FRAMES:
        headers = [frame.header for frame in read_frames(io.BytesIO((FOLDER / name).read_bytes()))]
        assert [(header.page_index, header.tokens, header.page) for header in headers] == [(0, 32, 32), (1, 8, 32)]
        found |= {(header.codec, header.dtype, header.stream) for header in headers}
    assert found == {
        (codec, dtype, stream)
        for codec in CodecId
        for dtype in DType
        for stream in (Stream if codec.is_split else (Stream.ANCHOR,))
    }
    assert len(FRAMES) == len(DTYPES) * (len(MONOLITHIC) + sum(3 if config.exact else 2 for config in SPLIT.values()))
