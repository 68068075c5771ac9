"""The frame: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

import struct
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.codec.config import CodecConfig, Stream
from lynx_ascend.frame import HEADER_BYTES, Center, CodecId, DType, FrameError, FrameHeader, parse, seal
from tests.frame.mutants import OFFSETS, put, seal_again

PAYLOAD = bytes(range(200)) * 3
HEADER = FrameHeader(
    stream=Stream.RESIDUAL,
    codec=CodecId.ALG1,
    dtype=DType.FP16,
    layer=17,
    is_value=True,
    page_index=5,
    page=256,
    tokens=200,
    heads=3,
    head_dim=64,
    payload_bytes=len(PAYLOAD),
    generation=2**63 + 9,
    head_offset=6,
    chunk=32,
    sink_tokens=4,
    alpha=100.0,
    center=Center.MEAN,
)


def sealed(header: FrameHeader = HEADER) -> bytearray:
    frame = bytearray(HEADER_BYTES) + bytearray(PAYLOAD)
    seal(frame, header)
    return frame


def resealed(frame: bytearray, field: str, value: object) -> bytearray:
    """`frame` with one header field changed and a checksum that is right again."""
    put(frame, field, value)
    seal_again(frame)
    return frame


def test_round_trip_and_documented_offsets() -> None:
    frame = sealed()
    parsed = parse(frame, HEADER)
    assert parsed.header == HEADER and bytes(parsed.payload) == PAYLOAD and parsed.data == frame
    wanted = {
        "magic": b"LYNX", "version": 1, "stream": 1, "codec": 2, "dtype": 2, "center": 1, "kv": 1, "reserved": 0,
        "token_offset": 5 * 256,
    }  # fmt: skip
    for field, (offset, code) in OFFSETS.items():
        if field != "checksum":
            value = wanted[field] if field in wanted else getattr(HEADER, field)
            assert struct.unpack_from("<" + code, frame, offset) == (value,), field
    assert HEADER.config() == CodecConfig(codec="alg1")


def test_every_flipped_header_byte_is_an_error() -> None:
    for offset in range(HEADER_BYTES):
        for bit in (1, 0x80, 0xFF):
            frame = sealed()
            frame[offset] ^= bit
            with pytest.raises(FrameError):
                parse(frame)


@given(st.integers(0, HEADER_BYTES + len(PAYLOAD) - 1), st.integers(1, 255))
def test_any_flipped_byte_is_an_error(offset: int, flip: int) -> None:
    frame = sealed()
    frame[offset] ^= flip
    with pytest.raises(FrameError) as caught:
        parse(frame)
    assert offset < HEADER_BYTES or (caught.value.field, caught.value.page) == ("checksum", 5)


@given(st.binary(max_size=200), st.booleans())
def test_junk_is_an_error(junk: bytes, with_magic: bool) -> None:
    with pytest.raises(FrameError):
        parse(b"LYNX\x01" + junk if with_magic else junk)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, HEADER_BYTES + len(PAYLOAD) - 1])
def test_truncated(size: int) -> None:
    with pytest.raises(FrameError, match=r"size|payload_bytes"):
        parse(sealed()[:size])


def test_oversized() -> None:
    with pytest.raises(FrameError, match="payload_bytes: 600, but 601 bytes follow the header"):
        parse(sealed() + b"\0")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", b"LYNY"), ("version", 0), ("version", 2), ("stream", 3), ("codec", 0), ("codec", 4),
        ("dtype", 0), ("dtype", 4), ("center", 2), ("kv", 2), ("chunk", 0), ("chunk", 1025), ("page", 0),
        ("page", 257), ("page", 33024), ("tokens", 0), ("tokens", 257), ("heads", 0), ("head_dim", 0),
        ("head_dim", 40000), ("sink_tokens", 257), ("reserved", 1), ("token_offset", 1281), ("alpha", float("nan")),
        ("alpha", float("inf")), ("alpha", -1.0), ("alpha", 2e6), ("payload_bytes", 599), ("payload_bytes", 2**32 - 1),
    ],
)  # fmt: skip
def test_bad_field_under_a_valid_checksum_is_named(field: str, value: object) -> None:
    with pytest.raises(FrameError) as caught:
        parse(resealed(sealed(), field, value))
    assert caught.value.field == field
    assert field in ("magic", "version") or caught.value.page == 5


@pytest.mark.parametrize("head_dim", [1, 6, 2052])
def test_pairs_need_whole_quarters_of_a_head(head_dim: int) -> None:
    pair = replace(HEADER, codec=CodecId.PAIR, alpha=0.0)
    with pytest.raises(FrameError, match=f"head_dim: {head_dim} is not a multiple of 4 up to 2048"):
        replace(pair, head_dim=head_dim)
    with pytest.raises(FrameError, match=r"alpha: 1\.0 is not 0"):
        replace(pair, alpha=1.0)


def test_monolithic_codecs_have_one_stream_and_no_parameters() -> None:
    plain = replace(
        HEADER, stream=Stream.ANCHOR, codec=CodecId.INT8, chunk=0, sink_tokens=0, alpha=0.0, center=Center.MIDRANGE
    )
    assert parse(sealed(plain)).header == plain
    for change in (
        {"stream": Stream.RESIDUAL},
        {"chunk": 32},
        {"sink_tokens": 4},
        {"alpha": 1.0},
        {"center": Center.MEAN},
    ):
        with pytest.raises(FrameError, match=f"^(ANCHOR|RESIDUAL) stream, page 5: {next(iter(change))}: "):
            replace(plain, **change)
    with pytest.raises(ValueError, match="INT8 has no CodecConfig"):
        plain.config()


def test_expected_header_names_the_first_difference() -> None:
    other = {
        "stream": Stream.ANCHOR, "codec": CodecId.GRID, "dtype": DType.BF16, "layer": 1, "is_value": False,
        "page_index": 6, "page": 512, "tokens": 100, "heads": 2, "head_dim": 32, "payload_bytes": 1, "generation": 1,
        "head_offset": 0, "chunk": 64, "sink_tokens": 0, "alpha": 1.0, "center": Center.MIDRANGE,
    }  # fmt: skip
    assert other.keys() == {field.name for field in fields(FrameHeader)}
    for field, value in other.items():
        with pytest.raises(FrameError, match="expected") as caught:
            parse(sealed(), replace(HEADER, **{field: value}))
        assert caught.value.field == field


def test_size_is_known_before_the_payload_is_there() -> None:
    header, _ = FrameHeader.unpack(bytes(sealed()[:HEADER_BYTES]))
    assert header.payload_bytes == len(PAYLOAD)
    with pytest.raises(FrameError, match="payload_bytes: 268435457 is above"):
        FrameHeader.unpack(resealed(sealed(), "payload_bytes", 2**28 + 1)[:HEADER_BYTES])


def test_seal_refuses_another_size_and_values_that_do_not_fit() -> None:
    with pytest.raises(FrameError, match="payload_bytes"):
        seal(bytearray(HEADER_BYTES + 1), HEADER)
    with pytest.raises(FrameError, match="layer: 65536 does not fit 16 bits"):
        replace(HEADER, layer=65536)
    with pytest.raises(FrameError, match="generation: -1"):
        replace(HEADER, generation=-1)
