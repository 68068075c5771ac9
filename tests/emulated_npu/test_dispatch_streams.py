"""The ops on streams: each runs on the current one, later, after what was queued there and what its events wait for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lynx_ascend import CodecConfig
from lynx_ascend.buffers import as_tensor
from tests.csrc.calls import raw_bytes
from tests.csrc.pages import draw_values
from tests.emulated_npu.device.load import acl
from tests.emulated_npu.npu_case import NpuCase, from_npu, held, on_npu

ROOT = Path(__file__).resolve().parents[2]
EMULATED = "ASCEND_HOME_PATH" not in os.environ
# What would wait, or hold memory: none of it may happen in an op.
FORBIDDEN = [
    f"aclrt{name}"
    for name in (
        "Malloc", "MallocAlign32", "MallocPhysical", "MallocHost", "Free", "FreeHost", "Memcpy", "MemcpyAsync",
        "Memset", "MemsetAsync", "SynchronizeStream", "SynchronizeDevice", "SynchronizeEvent", "StreamQuery",
        "QueryEventStatus", "StreamWaitEvent", "RecordEvent", "CreateStreamWithConfig", "CreateEventExWithFlag",
    )
]  # fmt: skip


@pytest.fixture
def case() -> NpuCase:
    made = NpuCase(draw_values("normal", (300, 2, 64), torch.bfloat16, 1), CodecConfig(alpha=1.0), block_size=128)
    made.compiled()  # the codec's tables are copied to the device once, which waits
    return made


def equal(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Guard bytes included."""
    return torch.equal(raw_bytes(got), raw_bytes(want))


def test_a_launch_waits_for_its_own_stream(case: NpuCase) -> None:
    anchor, residual = map(on_npu, case.payloads())
    cache = on_npu(case.filled())
    torch.npu.synchronize()
    side = torch.npu.Stream()
    with held(side):
        with torch.npu.stream(side):
            case.encode_npu(cache, anchor, residual)
        assert not side.query()
        # These copies wait for the default stream: had the kernel run there, or at once, it would show.
        assert equal(from_npu(anchor), case.payloads()[0])
        assert equal(from_npu(residual), case.payloads()[1])
    for got, want in zip((anchor, residual), case.on_cpu().encode(), strict=True):
        assert equal(from_npu(got), want)


@pytest.mark.parametrize("with_event", [True, False])
def test_an_event_orders_a_kernel_after_a_copy_of_another_stream(case: NpuCase, with_event: bool) -> None:
    source = raw_bytes(case.filled()).pin_memory()
    cache = on_npu(case.cache())  # guard bytes: the values are still to come
    memory = torch.empty(0, dtype=torch.uint8, device="npu").set_(cache.untyped_storage())
    anchor, residual = map(on_npu, case.payloads())
    torch.npu.synchronize()
    copies, kernels, copied = torch.npu.Stream(), torch.npu.Stream(), torch.npu.Event()
    with held(copies):
        with torch.npu.stream(copies):
            memory.copy_(source, non_blocking=True)
            copied.record()
        with torch.npu.stream(kernels):
            if with_event:
                kernels.wait_event(copied)
            case.encode_npu(cache, anchor, residual)
        if with_event:
            assert not kernels.query()
        else:
            kernels.synchronize()  # what it read is what was there before the copy
    kernels.synchronize()
    assert equal(from_npu(anchor), case.on_cpu().encode()[0]) == with_event


def test_the_other_stream_reads_what_was_decoded(case: NpuCase) -> None:
    anchor, residual = case.on_cpu().encode()
    want = case.on_cpu().decode(anchor, residual)
    cache, payloads = on_npu(case.cache()), [on_npu(anchor), on_npu(residual)]
    torch.npu.synchronize()
    side, decoded = torch.npu.Stream(), torch.npu.Event()
    with held(side):
        with torch.npu.stream(side):
            case.decode_npu(*payloads, cache)
            decoded.record()
        assert not decoded.query()
    torch.npu.current_stream().wait_event(decoded)
    assert equal(from_npu(cache), want)


def test_calls_of_one_stream_keep_their_order(case: NpuCase) -> None:
    """Anchor, then both, into the same blocks; then an encode of what was decoded: no synchronisation between them."""
    anchor, residual = case.on_cpu().encode()
    decoded = case.on_cpu().decode(anchor, residual)
    again = NpuCase(case.x, case.config, block_size=case.block_size)
    again.filled = lambda: decoded  # type: ignore[method-assign]
    want = again.encode()
    cache, moved = on_npu(case.cache()), [on_npu(anchor), on_npu(residual)]
    out = [on_npu(payload) for payload in case.payloads()]
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with held(side), torch.npu.stream(side):
        case.decode_npu(moved[0], None, cache)
        case.decode_npu(*moved, cache)
        case.encode_npu(cache, *out)
    for got, wanted in zip(out, want, strict=True):
        assert equal(from_npu(got), wanted)


def test_ops_neither_allocate_nor_wait(case: NpuCase) -> None:
    anchor, residual = map(on_npu, case.payloads())
    cache = on_npu(case.filled())
    torch.npu.synchronize()

    def counts() -> dict[str, int]:
        counted = {"allocations": torch.npu.memory_stats()["allocation.all.allocated"]}
        if EMULATED:
            counted |= {name: acl().emulated_acl_calls(name.encode()) for name in FORBIDDEN}
        return counted

    before = counts()
    case.encode_npu(cache, anchor, residual)
    case.decode_npu(anchor, residual, cache)
    assert counts() == before
    if EMULATED:
        torch.npu.synchronize()
        assert counts() != before  # they do count


def test_payloads_are_copied_without_waiting() -> None:
    """Each from memory that is not used again before its copy has run, whatever becomes of the payload."""
    device, payload = torch.device("npu", torch.npu.current_device()), bytearray(5000)
    as_tensor(memoryview(payload), device)  # the first one may allocate
    with held(torch.npu.current_stream()):
        copies = []
        for i in range(40):
            payload[:] = bytes([i]) * len(payload)
            copies.append(as_tensor(memoryview(payload), device))
    for i, copy in enumerate(copies):
        assert copy.device == device
        assert copy.tolist() == [i] * len(payload)


@pytest.mark.skipif(not EMULATED, reason="an NPU that reads outside its memory is lost to the process")
def test_a_fault_of_the_kernel_is_raised_by_the_next_synchronisation(case: NpuCase) -> None:
    cache = on_npu(case.filled())
    payloads = [on_npu(payload) for payload in case.payloads()]
    case.table[1] = cache.shape[0]  # no such block
    case.encode_npu(cache, *payloads)
    with pytest.raises(RuntimeError, match=r"lynx_encode_bf16, core .*bounds"):
        torch.npu.synchronize()
    case.table[1] = int(case.block_ids[1])
    case.encode_npu(cache, *payloads)
    assert equal(from_npu(payloads[0]), case.on_cpu().encode()[0])


@pytest.mark.skipif("LYNX_INNER" in os.environ, reason="this is the inner run")
def test_with_torch_npus_task_queue() -> None:
    """The same with calls queued by another thread; TASK_QUEUE_ENABLE is read once a process."""
    tests = ["tests/emulated_npu/test_dispatch_streams.py", "tests/emulated_npu/test_dispatch.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "TASK_QUEUE_ENABLE": "1", "LYNX_INNER": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
