"""torch.ops.lynx_ascend through torch_npu's dispatcher: what they leave in NPU tensors equals the CPU's bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import torch
from torch import Tensor

from lynx_ascend import CodecConfig, EncodedKV, encode
from lynx_ascend.codec.config import Stream
from lynx_ascend.frame import parse
from lynx_ascend.paged import NonFiniteError, PagedKV, PageEncoder, write_page
from tests.csrc.calls import assert_equal
from tests.csrc.pages import draw_values
from tests.emulated_npu.npu_case import NpuCase, drawn, from_npu, on_npu

NAMED = {
    "grid": CodecConfig(),
    "companded": CodecConfig(alpha=1.0),
    "mean": CodecConfig(alpha=3.0, center="mean", chunk=16),
    "alg1": CodecConfig(codec="alg1"),
    "pair": CodecConfig(codec="pair"),
}
DTYPES = (torch.bfloat16, torch.float16)


def assert_as_on_the_cpu(case: NpuCase) -> None:
    assert_equal(case.compiled(), case.on_cpu().compiled(), "npu", case)


@pytest.mark.parametrize("seed", range(24))
def test_drawn_pages(seed: int) -> None:
    assert_as_on_the_cpu(drawn(3000 + seed))


@pytest.mark.parametrize(("name", "dtype"), [*product(NAMED, DTYPES)])
def test_ragged_tails_and_permuted_blocks(name: str, dtype: torch.dtype) -> None:
    for tokens in (1, 31, 256, 300):
        assert_as_on_the_cpu(
            NpuCase(draw_values("normal", (tokens, 2, 64), dtype, tokens), NAMED[name], block_size=128)
        )


def test_rows_apart_in_the_cache() -> None:
    """K and V of a layer interleaved: each row is followed by as many bytes that are not ours."""
    assert_as_on_the_cpu(NpuCase(draw_values("normal", (300, 1, 128), torch.float16, 5), NAMED["grid"], apart=False))


@pytest.mark.parametrize(("name", "dtype"), [*product(NAMED, DTYPES)])
def test_public_api(name: str, dtype: torch.dtype) -> None:
    x = draw_values("normal", (300, 2, 64), dtype, 7)
    config = NAMED[name]
    here, there = encode(x, config), encode(x.npu(), config)
    for stream in ("anchor", "residual"):
        assert there.frames(stream) == here.frames(stream)
        values = there.decode(stream)
        assert values.device.type == "npu" and values.dtype == dtype
        assert torch.equal(values.cpu(), here.decode(stream))
    moved = EncodedKV.from_frames(here.frames("anchor"), device="npu")
    assert torch.equal(moved.decode("anchor").cpu(), here.decode("anchor"))


def test_exact_is_the_input() -> None:
    x = draw_values("normal", (300, 2, 64), torch.bfloat16, 8).npu()
    kv = encode(x, CodecConfig(exact=True))
    assert kv.decode("exact").device == x.device
    assert torch.equal(kv.decode("exact").cpu().view(torch.int16), x.cpu().view(torch.int16))


@pytest.mark.parametrize("method", ["lynx", "alg1", "pair", "bf16", "int8", "int4"])
def test_pages_from_and_into_device_caches(method: str) -> None:
    """Frames equal the CPU's; pages are written from `first` on, whichever table the caller has."""
    tokens, first = 300, 40
    case = NpuCase(draw_values("normal", (tokens, 2, 64), torch.bfloat16, 9), CodecConfig(), block_size=16)
    here = PagedKV(case.filled(), case.block_ids)
    there = PagedKV(on_npu(case.filled()), case.block_ids)
    assert tuple(there.gather(first, 20).cpu().shape) == (20, 2, 64)
    encoders = [
        PageEncoder(method, kv, tokens, layer=3, is_value=True, generation=5)
        for kv in (here, there, there._replace(table=case.table))
    ]
    want, got = PagedKV(case.cache(), case.block_ids), PagedKV(on_npu(case.cache()), case.block_ids, case.table)
    for index in range(encoders[0].num_pages):
        frames, *others = (encoder.page(index) for encoder in encoders)
        for other in others:
            assert {stream: bytes(frame) for stream, frame in other.items()} == frames
        parsed = {stream: parse(frame) for stream, frame in others[0].items()}
        for target in (want, got):
            write_page(parsed[Stream.ANCHOR], parsed.get(Stream.RESIDUAL), target, first=first)
    assert torch.equal(from_npu(got.cache).view(torch.int16), want.cache.view(torch.int16))


def test_in_another_thread() -> None:
    """P encodes in a thread of its own, which no device was set for."""
    x = draw_values("normal", (300, 2, 64), torch.bfloat16, 11)
    moved = x.npu()
    torch.npu.synchronize()
    with ThreadPoolExecutor(1) as pool:
        kv = pool.submit(encode, moved).result(60)
    assert kv.frames("residual") == encode(x).frames("residual")
    assert torch.equal(kv.decode("residual").cpu(), encode(x).decode("residual"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_are_reported(bad: float) -> None:
    x = torch.zeros(300, 2, 64, dtype=torch.bfloat16)
    x[290, 1, 3] = bad
    with pytest.raises(NonFiniteError, match="layer 2, K, page 1"):
        encode(x.npu(), layer=2)


def test_frames_outlive_their_encoder() -> None:
    """Frames are views of pinned memory, which PyTorch gives to the next one when nobody holds it."""
    x = draw_values("normal", (256, 2, 64), torch.bfloat16, 10)
    kept: list[Tensor | memoryview | bytearray] = []
    for _ in range(4):
        encoder = PageEncoder(
            "lynx",
            PagedKV(x.npu()[None], torch.zeros(1, dtype=torch.int64)),
            256,
            layer=0,
            is_value=False,
            generation=0,
        )
        kept.append(encoder.page(0)[Stream.ANCHOR])
        del encoder
    want = encode(x).frames("anchor")[0]
    assert all(bytes(frame) == want for frame in kept)
