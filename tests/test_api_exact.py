"""The exact stream through the public API: the input's own bits come back, or a FrameError."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_ascend import CodecConfig, EncodedKV, FrameError, encode
from lynx_ascend.codec.config import Stream
from lynx_ascend.frame import HEADER_BYTES, parse, seal
from lynx_ascend.methods import frame_header
from lynx_ascend.paged import PagedKV, PageEncoder, decode_page
from tests.frame.receiver import same_bits
from tests.test_api import normal

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
EXACT = CodecConfig(exact=True)


def copied(encoded: EncodedKV) -> EncodedKV:
    streams = ("anchor", "residual", "exact")
    return EncodedKV.from_frames(**{name: encoded.frames(name) for name in streams})  # type: ignore[arg-type]


def remade(frame: bytes, payload: bytes) -> bytes:
    """`frame` with another payload, under a valid checksum."""
    made = bytearray(HEADER_BYTES) + payload
    seal(made, replace(parse(frame).header, payload_bytes=len(payload)))
    return bytes(made)


def finite(words: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Bit patterns as values; those of NaN and Inf become the largest of their sign."""
    bits = torch.tensor(words, dtype=torch.int64).to(torch.int16 if dtype.itemsize == 2 else torch.int32)
    largest = torch.finfo(dtype).max
    x = bits.view(dtype)
    return torch.where(x.isfinite(), x, torch.where(bits < 0, -largest, largest).to(dtype))


