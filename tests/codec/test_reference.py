"""The reference codec: edge cases, exactness where it is promised, and the documented error bound."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_ascend.codec import pairs
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import bad_metadata, page_layout, read_part
from lynx_ascend.codec.reference import decode_page, encode_page
from tests.codec.bounds import error_bound

CONFIGS = [
    CodecConfig(sink_tokens=0),
    CodecConfig(sink_tokens=0, alpha=3.0, center="mean"),
    CodecConfig(codec="alg1", sink_tokens=0),
    CodecConfig(codec="alg1", sink_tokens=0, alpha=0.0, center="midrange"),
    CodecConfig(codec="pair", sink_tokens=0),
    CodecConfig(codec="pair", sink_tokens=0, center="mean"),
]


def check(x: torch.Tensor, config: CodecConfig, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Encodes and decodes x; asserts sizes, sound metadata and the bound. Returns both reconstructions."""
    anchor, residual = encode_page(x, config, start)
    layout = page_layout(config, x.dtype, x.shape[0], x.shape[1] * x.shape[2], start)
    assert (anchor.numel(), residual.numel()) == (layout.anchor_bytes, layout.residual_bytes)
    assert bad_metadata(anchor, layout) is None
    shape = (x.shape[0], x.shape[1], x.shape[2])
    outputs = []
    for both in (False, True):
        y = decode_page(anchor, residual if both else None, config, shape, x.dtype, start)
        assert y.dtype == x.dtype and bool(y.isfinite().all())
        error = (x.double() - y.double()).abs().view(shape[0], -1)
        excess = error - error_bound(anchor, config, shape, x.dtype, both=both)
        assert float(excess.max()) <= 0, f"both={both}: {float(excess.max()):g} beyond the bound"
        assert bool((x[: layout.sink_rows].view(torch.uint8) == y[: layout.sink_rows].view(torch.uint8)).all())
        outputs.append(y)
    return outputs[0], outputs[1]


@pytest.mark.parametrize("config", CONFIGS)
def test_constant_channels_are_exact(config: CodecConfig, dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, -3.1415, 1e-4, -6e4, 2.0**-24, 0.3, 7.0], dtype=dtype)
    x = values.repeat(70, 1, 1)
    for y in check(x, config):
        assert torch.equal(x, y)


@pytest.mark.parametrize("config", CONFIGS)
def test_negative_zero_is_coded_as_zero_and_sinks_keep_it(config: CodecConfig, dtype: torch.dtype) -> None:
    x = torch.full((8, 1, 4), -0.0, dtype=dtype)
    anchor, _ = encode_page(x, config)
    positive, _ = encode_page(x + 0.0, config)
    assert torch.equal(anchor, positive)
    raw = CodecConfig(codec=config.codec, sink_tokens=3)
    y = decode_page(*encode_page(x, raw), raw, (8, 1, 4), dtype)
    assert y.signbit()[:, 0, 0].tolist() == [True] * 3 + [False] * 5


@pytest.mark.parametrize("config", CONFIGS)
def test_largest_finite_values_do_not_overflow(config: CodecConfig, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([largest, -largest, 0.0, largest], dtype=dtype).repeat(16).view(64, 1, 1).repeat(1, 1, 4)
    lopsided = x.clone().fill_(largest)
    lopsided[-1] = -largest
    for page in (x, lopsided, torch.full_like(x, largest), torch.full_like(x, -largest)):
        check(page, config)


@pytest.mark.parametrize("codec", ["grid", "alg1", "pair"])
def test_centre_at_the_largest_value_leaves_no_room(codec: str, dtype: torch.dtype) -> None:
    """The mean rounds to the maximum itself, so the scale is 0 and x - c overflows: 0 * Inf must not become a code."""
    config = CodecConfig(codec=codec, center="mean", chunk=1024, page=1024, sink_tokens=0)
    x = torch.full((1024, 1, 4), torch.finfo(dtype).max, dtype=dtype)
    x[7] = -x[7]
    check(x, config)


@pytest.mark.parametrize("config", CONFIGS)
def test_subnormals(config: CodecConfig, dtype: torch.dtype) -> None:
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    x = (torch.arange(-40, 40).double() * smallest).to(dtype).view(20, 1, 4)
    _, y = check(x, config)
    if dtype != torch.float32:  # not flushed; a range of fp32's own subnormals leaves no smaller ones for the scale
        assert float(y.double().max()) >= 30 * smallest


@pytest.mark.parametrize(
    "config", [*CONFIGS, CodecConfig(), CodecConfig(chunk=7, page=70), CodecConfig("pair", chunk=7, page=70)]
)
@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 33, 64, 70])
def test_ragged_pages_and_chunks(config: CodecConfig, tokens: int, dtype: torch.dtype) -> None:
    head_dim = 12 if config.codec == "pair" else 5
    x = torch.randn(tokens, 3, head_dim, generator=torch.Generator().manual_seed(tokens)).to(dtype)
    check(x, config)


