"""The exact stream's payload: every bit back, ordinals as documented, and nothing decompressed that is not expected."""

from __future__ import annotations

import struct

import pytest
import torch
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_ascend.codec import exact
from tests.frame.receiver import same_bits

BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
INF = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}


def from_bits(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """int64 bit patterns as finite values: the lowest exponent bit of those of NaN and Inf is cleared."""
    bad = (bits & INF[dtype]) == INF[dtype]
    lowest = INF[dtype] & ~(INF[dtype] << 1)
    return torch.where(bad, bits & ~lowest, bits).to(BITS[dtype]).view(dtype)


def random_pages(shape: tuple[int, int, int], dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    high = 1 << 8 * dtype.itemsize
    x, y = (from_bits(torch.randint(0, high, shape, generator=generator), dtype) for _ in range(2))
    return x, y


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list(BITS)),
    st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 5)),
    st.integers(0, 9),
    st.data(),
)
def test_any_bits_from_any_reconstruction(
    dtype: torch.dtype, shape: tuple[int, int, int], sink_rows: int, data: st.DataObject
) -> None:
    """More than the codec needs: x and its reconstruction may be as far apart as T allows."""
    count = shape[0] * shape[1] * shape[2]
    top = (1 << 8 * dtype.itemsize) - 1
    special = [0, 1, top >> 1, (top >> 1) + 1, (top >> 1) + 2, top, INF[dtype] - 1]  # +-0, subnormals, the largest
    words = st.lists(st.one_of(st.integers(0, top), st.sampled_from(special)), min_size=count, max_size=count)
    x, y = (from_bits(torch.tensor(data.draw(words)), dtype).view(shape) for _ in range(2))
    sink_rows = min(sink_rows, shape[0])
    y[:sink_rows] = x[:sink_rows]
    payload = exact.encode(x, y, sink_rows)
    assert same_bits(exact.decode(payload, y, sink_rows), x)


def test_every_value_of_sixteen_bits_has_its_place() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        bits = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
        x = bits.view(dtype)
        x = x[x.isfinite()]
        order = exact._ordinals(x).long()
        values = x[order.argsort()].double()
        assert bool((values.diff() >= 0).all())  # only -0.0 and +0.0 are equal, and they are neighbours
        assert int((values.diff() == 0).sum()) == 1
        assert sorted(order.tolist()) == list(range(int(order.min()), int(order.max()) + 1))
        assert exact._ordinals(torch.tensor([-0.0, 0.0], dtype=dtype)).tolist() == [-1, 0]
        # Every distance, those beyond half the range too.
        for offset in (1, 12345, 32767, 32768, 40000):
            y = x.roll(offset)
            payload = exact.encode(x.view(-1, 1, 1), y.view(-1, 1, 1), 0)
            assert same_bits(exact.decode(payload, y.view(-1, 1, 1), 0).view(-1), x)


def test_the_payload_is_what_the_documentation_says(dtype: torch.dtype) -> None:
    """Written in plain Python from docs/frame.md."""
    x, y = random_pages((5, 2, 3), dtype)
    y[:2] = x[:2]
    size, code = dtype.itemsize, {2: "H", 4: "I"}[dtype.itemsize]
    width, half = 8 * size, 1 << (8 * size - 1)

    def words(part: torch.Tensor) -> tuple[int, ...]:
        data = bytes(part.contiguous().view(torch.uint8).flatten().tolist())
        return struct.unpack(f"<{part.numel()}{code}", data)

    def ordinal(word: int) -> int:
        return word if word < half else half - 1 - word  # bits 1000..0, which are -0.0, give -1

    zigzag = []
    for a, b in zip(words(x[2:]), words(y[2:]), strict=True):
        distance = (ordinal(a) - ordinal(b) + half) % (2 * half) - half
        zigzag.append(2 * distance if distance >= 0 else -2 * distance - 1)
    planes = b"".join(bytes(value >> shift & 255 for value in zigzag) for shift in range(0, width, 8))
    whole = struct.pack(f"<{y.numel()}{code}", *words(y))
    checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(whole))
    payload = exact.encode(x, y, 2)
    assert payload[:8] == checksum
    assert zstandard.ZstdDecompressor().decompress(payload[8:], allow_extra_data=False) == planes
    # Any zstd frame with these bytes will do, whatever wrote it.
    other = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(planes)
    assert same_bits(exact.decode(checksum + other, y, 2), x)


