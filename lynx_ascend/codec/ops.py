"""Typed calls of the compiled codec, torch.ops.lynx_ascend (docs/ops.md), with the tables that a config implies."""

from __future__ import annotations

import importlib
from functools import lru_cache

import torch
from torch import Tensor

from .config import CodecConfig
from .tables import Tables, tables

try:
    from .. import _C  # noqa: F401  registers the ops
except ImportError as error:
    raise ImportError(
        f"lynx_ascend._C could not be loaded ({error}); build it with scripts/setup_env.sh or `pip install -e .`"
    ) from error

__all__ = ["block_table", "check_kernels", "decode", "encode"]


def encode(
    cache: Tensor,
    block_ids: Tensor,
    start: int,
    tokens: int,
    config: CodecConfig,
    anchor: Tensor,
    residual: Tensor,
) -> None:
    """Encodes tokens start .. start + tokens - 1 of one layer's K or V, page by page, into their payloads.

    Non-finite elements leave a page's gamma not finite and its other bytes unspecified: the caller looks there.

    Args:
        cache: [blocks, block_size, heads, head_dim] in T = bf16 | fp16 | fp32 with any strides.
        block_ids: [n], int64 on the CPU, int32 on an NPU (`block_table`); token t (absolute) is row t % block_size of
            block block_ids[t // block_size].
        start: absolute position, a multiple of config.page. tokens: at least 1; the last page may be short.
        anchor, residual: uint8 [pages, >= bytes of the largest payload], last stride 1; written from column 0.

    On an NPU this queues a kernel on the current stream (docs/ops.md has its limits).

    Raises:
        RuntimeError: an argument that does not fit the others, naming it; a device without kernels.
    """
    check_kernels(cache.device)
    table = _tables(config)
    torch.ops.lynx_ascend.encode(
        cache,
        block_ids,
        start,
        tokens,
        config.page,
        config.chunk,
        config.sink_tokens,
        config.codec == "alg1",
        config.center == "mean",
        None if table is None else _on(table.thresholds, cache.device),
        anchor,
        residual,
        alpha=config.alpha or 0.0,
        pairs=config.codec == "pair",
    )


def decode(
    anchor: Tensor,
    residual: Tensor | None,
    start: int,
    tokens: int,
    config: CodecConfig,
    block_ids: Tensor,
    cache: Tensor,
    first: int = 0,
) -> None:
    """Writes the reconstruction of tokens max(first, start) .. start + tokens - 1 into a paged cache.

    The payloads' metadata must have been checked (layout.bad_metadata).

    Args:
        anchor, residual: uint8 [pages, >= bytes of the largest payload], last stride 1. residual: None decodes the
            anchor alone.
        start, tokens, block_ids, cache: as in encode; cache is written.
        first: absolute position; earlier tokens, and blocks that hold only such, are neither read nor written.

    Raises:
        RuntimeError: an argument that does not fit the others, naming it; a device without kernels.
    """
    check_kernels(cache.device)
    table = _tables(config)
    levels = None if table is None else table.anchor_levels if residual is None else table.levels
    torch.ops.lynx_ascend.decode(
        anchor,
        residual,
        start,
        tokens,
        first,
        config.page,
        config.chunk,
        config.sink_tokens,
        config.codec == "alg1",
        None if levels is None else _on(levels, cache.device),
        block_ids,
        cache,
        pairs=config.codec == "pair",
    )


def block_table(block_ids: Tensor, device: torch.device) -> Tensor:
    """`block_ids`, int64 [n] on the CPU, as the ops take them for a cache on `device`."""
    return block_ids if device.type == "cpu" else block_ids.to(device, torch.int32)


def check_kernels(device: torch.device) -> None:
    """Raises RuntimeError unless the ops have kernels for tensors on `device`."""
    if device.type == "npu":
        _load_npu()
    elif device.type not in ("cpu", "meta"):
        raise RuntimeError(f"cache: is on {device}; there are kernels for cpu and npu")


@lru_cache(maxsize=1)
def _load_npu() -> None:
    try:
        importlib.import_module("lynx_ascend._npu")  # registers the ops of NPU tensors
    except ImportError as error:
        raise RuntimeError(
            f"cache: is on an NPU, but lynx_ascend._npu could not be loaded ({error}); build lynx_ascend where "
            "torch_npu and CANN are installed (docs/ascend.md)"
        ) from error


@lru_cache(maxsize=64)
def _on(table: Tensor, device: torch.device) -> Tensor:
    """A table on `device`, copied there once."""
    return table.to(device)


def _tables(config: CodecConfig) -> Tables | None:
    """None for the linear grid: the kernels compute it in closed form."""
    assert config.alpha is not None  # CodecConfig fills it in
    return tables(config.codec, config.alpha) if config.codec == "alg1" or config.alpha else None
