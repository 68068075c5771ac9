"""The compiled kernels of every instruction set compute the reference's bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_ascend import _C
from lynx_ascend.codec import ops
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import bad_metadata, read_part
from lynx_ascend.codec.pairs import FIFTH, SIXTH
from lynx_ascend.codec.reference import scales
from lynx_ascend.codec.tables import steps, tables
from tests.csrc.calls import Case, assert_equal, assert_same_bits, raw_bytes, using
from tests.csrc.pages import DTYPES, KINDS, beside_ratio, draw_cases, draw_values, uneven

ISAS = _C.supported_isas()


def test_ten_thousand_pages() -> None:
    cases = draw_cases(10_000, seed=2026, full_every=40)
    for case in cases:
        assert_same_bits(case)
    assert sum(len(case.layouts()) for case in cases) >= 10_000
    assert {case.x.dtype for case in cases} == set(DTYPES) and {case.x.shape[2] for case in cases} >= {1, 64, 128, 576}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    chunk = draw(st.sampled_from([1, 2, 3, 7, 8, 32, 64]))
    page = chunk * draw(st.integers(1, 5))
    codec = draw(st.sampled_from(["grid", "alg1", "pair"]))
    config = CodecConfig(
        codec=codec,
        alpha=0.0 if codec == "pair" else draw(st.sampled_from([0.0, 1.0, 3.0, 100.0, 1e6])),
        center=draw(st.sampled_from(["mean", "midrange"])),
        chunk=chunk,
        page=page,
        sink_tokens=min(page, draw(st.sampled_from([0, 1, 4, 32]))),
    )
    shape = (
        draw(st.integers(1, 3 * page)),
        draw(st.integers(1, 4)),
        draw(
            st.sampled_from(
                [4, 8, 12, 64, 80, 96, 128, 300] if codec == "pair" else [1, 2, 3, 5, 16, 33, 64, 80, 96, 300]
            )
        ),
    )
    kind, seed = draw(st.sampled_from(KINDS)), draw(st.integers(0, 2**32))
    x = draw_values(kind, shape, draw(st.sampled_from(DTYPES)), seed)
    return Case(
        uneven(x, seed) if codec == "pair" else x,
        config,
        start=page * draw(st.integers(0, 2)),
        block_size=draw(st.sampled_from([1, 4, 16, 128])),
        memory=draw(st.sampled_from(["nbhd", "nhbd", "nhdb"])),
        first=draw(st.integers(0, shape[0] - 1)),
    )


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_drawn_pages(case: Case) -> None:
    assert_same_bits(case)


@pytest.mark.parametrize("codec", ["grid", "alg1"])
@pytest.mark.parametrize("alpha", [0.0, 1e-6, 0.5, 1.0, 2.0, 3.0, 10.0, 30.0, 100.0, 1e4, 1e6])
def test_elements_on_and_beside_every_threshold(codec: str, alpha: float) -> None:
    config = CodecConfig(codec=codec, alpha=alpha, center="midrange", chunk=1024, page=1024, sink_tokens=0)
    x = draw_values("normal", (1024, 1, 4), torch.float32, seed=1)
    x[0], x[1] = torch.tensor([-6.0, -5.5, -7.0, -64.0]), torch.tensor([6.0, 7.5, 5.0, 56.0])  # the chunk's range
    case = Case(x, config)
    anchor, (at,) = case.encode()[0][0], case.layouts()
    g0, g1 = (read_part(anchor, offset, 4, torch.float32) for offset in (0, at.gamma_max))
    mu, sigma = (read_part(anchor, offset, 4, at.metadata_dtype).view(1, 4) for offset in (at.mu, at.sigma))
    c, s = scales(g0, g1, mu, sigma, torch.float32)
    thresholds = tables(codec, alpha).thresholds
    on = (c + thresholds.view(-1, 1) * (s / steps(codec))).clamp(x[0, 0], x[1, 0])
    up = torch.nextafter(on, torch.tensor(torch.inf))
    down = torch.nextafter(on, torch.tensor(-torch.inf))
    near = torch.cat([on, up, down]).clamp(x[0, 0], x[1, 0])
    x[2 : 2 + len(near), 0] = near
    assert_same_bits(case)


@pytest.mark.parametrize("codec", ["grid", "alg1"])
def test_exact_ties(codec: str) -> None:
    """With a scale of N units, centred on 0, z is the element itself: 0.5, 1.5, ... and the middle are ties."""
    n = steps(codec)
    x = torch.cat([torch.tensor([-n, n]), torch.arange(-n, n) + 0.5, torch.tensor([0.0, -0.0])]).view(-1, 1, 1)
    x = x.expand(-1, 1, 97)  # in a block of channels and outside
    config = CodecConfig(codec=codec, alpha=0.0, center="midrange", chunk=256, page=256, sink_tokens=0)
    assert_same_bits(Case(x.float(), config))
    assert_same_bits(Case(x.half(), config))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_of_all_widths_meet_their_ties(dtype: torch.dtype) -> None:
    """Channels whose scales are powers of two apart, each with elements halfway between its levels."""
    up, down = torch.tensor([1.0, 1.0, 1.0, 2.0, 8.0, 2.0]), torch.tensor([8.0, 2.0, 1.0, 1.0, 1.0, 64.0])
    x = torch.randint(-256, 257, (256, 3, 24), generator=torch.Generator().manual_seed(11)) / 256.0
    x[0], x[1] = -1.0, 1.0
    case = Case((x * torch.cat([up, down, down, up])).to(dtype), CodecConfig("pair", chunk=32, page=256))
    at = case.layouts()[0]
    widths = read_part(case.encode()[0][0], at.widths, 18, torch.uint8)
    assert {*(widths & 15).tolist(), *(widths >> 4).tolist()} == {2, 3, 4, 5, 6}
    assert_same_bits(case)


@pytest.mark.parametrize("times", [FIFTH, SIXTH])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_ratios_at_which_widths_change(times: float, head_dim: int) -> None:
    assert_same_bits(Case(beside_ratio(times, head_dim), CodecConfig(codec="pair", sink_tokens=0)))


@pytest.mark.parametrize("isa", ISAS)
def test_widths_that_no_encoder_writes_do_no_harm(isa: str) -> None:
    """They are checked before (layout.bad_metadata); unchecked they are those of 2 .. 6 that are next to them."""
    case = Case(draw_values("normal", (70, 2, 64), torch.bfloat16, 12), CodecConfig("pair", chunk=8, page=32), first=9)
    with using(isa):
        anchor, residual = case.encode()
        decoded = []
        for low, high in ((0, 15), (2, 6)):
            for page, at in enumerate(case.layouts()):
                nibbles = ((torch.arange(2 * (at.sink - at.widths)) + page) % 16).clamp(low, high).to(torch.uint8)
                anchor[page, at.widths : at.sink] = nibbles[::2] | nibbles[1::2] << 4
            decoded.append([raw_bytes(case.decode(anchor, fine)) for fine in (None, residual)])
    assert all(torch.equal(*pair) for pair in zip(*decoded, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_cut_to_keep_values_finite_does_not_cover_its_chunk(dtype: torch.dtype) -> None:
    """A mean far from the middle of the type's whole range: elements beyond the scale take the last level."""
    most = torch.finfo(dtype).max
    x = torch.full((32, 1, 97), most, dtype=dtype)
    x[::8] = -most
    x[1] = most / 2
    for codec in ("grid", "alg1", "pair"):
        assert_same_bits(
            Case(
                x[..., :96] if codec == "pair" else x,
                CodecConfig(codec=codec, alpha=0.0, center="mean", chunk=32, page=32, sink_tokens=0),
            )
        )