@pytest.mark.parametrize("head_dim", [1, 64, 80, 96, 128, 192, 256, 576])
def test_head_dims_and_channel_independence(head_dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(45, 1, head_dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    _, y = check(x, CodecConfig())
    _, alone = check(x[:, :, -1:], CodecConfig())
    assert torch.equal(y[:, :, -1:], alone)


def test_one_token_is_exact_without_sinks(dtype: torch.dtype) -> None:
    x = torch.randn(1, 2, 33, generator=torch.Generator().manual_seed(2)).to(dtype)
    for y in check(x, CodecConfig(sink_tokens=0)):
        assert torch.equal(x, y)


def test_strides_do_not_matter(dtype: torch.dtype) -> None:
    wide = torch.randn(7, 9, 15, generator=torch.Generator().manual_seed(3)).to(dtype)
    for view in (wide[::2, 1::3, ::5].transpose(1, 2), wide[:1, :1, 3:].as_strided((1, 1, 1), (15, 15, 15))):
        for payload, wanted in zip(
            encode_page(view, CodecConfig()), encode_page(view.clone(), CodecConfig()), strict=True
        ):
            assert torch.equal(payload, wanted)


def test_sink_rows_only_on_the_first_page() -> None:
    x = torch.randn(64, 1, 8, generator=torch.Generator().manual_seed(3))
    config = CodecConfig(page=64, sink_tokens=5)
    anchor, residual = encode_page(x, config, 0)
    later, later_residual = encode_page(x, config, 64)
    assert anchor.numel() - later.numel() == 5 * 8 * 4 - 5 * 8 // 2
    assert later_residual.numel() - residual.numel() == 5 * 8 // 2
    y = decode_page(anchor, None, config, (64, 1, 8), x.dtype)
    assert torch.equal(y[:5], x[:5]) and not torch.equal(y[5:], x[5:])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("row", [0, 40])
def test_non_finite_is_an_error(bad: float, row: int, dtype: torch.dtype) -> None:
    x = torch.zeros(41, 2, 3, dtype=dtype)
    x[row, 1, 2] = bad
    with pytest.raises(ValueError, match="NaN or Inf"):
        encode_page(x, CodecConfig())


def test_wrong_payload_size_is_an_error() -> None:
    x = torch.zeros(9, 1, 3)
    anchor, residual = encode_page(x, CodecConfig())
    with pytest.raises(ValueError, match="anchor: "):
        decode_page(anchor[:-1], residual, CodecConfig(), (9, 1, 3), x.dtype)
    with pytest.raises(ValueError, match="residual: "):
        decode_page(anchor, residual[:-1], CodecConfig(), (9, 1, 3), x.dtype)
    with pytest.raises(ValueError, match="start: "):
        encode_page(x, CodecConfig(), start=9)


def test_quality_on_gaussian_data() -> None:
    """A uniform quantiser's error is its step squared over 12; a chunk of 32 Gaussians reaches about 2.07 sigma."""
    x = torch.randn(256, 4, 64, generator=torch.Generator().manual_seed(4))
    anchor, full = check(x, CodecConfig(sink_tokens=0))
    step = 2.07 / 120
    assert float((x - full).var()) == pytest.approx(step**2 / 12, rel=0.1)
    assert float((x - anchor).var()) == pytest.approx((16 * step) ** 2 / 12, rel=0.1)


def test_pairs_share_their_bits_by_scale() -> None:
    """A uniform quantiser's error is its step squared over 12; with 2^bits levels the step is 2 s / (2^bits - 1)."""
    ratios = torch.tensor([1.0, 1.2, 2.0, 4.0, 8.0, 100.0, 1 / 2.0, 1 / 8.0])
    firsts = [4, 4, 5, 5, 6, 6, 3, 2]
    x = torch.randn(256, 16, 32, generator=torch.Generator().manual_seed(5))
    x[:, :, :8] *= ratios  # the first quarter; its partners are the second
    config = CodecConfig(codec="pair", sink_tokens=0)
    anchor, _ = encode_page(x, config)
    layout = page_layout(config, x.dtype, 256, 512)
    widths = read_part(anchor, layout.widths, 128, torch.uint8)
    widths = torch.stack([widths & 15, widths >> 4], 1).view(16, 16)
    assert (widths == torch.tensor(firsts + [4] * 8)).float().mean() > 0.95  # 1.2 is not far from 1.5
    coarse, full = check(x, config)
    bits = torch.tensor([*firsts, *(8 - bits for bits in firsts), *[4] * 16])
    scale = 2.07 * torch.cat([ratios, torch.ones(24)])  # of a chunk of 32 Gaussians
    for y, steps in ((coarse, 2.0**bits - 1), (full, 256 - 2.0 ** (8 - bits))):
        assert torch.allclose((x - y).var((0, 1)), (2 * scale / steps) ** 2 / 12, rtol=0.15)


@pytest.mark.parametrize("width", range(2, 7))
def test_bytes_of_a_pair(width: int) -> None:
    """Bit by bit as docs/frame.md says, and with the residual unknown the middle of what it may say."""
    widths = torch.full((2,), width, dtype=torch.uint8)
    first, second = (torch.arange(256, dtype=torch.uint8)[order] for order in (slice(None), torch.arange(255, -1, -1)))
    codes = torch.stack([first, second, second, first], 1)
    anchor, residual = pairs.split(codes, widths, head_dim=4)
    for row in range(256):
        for column, (one, two) in enumerate(((first, second), (second, first))):
            i, j = f"{int(one[row]):08b}", f"{int(two[row]):08b}"
            assert f"{int(anchor[row, column]):08b}" == j[: 8 - width] + i[:width]
            assert f"{int(residual[row, column]):08b}" == i[width:] + j[8 - width :]
    assert torch.equal(pairs.join(anchor, residual, widths, head_dim=4), codes)
    coarse = pairs.join(anchor, None, widths, head_dim=4)
    lost = torch.tensor([8 - width, width, 8 - width, width])
    assert torch.equal(coarse.int(), (codes.int() >> lost << lost) + (1 << lost - 1) - 1)


def test_pairs_need_whole_quarters() -> None:
    config = CodecConfig(codec="pair")
    for heads, head_dim in ((1, 6), (2, 6), (4, 3)):
        with pytest.raises(ValueError, match=f"head_dim: {head_dim} is not a multiple of 4"):
            encode_page(torch.zeros(4, heads, head_dim), config)
        with pytest.raises(ValueError, match=f"head_dim: {head_dim} is not a multiple of 4"):
            decode_page(torch.zeros(9, dtype=torch.uint8), None, config, (4, heads, head_dim), torch.float32)


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("nibble", [0, 1, 7, 15])
def test_widths_that_no_encoder_writes_are_named(nibble: int, place: int) -> None:
    config = CodecConfig(codec="pair")
    layout = page_layout(config, torch.float32, 9, 32)
    for other, high in ((4, True), (4, False)):
        anchor, _ = encode_page(torch.randn(9, 2, 16, generator=torch.Generator().manual_seed(6)), config)
        assert bad_metadata(anchor, layout) is None
        anchor[layout.widths : layout.sink][place] = nibble << 4 | other if high else other << 4 | nibble
        assert bad_metadata(anchor, layout) == "widths"


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_bound_holds_for_any_finite_input(data: st.DataObject) -> None:
    dtype, width = data.draw(st.sampled_from([(torch.bfloat16, 16), (torch.float16, 16), (torch.float32, 32)]))
    config = CodecConfig(
        codec=(codec := data.draw(st.sampled_from(["grid", "alg1", "pair"]))),
        alpha=0.0 if codec == "pair" else data.draw(st.sampled_from([None, 0.0, 1e-6, 1.0, 30.0, 1e6])),
        center=data.draw(st.sampled_from(["mean", "midrange"])),
        chunk=4,
        page=16,
        sink_tokens=data.draw(st.integers(0, 3)),
    )
    tokens, channels = (
        data.draw(st.integers(1, 16)),
        data.draw(st.sampled_from([4, 8] if codec == "pair" else [1, 2, 3])),
    )
    base = data.draw(st.floats(allow_nan=False, allow_infinity=False, width=width))
    spread = data.draw(st.floats(0, 1, width=32)) * 2.0 ** data.draw(st.integers(-149, 127))
    any_value = st.floats(allow_nan=False, allow_infinity=False, width=width)
    near_base = st.floats(-1, 1, width=16).map(lambda unit: base + unit * spread)
    values = data.draw(st.lists(any_value | near_base, min_size=tokens * channels, max_size=tokens * channels))
    largest = torch.finfo(dtype).max
    x = torch.tensor(values, dtype=torch.float64).clamp(-largest, largest).to(dtype).view(tokens, 1, channels)
    check(x, config)
