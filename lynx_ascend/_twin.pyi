"""Types of the host twin (ascend_kernels/twin/module.cpp): the Ascend C kernels, run on simulated vector cores."""

from collections.abc import Sequence
from typing import TypedDict

class TwinError(RuntimeError):
    """A kernel broke a rule: "<kernel>, core <n>, <call>: <rule>: <detail>"."""

class Pipe(TypedDict):
    instructions: int
    repeats: int
    bytes: int
    cycles: float

class Core(TypedDict):
    cycles: float
    pipes: dict[str, Pipe]  # S, V, MTE2, MTE3
    timeline: list[tuple[str, str, float, float]]  # pipe, call, start and end in cycles

class Report(TypedDict):
    """Cycles and seconds are an estimate from a public cost table (cost.h), not measured on an NPU."""

    cycles: float
    seconds: float
    cores: list[Core]

def kernels() -> list[str]: ...
def launch(kernel: str, cores: int, arguments: Sequence[tuple[int, int] | bytes | None]) -> Report:
    """Run a kernel on `cores` cores, one after the other.

    An argument is a buffer (address, bytes), None for a null pointer, or the bytes of a value or struct.
    Buffers must stay alive, and are written in place. Raises TwinError.
    """

def tiling(
    *,
    decode: bool,
    channels: int,
    element_bytes: int,
    start: int,
    tokens: int,
    first: int,
    page: int,
    chunk: int,
    sink_tokens: int,
    alg1: bool,
    mean: bool,
    companded: bool,
    residual: bool,
    alpha: float,
    blocks: int,
    block_size: int,
    block_stride: int,
    row_stride: int,
    table_entries: int,
    anchor_stride: int,
    residual_stride: int,
    cores: int,
    pairs: bool = False,
    head_dim: int = 0,
) -> bytes:
    """The kernels' Tiling struct (ascend_kernels/tiling.h). Raises ValueError for a call that they cannot serve."""
