"""The pages of tests/csrc through the Ascend C kernels on the host twin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lynx_ascend import _twin
from lynx_ascend.codec.tables import Tables, tables
from tests.csrc.calls import Case

Argument = tuple[int, int] | bytes | None
KERNEL_TYPE = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def buffer(values: Tensor | None) -> Argument:
    """Address and size of the memory from a tensor's first element to the end of its storage."""
    if values is None:
        return None
    offset = values.storage_offset() * values.element_size()
    return values.data_ptr(), values.untyped_storage().nbytes() - offset


@dataclass
class TwinCase(Case):
    """A case whose encode and decode run on `cores` simulated cores.

    `report` is what the last launch cost (docs of lynx_ascend._twin).
    """

    cores: int = 4
    apart: bool = True
    report: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.block_table = self.block_ids.int()

    def tiling(
        self,
        decode: bool,
        cache: Tensor,
        anchor: Tensor,
        residual: Tensor | None,
        changes: dict[str, object] | None = None,
    ) -> bytes:
        """The kernels' last argument; `changes` replace what make_tiling is told of this case."""
        config = self.config
        arguments: dict[str, Any] = {
            "decode": decode,
            "channels": cache.shape[2] * cache.shape[3],
            "element_bytes": cache.element_size(),
            "start": self.start,
            "tokens": self.x.shape[0],
            "first": self.first,
            "page": config.page,
            "chunk": config.chunk,
            "sink_tokens": config.sink_tokens,
            "alg1": config.codec == "alg1",
            "mean": config.center == "mean",
            "companded": config.codec == "alg1" or bool(config.alpha),
            "residual": residual is not None,
            "alpha": config.alpha,
            "blocks": cache.shape[0],
            "block_size": cache.shape[1],
            "block_stride": cache.stride(0),
            "row_stride": cache.stride(1),
            "table_entries": len(self.block_table),
            "anchor_stride": anchor.stride(0),
            "residual_stride": 0 if residual is None else residual.stride(0),
            "cores": self.cores,
            "pairs": config.codec == "pair",
            "head_dim": cache.shape[3],
        }
        return _twin.tiling(**(arguments | (changes or {})))

    def table(self) -> Tables | None:
        """The compander's; the linear grid's kernels do not look at theirs, and codec pair has none."""
        return None if self.config.codec == "pair" else tables(self.config.codec, self.config.alpha or 0.0)

    def launch(self, kernel: str, arguments: list[Argument]) -> None:
        self.report = _twin.launch(f"lynx_{kernel}_{KERNEL_TYPE[self.x.dtype]}", self.cores, arguments)

    def encode(self) -> tuple[Tensor, Tensor]:
        anchor, residual = self.payloads()
        cache = self.filled()
        tiling = self.tiling(False, cache, anchor, residual)
        table = self.table()
        thresholds = None if table is None else table.thresholds
        buffers = map(buffer, (cache, self.block_table, thresholds, anchor, residual))
        self.launch("encode", [*buffers, tiling])
        return anchor, residual

    def decode(self, anchor: Tensor, residual: Tensor | None) -> Tensor:
        cache = self.cache()
        tiling = self.tiling(True, cache, anchor, residual)
        table = self.table()
        levels = None if table is None else table.anchor_levels if residual is None else table.levels
        buffers = map(buffer, (anchor, residual, levels, self.block_table, cache))
        self.launch("decode", [*buffers, tiling])
        return cache
