"""The decode kernel on the host twin writes the reference's bits, whatever the payload, and nothing else."""

from __future__ import annotations

import random

import pytest
import torch

from lynx_ascend.codec.config import CodecConfig
from tests.ascend_kernels.calls import TwinCase
from tests.ascend_kernels.cases import DTYPES, draw_case, hidden_loads
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


@pytest.mark.parametrize("seed", range(40))
def test_drawn_pages_equal_the_reference(seed: int) -> None:
    case = draw_case(random.Random(seed))
    want = case.reference()
    anchor, residual = plain(case).encode()
    assert torch.equal(raw_bytes(case.decode(anchor, None)), want["anchor decode"])
    assert torch.equal(raw_bytes(case.decode(anchor, residual)), want["full decode"])


@pytest.mark.parametrize("codec, alpha", [("grid", 0.0), ("grid", 1.0), ("alg1", 100.0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pair_of_nibbles(dtype: torch.dtype, codec: str, alpha: float) -> None:
    """No encoder writes all of them: indices beyond the range are clamped, and alg1 has a code for -0."""
    config = CodecConfig(codec=codec, alpha=alpha, sink_tokens=0)
    case = TwinCase(draw_values("normal", (70, 2, 64), dtype, 1), config)
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
    config = CodecConfig(chunk=chunk, page=page, sink_tokens=min(page, 4))
    case = TwinCase(draw_values("normal", (page + 3, 1, 128), torch.bfloat16, 2), config)
    assert_decodes_as_the_cpu(case, *plain(case).encode())


def test_any_number_of_cores_and_their_loads_are_hidden() -> None:
    case = TwinCase(draw_values("normal", (10 * 256, 4, 128), torch.bfloat16, 4), CodecConfig(), block_size=128)
    anchor, residual = plain(case).encode()
    for cores in (1, 3, 20, 39, 40):  # 80 tiles
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
