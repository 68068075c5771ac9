"""The encode kernel on the host twin writes the reference's payloads, and nothing else.

On the twin, whose divisions and logarithms are correctly rounded, codes are the reference's to the last bit.
"""

from __future__ import annotations

import random
from typing import Literal

import pytest
import torch

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import read_part
from lynx_ascend.codec.pairs import FIFTH, SIXTH
from lynx_ascend.codec.reference import encode_page, scales
from tests.ascend_kernels.calls import TwinCase
from tests.ascend_kernels.cases import (
    CODECS,
    DTYPES,
    beside_thresholds,
    beside_width,
    beyond_scale,
    draw_case,
    hidden_loads,
    on_thresholds,
    uneven,
)
from tests.csrc.calls import raw_bytes
from tests.csrc.pages import KINDS, draw_values


def assert_encodes_as_the_reference(case: TwinCase) -> None:
    want = case.reference()
    for name, got in zip(("anchor", "residual"), case.encode(), strict=True):
        differ = (raw_bytes(got) != want[name]).nonzero().flatten().tolist()
        assert not differ, f"{name}: {len(differ)} bytes differ, at {differ[:8]}; {case}"


@pytest.mark.parametrize("seed", range(75))
def test_drawn_pages(seed: int) -> None:
    assert_encodes_as_the_reference(draw_case(random.Random(1000 + seed)))


@pytest.mark.parametrize("codec, alpha", CODECS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_value(dtype: torch.dtype, kind: str, codec: str, alpha: float) -> None:
    for center in ("mean", "midrange"):
        config = CodecConfig(codec=codec, alpha=alpha, center=center)  # type: ignore[arg-type]
        x = draw_values(kind, (333, 1, 128), dtype, 7)
        assert_encodes_as_the_reference(TwinCase(uneven(x, 7) if codec == "pair" else x, config))


@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 33, 127, 128, 129, 255, 256, 257])
def test_tails(tokens: int) -> None:
    mean, companded, sink = CodecConfig(center="mean"), CodecConfig(chunk=16, alpha=1.0), CodecConfig(sink_tokens=128)
    for config in (mean, companded, sink, CodecConfig("pair", sink_tokens=30)):
        assert_encodes_as_the_reference(
            TwinCase(draw_values("normal", (tokens, 1, 64), torch.bfloat16, tokens), config)
        )


