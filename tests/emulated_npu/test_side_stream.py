"""The stream that P encodes on: behind the forward passes that its mark is of, and beside those that come later."""

from __future__ import annotations

import time

import pytest
import torch

from lynx_ascend import CodecConfig
from lynx_ascend.serving.side_stream import SideStream
from tests.csrc.calls import raw_bytes
from tests.csrc.pages import draw_values
from tests.emulated_npu.npu_case import NpuCase, from_npu, held, on_npu


@pytest.fixture
def case() -> NpuCase:
    return NpuCase(draw_values("normal", (300, 2, 64), torch.bfloat16, 1), CodecConfig(), block_size=128)


@pytest.fixture
def side() -> SideStream:
    return SideStream(torch.device("npu", 0))


def equal(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(raw_bytes(got), raw_bytes(want))


def test_it_waits_for_what_the_mark_is_of(case: NpuCase, side: SideStream) -> None:
    values = raw_bytes(case.filled()).pin_memory()
    cache = on_npu(case.cache())  # guard bytes: the forward pass has yet to write the values
    memory = torch.empty(0, dtype=torch.uint8, device="npu").set_(cache.untyped_storage())
    anchor, residual = map(on_npu, case.payloads())
    torch.npu.synchronize()
    passes = torch.npu.Stream()
    with held(passes):
        with torch.npu.stream(passes):
            memory.copy_(values, non_blocking=True)
            mark = side.mark()
        with side.after(mark):
            case.encode_npu(cache, anchor, residual)
            encoding = torch.npu.current_stream()
        time.sleep(0.3)  # a kernel that did not wait would have begun by then
        assert not encoding.query()
    encoding.synchronize()
    for got, want in zip((anchor, residual), case.on_cpu().encode(), strict=True):
        assert equal(from_npu(got), want)


def test_it_does_not_wait_for_later_passes(case: NpuCase, side: SideStream) -> None:
    cache = on_npu(case.filled())
    anchor, residual = map(on_npu, case.payloads())
    torch.npu.synchronize()
    passes = torch.npu.Stream()
    with torch.npu.stream(passes):
        mark = side.mark()
    with held(passes), side.after(mark):
        case.encode_npu(cache, anchor, residual)
        torch.npu.current_stream().synchronize()
    assert equal(from_npu(anchor), case.on_cpu().encode()[0])


def test_the_caller_is_back_on_its_own_stream_even_after_an_error(side: SideStream) -> None:
    before = torch.npu.current_stream()
    with pytest.raises(ZeroDivisionError), side.after(side.mark()):
        assert torch.npu.current_stream() != before
        raise ZeroDivisionError
    assert torch.npu.current_stream() == before
