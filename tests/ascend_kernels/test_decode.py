"""The decode kernel on the host twin writes the reference's bits, whatever the payload, and nothing else."""

from __future__ import annotations

import random
from typing import Literal

import pytest
import torch

from lynx_ascend.codec.config import CodecConfig
from tests.ascend_kernels.calls import TwinCase
from tests.ascend_kernels.cases import CODECS, DTYPES, draw_case, hidden_loads, uneven
from tests.csrc.calls import Case, raw_bytes
from tests.csrc.pages import draw_values


def plain(case: TwinCase) -> Case:
    """The same case on the CPU kernels."""
    return Case(case.x, case.config, case.start, case.block_size, case.memory, case.apart, case.first)


def assert_decodes_as_the_cpu(case: TwinCase, anchor: torch.Tensor, residual: torch.Tensor) -> None:
    for fine in (None, residual):
        got, want = (raw_bytes(kind.decode(anchor, fine)) for kind in (case, plain(case)))
        differ = (got != want).nonzero().flatten().tolist()
        assert not differ, f"{len(differ)} bytes differ, at {differ[:8]}; residual: {fine is not None}; {case}"


@pytest.mark.parametrize("seed", range(50))
def test_drawn_pages_equal_the_reference(seed: int) -> None:
    case = draw_case(random.Random(seed))
    want = case.reference()
    anchor, residual = plain(case).encode()
    assert torch.equal(raw_bytes(case.decode(anchor, None)), want["anchor decode"])
    assert torch.equal(raw_bytes(case.decode(anchor, residual)), want["full decode"])


@pytest.mark.parametrize("codec, alpha", CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pair_of_bytes(dtype: torch.dtype, codec: str, alpha: float) -> None:
    """No encoder writes all of them: indices beyond the range are clamped, and alg1 has a code for -0."""
    config = CodecConfig(codec=codec, alpha=alpha, sink_tokens=0)
    case = TwinCase(uneven(draw_values("normal", (70, 2, 64), dtype, 1), 1), config)
    anchor, residual = plain(case).encode()
    at = case.layouts()[0]
    coarse, fine = torch.cartesian_prod(torch.arange(256), torch.arange(256)).to(torch.uint8).unbind(1)
    draw = torch.randperm(256 * 256, generator=torch.Generator().manual_seed(3))[: at.codes_bytes]
    anchor[0, at.codes : at.anchor_bytes], residual[0, : at.codes_bytes] = coarse[draw], fine[draw]
    anchor[0, at.codes : at.codes + 256] = torch.arange(256)
    residual[0, :256] = 0x77
    assert_decodes_as_the_cpu(case, anchor, residual)


@pytest.mark.parametrize("chunk, page", [(1, 5), (3, 42), (8, 8), (128, 256), (1024, 1024)])
def test_chunks_that_only_other_encoders_write(chunk: int, page: int) -> None:
    for codec in ("grid", "pair"):
        config = CodecConfig(codec=codec, chunk=chunk, page=page, sink_tokens=min(page, 4))  # type: ignore[arg-type]
        case = TwinCase(uneven(draw_values("normal", (page + 3, 1, 128), torch.bfloat16, 2), 2), config)
        assert_decodes_as_the_cpu(case, *plain(case).encode())


def every_width(heads: int, head_dim: int) -> tuple[TwinCase, torch.Tensor, torch.Tensor]:
    """Pages of codec pair whose widths were drawn, and payloads of random bytes for them."""
    config = CodecConfig(codec="pair")
    case = TwinCase(draw_values("normal", (300, heads, head_dim), torch.bfloat16, 3), config, block_size=48)
    anchor, residual = plain(case).encode()
    draw = torch.Generator().manual_seed(heads)
    for page, at in enumerate(case.layouts()):
        low, high = torch.randint(2, 7, (2, at.channels // 4), dtype=torch.uint8, generator=draw)
        anchor[page, at.widths : at.sink] = low | high << 4
        for codes in (anchor[page, at.codes : at.anchor_bytes], residual[page, : at.residual_bytes]):
            codes.random_(256, generator=draw)
    return case, anchor, residual


@pytest.mark.parametrize("heads, head_dim", [(1, 64), (3, 64), (4, 64), (1, 128), (2, 128), (3, 128)])
def test_every_width_wherever_a_pair_is(heads: int, head_dim: int) -> None:
    """In slices of 64, 128, 192 and 256 channels."""
    assert_decodes_as_the_cpu(*every_width(heads, head_dim))


def test_widths_that_no_encoder_writes_do_no_harm() -> None:
    """Values are wrong then, but the twin sees no access outside a buffer, and nothing else is written."""
    case, anchor, residual = every_width(2, 64)
    tokens, at = case.x.shape[0], case.layouts()[0]
    anchor[0, at.widths : at.sink] = torch.arange(at.sink - at.widths, dtype=torch.uint8) * 17
    for fine in (None, residual):
        cache = case.decode(anchor, fine)
        case._put(cache, torch.zeros_like(case.x), 0)
        want = case.cache()
        case._put(want, torch.zeros(tokens, 2, 64, dtype=case.x.dtype), 0)
        assert torch.equal(raw_bytes(cache), raw_bytes(want))


@pytest.mark.parametrize("codec", ["grid", "pair"])
def test_any_number_of_cores_and_their_loads_are_hidden(codec: Literal["grid", "pair"]) -> None:
    x = draw_values("normal", (10 * 256, 4, 128), torch.bfloat16, 4)
    case = TwinCase(x, CodecConfig(codec=codec), block_size=128)
    anchor, residual = plain(case).encode()
    for cores in (1, 3, 20, 39, 40) if codec == "grid" else (20,):  # 80 tiles
        case.cores = cores
        assert_decodes_as_the_cpu(case, anchor, residual)
        assert case.report is not None and len(case.report["cores"]) == cores
        if cores <= 20:  # four tiles or more
            assert min(hidden_loads(case.report)) >= 0.9


def test_rows_apart_in_the_cache() -> None:
    """K and V of one head side by side: each row is followed by as many bytes that are not ours."""
    case = TwinCase(draw_values("normal", (300, 1, 128), torch.float16, 5), CodecConfig(), apart=False)
    assert_decodes_as_the_cpu(case, *plain(case).encode())


def test_blocks_before_first_are_not_looked_up() -> None:
    case = TwinCase(draw_values("normal", (100, 2, 64), torch.bfloat16, 6), CodecConfig(), first=48)
    anchor, residual = plain(case).encode()
    want = raw_bytes(plain(case).decode(anchor, residual))
    case.block_table[:3] = 10**6  # outside the cache
    assert torch.equal(raw_bytes(case.decode(anchor, residual)), want)