@pytest.mark.parametrize("chunk", [2, 4, 8])
def test_short_chunks_of_short_pages(chunk: int) -> None:
    for codec, center in (("grid", "mean"), ("grid", "midrange"), ("pair", "mean")):
        config = CodecConfig(codec, None, center, chunk, 16 * chunk, 3)  # type: ignore[arg-type]
        assert_encodes_as_the_reference(
            TwinCase(draw_values("normal", (37 * chunk - 1, 1, 64), torch.float16, 8), config, block_size=16)
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_ties(dtype: torch.dtype) -> None:
    """The second chunk is centred on 0 with scale 1, so that odd sixteenths are 7.5, 22.5, ... steps from it."""
    x = torch.zeros(64, 1, 64)
    x[0] = -255.0
    x[32:] = -torch.arange(32).remainder(16).view(32, 1, 1) / 16
    config = CodecConfig(sink_tokens=0)
    case = TwinCase(x.to(dtype), config)
    anchor, at = encode_page(case.x, config)[0], case.layouts()[0]
    g0, g1 = (read_part(anchor, offset, 64, dtype).float() for offset in (0, at.gamma_max))
    mu, sigma = (read_part(anchor, offset, 128, torch.uint8).view(2, 64) for offset in (at.mu, at.sigma))
    c, s = scales(g0, g1, mu, sigma, dtype)
    assert (c[1] == 0).all() and (s[1] == 1).all()
    assert_encodes_as_the_reference(case)


@pytest.mark.parametrize("codec", ["grid", "alg1"])
@pytest.mark.parametrize("alpha", [1e-3, 0.5, 1.0, 10.0, 100.0, 1e4, 1e6])
def test_elements_beside_every_threshold(codec: str, alpha: float) -> None:
    assert_encodes_as_the_reference(beside_thresholds(codec, alpha))


@pytest.mark.parametrize("codec, alpha", [("grid", 10.0), ("grid", 100.0), ("alg1", 1.0), ("alg1", 15.0)])
def test_elements_on_thresholds(codec: str, alpha: float) -> None:
    assert_encodes_as_the_reference(on_thresholds(codec, alpha))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_of_all_widths_meet_their_ties(dtype: torch.dtype, head_dim: int) -> None:
    """Channels whose scales are powers of two apart, each with elements halfway between its levels."""
    powers = torch.arange(128).view(128 // head_dim, head_dim)
    first, second = powers % 5, powers // 5 % 5
    upper = torch.arange(head_dim) // (head_dim // 4) % 2 == 1
    steps = torch.tensor([32, 128, 512, 1024, 2048])[torch.where(upper, second, first)]
    x = torch.randint(-256, 257, (256, *powers.shape), generator=torch.Generator().manual_seed(11)) / 256.0
    x[0], x[1] = -1.0, 1.0
    case = TwinCase((x * steps).to(dtype), CodecConfig("pair"), block_size=128)
    at = case.layouts()[0]
    widths = read_part(case.encode()[0][0], at.widths, 32, torch.uint8)
    assert {*(widths & 15).tolist(), *(widths >> 4).tolist()} == {2, 3, 4, 5, 6}
    assert_encodes_as_the_reference(case)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("times, met", [(FIFTH, {3, 4, 5}), (SIXTH, {2, 3, 5, 6})])
def test_a_bit_more_only_above_its_threshold(times: float, met: set[int], head_dim: int) -> None:
    case = beside_width(times, head_dim)
    at = case.layouts()[0]
    widths = case.encode()[0][0, at.widths : at.sink]
    assert {*(widths & 15).tolist(), *(widths >> 4).tolist()} == met
    assert_encodes_as_the_reference(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("row", [0, 3, 69])
def test_a_non_finite_element_leaves_its_gamma_non_finite(row: int, value: float, dtype: torch.dtype) -> None:
    """For NaN this rests on the twin's Max and Min, which pass it on; to be checked on hardware."""
    x = draw_values("normal", (70, 2, 64), dtype, seed=row)
    x[row, 1, 3] = value
    for config in (CodecConfig(), CodecConfig("pair")):
        anchor, _ = TwinCase(x, config).encode()
        gamma = read_part(anchor[0], 0, 256, dtype).view(2, 128)
        assert (~gamma.isfinite()).any(0).nonzero().flatten().tolist() == [67]


@pytest.mark.parametrize("codec", ["grid", "pair"])
def test_any_number_of_cores_and_their_loads_are_hidden(codec: Literal["grid", "pair"]) -> None:
    x = draw_values("normal", (10 * 256 - 5, 4, 128), torch.bfloat16, 4)
    case = TwinCase(x, CodecConfig(codec), block_size=128)
    for cores in (1, 3, 20, 39, 40) if codec == "grid" else (20,):  # 80 tiles
        case.cores = cores
        assert_encodes_as_the_reference(case)
        assert case.report is not None and len(case.report["cores"]) == cores
        if cores <= 20:
            assert min(hidden_loads(case.report)) >= 0.9


@pytest.mark.parametrize("codec", ["grid", "pair"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_that_a_cut_scale_does_not_cover(dtype: torch.dtype, codec: str) -> None:
    assert_encodes_as_the_reference(beyond_scale(codec, dtype))


def test_zeros_below_zero() -> None:
    """Ranges that end in -0.0 are written as those that end in 0.0."""
    x = draw_values("sparse", (70, 1, 64), torch.bfloat16, 8).abs()
    for values in (torch.where(x == 0, -0.0, x), -x):
        assert_encodes_as_the_reference(TwinCase(values, CodecConfig(sink_tokens=0)))


def test_rows_apart_in_the_cache() -> None:
    assert_encodes_as_the_reference(
        TwinCase(draw_values("normal", (300, 1, 128), torch.float16, 5), CodecConfig(), apart=False)
    )