def test_size_of_the_distances_that_the_codec_leaves() -> None:
    """Geometrically falling distances, 2.9 bits each by their entropy, cost little more; exact pages cost nothing."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(256, 3, 64, generator=generator).to(torch.bfloat16)
    distance = torch.randn(256, 3, 64, generator=generator).mul(1.6).round().to(torch.int16)
    x = exact._ordinals(exact._ordinals(y) + distance).view(torch.bfloat16)
    assert 2.7 < len(exact.encode(x, y, 0)) * 8 / x.numel() < 3.1
    assert len(exact.encode(y, y, 0)) < 64


def test_incompressible_distances_stay_within_the_cap(dtype: torch.dtype) -> None:
    for tokens in (1, 2, 63, 64, 65, 1023, 1024, 1025, 2048, 5000):
        x, y = random_pages((tokens, 2, 64), dtype, seed=tokens)
        assert len(exact.encode(x, y, 0)) <= x.nbytes + x.nbytes // 256 + 128
    x, y = random_pages((1, 1, 1), dtype)
    assert len(exact.encode(x, y, 0)) <= x.nbytes + 128


def test_a_page_of_sink_rows_alone_is_a_checksum() -> None:
    x, _ = random_pages((4, 2, 3), torch.bfloat16)
    payload = exact.encode(x, x, 4)
    assert len(payload) == 8 and same_bits(exact.decode(payload, x, 4), x)
    with pytest.raises(ValueError, match=r"^distances: 1 bytes where there are no elements"):
        exact.decode(payload + b"\0", x, 4)


def test_another_reconstruction_is_refused(dtype: torch.dtype) -> None:
    x, y = random_pages((6, 2, 5), dtype)
    y[:2] = x[:2]
    payload = exact.encode(x, y, 2)
    for row, head, dim in ((0, 0, 0), (3, 1, 2), (5, 1, 4)):  # sink rows count too
        other = y.clone()
        bits = other.view(BITS[dtype])
        bits[row, head, dim] ^= 1
        with pytest.raises(ValueError, match=r"^reconstruction: its checksum is 0x"):
            exact.decode(payload, other, 2)
    for size in range(8):
        with pytest.raises(ValueError, match=f"^payload_bytes: {size} do not hold"):
            exact.decode(payload[:size], y, 2)


def test_strides_do_not_matter(dtype: torch.dtype) -> None:
    for shape in ((1, 1, 1), (2, 4, 6), (6, 1, 1)):
        x, y = random_pages(shape, dtype)
        wide = torch.zeros(shape[2], 3 * shape[0], 5 * shape[1], dtype=dtype)
        views = []
        for part in (x, y):
            view = wide.clone()[:, ::3, ::5].permute(1, 2, 0)
            view.copy_(part)
            views.append(view)
        payload = exact.encode(x, y, 0)
        assert exact.encode(views[0], views[1], 0) == payload
        assert same_bits(exact.decode(payload, views[1], 0), x)


def test_truncated_and_extended_distances_are_refused() -> None:
    x, y = random_pages((6, 2, 5), torch.bfloat16)
    payload = exact.encode(x, y, 0)
    cases = [payload[:size] for size in range(8, len(payload))]
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    cases += [payload + extra for extra in (b"\0", b"\x28", payload[8:], skippable)]
    for case in cases:
        with pytest.raises(ValueError, match=r"^distances: "):
            exact.decode(case, y, 0)


def test_only_one_zstd_frame_of_the_known_size_is_decompressed() -> None:
    x, y = random_pages((6, 2, 5), torch.bfloat16)
    checksum, size = exact.encode(x, y, 0)[:8], x.nbytes
    make = zstandard.ZstdCompressor
    bomb = make().compress(bytes(1 << 26))
    honest = make().compress(bytes(size))
    lying = honest[: zstandard.frame_header_size(honest)] + bomb[zstandard.frame_header_size(bomb) :]
    assert zstandard.get_frame_parameters(lying).content_size == size
    dictionary = zstandard.ZstdCompressionDict(b"\x37\xa4\x30\xec" * 64, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    with_dictionary = make(dict_data=dictionary).compress(b"\x37\xa4\x30\xec" * (size // 4))
    unsized = make(write_content_size=False).compress(bytes(size))
    cases = [
        ("zstd frame of 67108864 bytes, expected 120", bomb),
        ("zstd frame of 119 bytes", make().compress(bytes(size - 1))),
        ("zstd frame of 121 bytes", make().compress(bytes(size + 1))),
        ("zstd frame of 18446744073709551615 bytes", unsized),  # that is how zstd says that it does not know
        ("decompression error", lying),
        ("decompression error", with_dictionary),
        ("decompression error: decompressed 0 bytes", struct.pack("<II", 0x184D2A50, size) + bytes(size)),
        ("not enough data", b""),
        ("cannot get frame parameters", b"LYNX" * 5),
    ]
    for problem, case in cases:
        with pytest.raises(ValueError, match=f"^distances: .*{problem}"):
            exact.decode(checksum + case, y, 0)


def test_distances_to_nan_or_inf_are_refused(dtype: torch.dtype) -> None:
    y = torch.full((3, 1, 2), torch.finfo(dtype).max, dtype=dtype)
    for bad in (float("inf"), float("nan")):
        x = y.clone()
        x[2, 0, 1] = bad
        with pytest.raises(ValueError, match=r"^distances: lead to NaN or Inf"):
            exact.decode(exact.encode(x, y, 0), y, 0)
