"""The emulation is in place in every process, its operators are ordered after their stream, and the rest is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch_npu

from tests.emulated_npu.npu_case import held
from tests.emulated_npu.operators.register import kernel


def test_a_new_process_has_it_without_being_asked() -> None:
    script = "import torch, torch_npu; print(torch_npu.npu_swiglu(torch.ones(2).npu()).cpu().item())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == pytest.approx(1 / (1 + 2.718281828**-1))


def test_a_process_that_needs_no_torch_does_not_load_it() -> None:
    script = "import sys; print('torch' in sys.modules, 'tests.emulated_npu.emulation' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_an_operator_sees_what_its_stream_wrote_before() -> None:
    """The copies below are queued, and take far longer than queueing them."""
    source = torch.ones(1 << 24).pin_memory()
    x = torch.zeros(1 << 24, device="npu")
    for _ in range(8):
        x.copy_(source, non_blocking=True)
    x.view(-1, 2)[-1:].copy_(torch.full((1, 2), 2.0).pin_memory(), non_blocking=True)
    assert torch_npu.npu_swiglu(x.view(-1, 2)[-1:]).cpu().item() == pytest.approx(4 / (1 + 2.718281828**-2))


def test_an_operator_on_a_side_stream_waits_for_its_event() -> None:
    source = torch.full((1 << 24,), 3.0).pin_memory()
    x = torch.zeros(1 << 24, device="npu")
    side = torch.npu.Stream()
    for _ in range(8):
        x.copy_(source, non_blocking=True)
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = torch_npu.npu_swiglu(x[-2:])
    side.synchronize()
    assert y.cpu().item() == pytest.approx(9 / (1 + 2.718281828**-3))


def test_an_event_that_is_recorded_again_waits_for_its_last_record_alone() -> None:
    first, second, event = torch.npu.Stream(), torch.npu.Stream(), torch.npu.Event()
    with held(first):
        event.record(first)
        event.record(second)
        second.synchronize()
        assert event.query()
    assert event.query()


def test_a_copy_may_cross_the_pieces_that_a_segment_grew_by() -> None:
    """As with vllm-ascend, which switches expandable segments on: they are mapped 20 MiB at a time."""
    script = """
import torch, torch_npu
x, source = torch.zeros(1 << 26, dtype=torch.uint8, device="npu"), torch.full((1 << 26,), 7, dtype=torch.uint8)
x.copy_(source.pin_memory(), non_blocking=True)
print(torch.equal(x.cpu(), source))
"""
    environment = {**os.environ, "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True"


def test_an_operator_that_is_not_emulated_fails() -> None:
    x = torch.ones(4, 8).npu()
    with pytest.raises(RuntimeError):
        torch_npu.npu_fast_gelu(x)
    with pytest.raises(AttributeError, match="_npu_paged_attention"):
        torch_npu._npu_paged_attention(x, x, x, 1, 1, 1.0, x, x, x)


def test_a_kernel_is_for_an_operator_that_exists() -> None:
    with pytest.raises(AttributeError, match="npu_there_is_no_such"):
        kernel("npu::npu_there_is_no_such")