@pytest.mark.parametrize("channels", [1, 7, 9, 16, 33])
def test_metadata_holds_no_negative_zero(channels: int) -> None:
    """A mean of -0.0 meets a minimum of +0.0, in vectors and in their tails: fp32 metadata would keep the sign."""
    x = draw_values("normal", (24, 1, channels), torch.float32, seed=9)
    x[8:16] = -0.0
    x[0], x[1] = -4.0, 4.0
    assert_same_bits(Case(x, CodecConfig(codec="alg1", chunk=8, page=24)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_finite_element_converts_exactly(dtype: torch.dtype) -> None:
    """A constant channel is exact: one token, one channel for each of the type's bit patterns."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = every[every.isfinite()].view(1, 1, -1)
    case = Case(x, CodecConfig(sink_tokens=0))
    assert_same_bits(case)
    out = case.decode(*case.encode())[case.block_ids[0], 0]
    assert torch.equal(out.view(torch.int16), (x[0] + 0.0).view(torch.int16))  # + 0.0: -0.0 is coded as 0.0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -float("nan")])
@pytest.mark.parametrize("row", [0, 3, 69])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_non_finite_element_leaves_its_gamma_non_finite(value: float, row: int, dtype: torch.dtype, isa: str) -> None:
    x = draw_values("normal", (70, 2, 20), dtype, seed=row)
    x[row, 1, 3] = value
    with using(isa):
        anchor = Case(x, CodecConfig()).encode()[0][0]
    gamma = read_part(anchor, 0, 80, dtype).view(2, 40)
    assert (~gamma.isfinite()).any(0).nonzero().flatten().tolist() == [23]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_thread_that_flushes_subnormals_computes_the_same(dtype: torch.dtype, isa: str) -> None:
    case = Case(draw_values("subnormal", (70, 2, 33), dtype, seed=10), CodecConfig(chunk=8, page=32))
    want = case.reference()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        with using(isa):
            got = case.compiled()
        still = (torch.full((8,), 2.0**-140) * 1.0).eq(0).all()
        found = bad_metadata(got["anchor"], case.layouts()[0])
    finally:
        torch.set_flush_denormal(False)
    assert_equal(got, want, isa, case)
    assert still, "the thread's own arithmetic has changed"
    assert found is None, "a negative subnormal was taken for -0.0"


def test_threads_change_nothing() -> None:
    case = Case(draw_values("normal", (900, 2, 64), torch.bfloat16, seed=5), CodecConfig(), block_size=128)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            anchor, residual = case.encode()
            results.append([raw_bytes(part) for part in (anchor, residual, case.decode(anchor, residual))])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.parametrize("isa", ISAS)
def test_blocks_before_first_are_neither_read_nor_written(isa: str) -> None:
    case = Case(draw_values("normal", (100, 2, 16), torch.bfloat16, seed=6), CodecConfig(), first=48)
    want = case.reference()["full decode"]
    with using(isa):
        payloads = case.encode()
        case.block_ids[:3] = -1  # not ours: an id that would be refused if it were looked up
        assert torch.equal(raw_bytes(case.decode(*payloads)), want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_call_large_enough_to_bypass_the_caches(dtype: torch.dtype, isa: str) -> None:
    """Beside rows of whole lines: lines that begin elsewhere, and rows that end within one."""
    for heads, head_dim in ((8, 128), (5, 136)):
        x = draw_values("normal", (16 * 256, heads, head_dim), dtype, seed=7)
        case = Case(x, CodecConfig(), block_size=128, apart=True)
        with using(isa):
            anchor, residual = case.encode()
            large = case.decode(anchor, residual)
            small = case.cache()
            for page in range(16):  # one at a time none is large
                ops.decode(
                    anchor[page : page + 1],
                    residual[page : page + 1],
                    256 * page,
                    256,
                    case.config,
                    case.block_ids,
                    small,
                )
        assert torch.equal(raw_bytes(large), raw_bytes(small))
