"""Cases of tests/csrc whose ops run on NPU tensors, real or emulated; and a way to hold a stream back."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch_npu  # noqa: F401  adds the device "npu"; on the emulated one where emulation.py is in place
from torch import Tensor

from lynx_ascend.codec import ops
from tests.ascend_kernels.cases import draw_case
from tests.csrc.calls import Case, raw_bytes

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def on_npu(values: Tensor) -> Tensor:
    """The same view of a copy, on the NPU, of all memory behind a CPU tensor: guard bytes included."""
    memory = raw_bytes(values).npu()
    return memory.view(values.dtype).as_strided(values.size(), values.stride(), values.storage_offset())


def from_npu(values: Tensor) -> Tensor:
    """The other way."""
    memory = torch.empty(0, dtype=torch.uint8, device=values.device).set_(values.untyped_storage()).cpu()
    return memory.view(values.dtype).as_strided(values.size(), values.stride(), values.storage_offset())


@dataclass
class NpuCase(Case):
    """A case whose ops run on copies of its tensors on the NPU."""

    apart: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.table = ops.block_table(self.block_ids, torch.device("npu"))

    def encode_npu(self, cache: Tensor, anchor: Tensor, residual: Tensor) -> None:
        """Queues it for tensors that are on the NPU."""
        ops.encode(cache, self.table, self.start, self.x.shape[0], self.config, anchor, residual)

    def decode_npu(self, anchor: Tensor, residual: Tensor | None, cache: Tensor) -> None:
        ops.decode(anchor, residual, self.start, self.x.shape[0], self.config, self.table, cache, self.first)

    def encode(self) -> tuple[Tensor, Tensor]:
        anchor, residual = map(on_npu, self.payloads())
        self.encode_npu(on_npu(self.filled()), anchor, residual)
        return from_npu(anchor), from_npu(residual)

    def decode(self, anchor: Tensor, residual: Tensor | None) -> Tensor:
        cache = on_npu(self.cache())
        self.decode_npu(on_npu(anchor), None if residual is None else on_npu(residual), cache)
        return from_npu(cache)

    def on_cpu(self) -> Case:
        return Case(self.x, self.config, self.start, self.block_size, self.memory, self.apart, self.first)


def drawn(seed: int) -> NpuCase:
    case = draw_case(random.Random(seed))
    return NpuCase(case.x, case.config, case.start, case.block_size, first=case.first)


@contextmanager
def held(stream: Any) -> Iterator[None]:
    """What is queued on the stream from now on does not run before the end of the block.

    Raises:
        AssertionError: the block waited for the stream.
    """
    released, kept = threading.Event(), []
    function = HOST_FUNCTION(lambda _: kept.append(released.wait(20)))
    launch = ctypes.CDLL("libascendcl.so").aclrtLaunchHostFunc
    launch.argtypes = [ctypes.c_void_p, HOST_FUNCTION, ctypes.c_void_p]
    assert launch(stream.npu_stream, function, None) == 0
    try:
        yield
    finally:
        released.set()
        stream.synchronize()
    assert kept == [True], "something in the block waited for the stream"