@st.composite
def values(draw: st.DrawFn) -> tuple[torch.Tensor, CodecConfig]:
    dtype = draw(st.sampled_from(DTYPES))
    chunk, chunks = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    codec = draw(st.sampled_from(["grid", "alg1", "pair"]))
    config = CodecConfig(
        codec,
        alpha=0.0 if codec == "pair" else draw(st.sampled_from([0.0, 1.0, 100.0])),
        center=draw(st.sampled_from(["mean", "midrange"])),
        chunk=chunk,
        page=chunk * chunks,
        sink_tokens=draw(st.integers(0, chunk * chunks)),
        exact=True,
    )
    shape = (
        draw(st.integers(1, 20)),
        draw(st.integers(1, 2)),
        draw(st.sampled_from([4, 8] if codec == "pair" else [1, 2, 3])),
    )
    top = (1 << 8 * dtype.itemsize) - 1
    zero, smallest, largest = (0, top // 2 + 1), (1, top // 2 + 2), (top // 2, top)  # of both signs
    special = st.sampled_from([*zero, *smallest, *largest])
    # All of T, or a few neighbouring exponents, as real data have, or nothing but the ends of the scale.
    near = st.integers(0, 3 << 8 * (dtype.itemsize - 1)).map(lambda word: word + (0x38 << 8 * (dtype.itemsize - 1)))
    word = draw(st.sampled_from([st.integers(0, top), near, special, st.one_of(near, special)]))
    count = shape[0] * shape[1] * shape[2]
    return finite(draw(st.lists(word, min_size=count, max_size=count)), dtype).view(shape), config


@settings(max_examples=300, deadline=None)
@given(values())
def test_every_bit_comes_back(case: tuple[torch.Tensor, CodecConfig]) -> None:
    x, config = case
    encoded = encode(x, config)
    copy = copied(encoded)
    assert same_bits(copy.decode("exact"), x) and same_bits(encoded.decode("exact"), x)
    assert copy.config == encoded.config == config and copy.shape == x.shape
    assert encoded.nbytes("exact") == sum(map(len, encoded.frames("exact")))
    plain = encode(x, replace(config, exact=False))
    for stream in ("anchor", "residual"):  # these are the same with and without the third stream
        assert encoded.frames(stream) == plain.frames(stream)
        assert same_bits(copy.decode(stream), plain.decode(stream))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", ["grid", "alg1", "pair"])
def test_full_pages(codec: str, dtype: torch.dtype) -> None:
    x = normal(700, 3, 64, dtype)
    x[5, 0, 0], x[300, 1, 7], x[301, 1, 7] = -0.0, torch.finfo(dtype).max, -torch.finfo(dtype).tiny / 4
    encoded = encode(x, CodecConfig(codec=codec, exact=True))  # type: ignore[arg-type]
    assert same_bits(copied(encoded).decode("exact"), x)
    assert not torch.equal(encoded.decode("residual"), x)
    strided = x.transpose(1, 2)
    assert same_bits(encode(strided, EXACT).decode("exact"), strided)


def test_exact_bf16_takes_fewer_bytes_than_bf16() -> None:
    x = normal(1024, 3, 64)
    encoded = encode(x, EXACT)
    total = sum(encoded.nbytes(stream) for stream in ("anchor", "residual", "exact"))
    assert total * 8 / x.numel() < 13.2


def test_without_exact_frames() -> None:
    encoded = encode(normal(5, 1, 4))
    for call in (encoded.decode, encoded.nbytes, encoded.frames):
        with pytest.raises(ValueError, match=r"^exact: not among the frames.*CodecConfig\(exact=True\)"):
            call("exact")
    assert not encoded.config.exact
    with pytest.raises(ValueError, match="'third' is none of"):
        encoded.decode("third")  # type: ignore[arg-type]


def test_every_flip_and_every_truncation_of_an_exact_frame() -> None:
    encoded = encode(normal(9, 1, 5), CodecConfig(chunk=8, page=8, exact=True))
    anchor, residual, exact = (encoded.frames(stream) for stream in ("anchor", "residual", "exact"))
    for page, frame in enumerate(exact):
        cut = [frame[:size] for size in range(len(frame))] + [frame + b"\0", frame + frame]
        flipped = [
            frame[:i] + bytes([frame[i] ^ 1 << bit]) + frame[i + 1 :] for i in range(len(frame)) for bit in range(8)
        ]
        for bad in cut + flipped:
            with pytest.raises(FrameError):
                EncodedKV.from_frames(anchor, residual, [*exact[:page], bad, *exact[page + 1 :]])


def test_every_truncation_of_the_payload_under_a_valid_checksum() -> None:
    encoded = encode(normal(40, 1, 5), EXACT)
    anchor, residual, (exact,) = (encoded.frames(stream) for stream in ("anchor", "residual", "exact"))
    payload = exact[HEADER_BYTES:]
    for size in range(8):
        with pytest.raises(FrameError, match=rf"EXACT stream, page 0: payload_bytes: {size} is outside 8 \.\. "):
            remade(exact, payload[:size])
    for bad in [payload[:size] for size in range(8, len(payload))] + [payload + b"\0"]:
        copy = EncodedKV.from_frames(anchor, residual, [remade(exact, bad)])
        with pytest.raises(FrameError, match="EXACT stream, page 0: distances: ") as caught:
            copy.decode("exact")
        assert (caught.value.field, caught.value.page, caught.value.stream) == ("distances", 0, "EXACT")


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_reconstruction_is_an_error_and_never_a_value(dtype: torch.dtype) -> None:
    x = normal(600, 2, 8, dtype)
    encoded = encode(x, EXACT)
    anchor, residual, exact = (encoded.frames(stream) for stream in ("anchor", "residual", "exact"))

    def changed(frame: bytes, offset: int) -> bytes:
        payload = bytearray(frame[HEADER_BYTES:])
        payload[offset] ^= 0x11
        return remade(frame, bytes(payload))

    sink = 2 * 16 * dtype.itemsize + 2 * 8 * 16  # gamma, mu and sigma come before it
    cases = [
        (0, [changed(anchor[0], -1), *anchor[1:]], residual, exact),
        (0, [changed(anchor[0], sink), *anchor[1:]], residual, exact),
        (1, anchor, [residual[0], changed(residual[1], 77), residual[2]], exact),
        (0, anchor, [*encode(x * 1.01, EXACT).frames("residual")[:2], changed(residual[2], 0)], exact),
        (1, anchor, residual, [exact[0], remade(exact[1], exact[0][HEADER_BYTES:]), exact[2]]),
        (0, anchor, residual, [changed(exact[0], 3), *exact[1:]]),
    ]
    for page, anchors, residuals, exacts in cases:
        copy = EncodedKV.from_frames(anchors, residuals, exacts)
        with pytest.raises(FrameError, match=r"EXACT stream, page .: reconstruction: its checksum is") as caught:
            copy.decode("exact")
        assert caught.value.page == page


def test_missing_foreign_and_disordered_exact_frames() -> None:
    encoded = encode(normal(600, 2, 8), EXACT)
    wider, taller = encode(normal(600, 2, 9), EXACT).frames("exact"), encode(normal(600, 40, 8), EXACT).frames("exact")
    anchor, residual, exact = (encoded.frames(stream) for stream in ("anchor", "residual", "exact"))
    cases = [
        ("residual", None, None, exact),
        ("exact", 2, residual, exact[:2]),
        ("exact", 3, residual, [*exact, exact[2]]),
        ("page_index", 0, residual, [exact[1], exact[0], exact[2]]),
        ("head_dim", 0, residual, wider),
        ("heads", 0, residual, taller),
        ("stream", 0, residual, residual),
        ("stream", 0, residual, anchor),
        ("stream", 0, exact, exact),
    ]
    for field, page, residuals, exacts in cases:
        with pytest.raises(FrameError) as caught:
            EncodedKV.from_frames(anchor, residuals, exacts)
        found = caught.value
        # A disordered frame says its own page.
        assert (found.field, found.page) == (field, 1 if field == "page_index" else page), str(found)
    with pytest.raises(FrameError, match="stream: EXACT, expected ANCHOR"):
        EncodedKV.from_frames(exact)


def test_sink_tokens_alone() -> None:
    x = normal(3, 2, 4)
    encoded = encode(x, EXACT)
    assert encoded.nbytes("exact") == HEADER_BYTES + 8 and same_bits(copied(encoded).decode("exact"), x)


def test_distances_that_lead_to_nan() -> None:
    """Under valid checksums and with the right reconstruction: still no NaN."""
    encoded = encode(normal(40, 1, 5), EXACT)
    anchor, residual, (exact,) = (encoded.frames(stream) for stream in ("anchor", "residual", "exact"))
    planes = b"\xff" * (36 * 5) + b"\x7f" * (36 * 5)
    payload = exact[HEADER_BYTES : HEADER_BYTES + 8] + zstandard.ZstdCompressor().compress(planes)
    copy = EncodedKV.from_frames(anchor, residual, [remade(exact, payload)])
    with pytest.raises(FrameError, match="distances: lead to NaN or Inf"):
        copy.decode("exact")


def test_transfer_methods_and_paged_caches_refuse_the_exact_stream() -> None:
    x = normal(40, 1, 5)
    encoded = encode(x, EXACT)
    anchor, _, exact = (parse(encoded.frames(stream)[0]) for stream in ("anchor", "residual", "exact"))
    target = PagedKV(torch.zeros_like(x).unsqueeze(0), torch.tensor([0]))
    with pytest.raises(FrameError, match="EXACT stream, page 0: stream: EXACT, expected RESIDUAL"):
        decode_page(anchor, exact, target)
    with pytest.raises(FrameError, match="EXACT stream, page 0: stream: EXACT given as the anchor"):
        decode_page(exact, None, target)
    assert not target.cache.any()
    with pytest.raises(ValueError, match="stream: the transfer methods send no EXACT"):
        frame_header(
            "lynx", Stream.EXACT, 0, tokens=40, heads=1, head_dim=5, dtype=x.dtype, layer=0, is_value=False,
            generation=0,
        )  # fmt: skip
    with pytest.raises(ValueError, match="exact: the transfer methods send two streams"):
        PageEncoder("lynx", target, 40, layer=0, is_value=False, generation=0, config=EXACT)


def test_the_header_says_which_layer_and_what_it_is_of() -> None:
    x = normal(300, 1, 5)
    encoded, plain = encode(x, EXACT, layer=7, is_value=True), encode(x, EXACT)
    for stream in ("anchor", "residual", "exact"):
        for frame, other in zip(encoded.frames(stream), plain.frames(stream), strict=True):
            assert parse(frame).header == replace(parse(other).header, layer=7, is_value=True)
            assert frame[HEADER_BYTES:] == other[HEADER_BYTES:]
    assert same_bits(copied(encoded).decode("exact"), x)
    with pytest.raises(FrameError, match="layer"):
        EncodedKV.from_frames(encoded.frames("anchor"), plain.frames("residual"))
    with pytest.raises(ValueError, match="layer: 65536 does not fit"):
        encode(x, layer=65536)
