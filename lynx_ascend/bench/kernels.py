"""`lynx-ascend bench kernels`: the Ascend C kernels on the host twin, checked, and their cost by a public table.

Every figure is an estimate. Nothing was measured on an NPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lynx_ascend import _twin
from lynx_ascend.codec import ops
from lynx_ascend.codec.layout import page_layout
from lynx_ascend.codec.tables import tables

from .codec_works import BLOCK_SIZE, CHANNELS, CODECS, HEAD_DIM, HEADS, Cache, WrongResult

HBM_BYTES_PER_SECOND = 0.8e12  # Atlas 800I A2, inferred, not documented
PIPES = ("MTE2", "V", "MTE3")


@dataclass(frozen=True)
class KernelBenchOptions:
    """codecs: names in CODECS. cores: vector cores, 1 .. 254 (the target has 40). pages: of 256 tokens."""

    codecs: tuple[str, ...]
    cores: int
    pages: int

    @classmethod
    def of(cls, *, codecs: Sequence[str] | None, cores: int, pages: int) -> KernelBenchOptions:
        """Raises ValueError for a codec that is not there or given twice."""
        names = tuple(CODECS if codecs is None else codecs)
        if not names or len(set(names)) < len(names) or not set(names) <= CODECS.keys():
            raise ValueError(f"--codec: {','.join(names)!r} is not a list of {', '.join(CODECS)}")
        return cls(names, cores, pages)


def run(options: KernelBenchOptions) -> dict[str, Any]:
    """Launches every kernel once. Returns a JSON-ready dict: `setup`, and `rows` by codec and kernel.

    Raises WrongResult if a kernel's bytes are not those of the CPU's kernels.
    """
    return {
        "setup": {
            "estimate": True,
            "cores": options.cores,
            "tokens": options.pages * 256,
            "cache_shape": [options.pages * 256 // BLOCK_SIZE, BLOCK_SIZE, HEADS, HEAD_DIM],
            "hbm_bytes_per_second": HBM_BYTES_PER_SECOND,
        },
        "rows": [row for name in options.codecs for row in _rows(name, options)],
    }


def _rows(name: str, options: KernelBenchOptions) -> Iterator[dict[str, Any]]:
    config, cache = CODECS[name], Cache.drawn(options.pages * 256)
    page, tokens, table = config.page, cache.tokens, cache.block_ids.int()
    layouts = [page_layout(config, torch.bfloat16, page, CHANNELS, start) for start in (0, page)]
    anchor = torch.zeros(tokens // page, max(at.anchor_bytes for at in layouts), dtype=torch.uint8)
    residual = torch.zeros(tokens // page, max(at.residual_bytes for at in layouts), dtype=torch.uint8)
    wanted_anchor, wanted_residual = anchor.clone(), residual.clone()
    compander = tables(config.codec, config.alpha or 0.0) if config.codec == "alg1" or config.alpha else None
    ops.encode(cache.source, cache.block_ids, 0, tokens, config, wanted_anchor, wanted_residual)

    def tiling(decode: bool, fine: bool) -> bytes:
        return _twin.tiling(
            decode=decode,
            channels=CHANNELS,
            element_bytes=cache.source.element_size(),
            start=0,
            tokens=tokens,
            first=0,
            page=page,
            chunk=config.chunk,
            sink_tokens=config.sink_tokens,
            alg1=config.codec == "alg1",
            mean=config.center == "mean",
            companded=compander is not None,
            residual=fine,
            alpha=config.alpha or 0.0,
            blocks=cache.source.shape[0],
            block_size=BLOCK_SIZE,
            block_stride=cache.source.stride(0),
            row_stride=cache.source.stride(1),
            table_entries=table.numel(),
            anchor_stride=anchor.stride(0),
            residual_stride=residual.stride(0) if fine else 0,
            cores=options.cores,
            pairs=config.codec == "pair",
            head_dim=HEAD_DIM,
        )

    buffers: list[Tensor | None] = [cache.source, table, compander and compander.thresholds, anchor, residual]
    report = _twin.launch("lynx_encode_bf16", options.cores, [*map(_buffer, buffers), tiling(False, True)])
    _check(name, "encode", (anchor, residual), (wanted_anchor, wanted_residual))
    yield _row(name, "encode", report, cache)

    for fine in (False, True):
        kernel = "full decode" if fine else "anchor decode"
        payload = residual if fine else None
        expected = torch.empty_like(cache.target)
        ops.decode(anchor, payload, 0, tokens, config, cache.block_ids, expected)
        cache.target.fill_(1)
        levels = compander and (compander.levels if fine else compander.anchor_levels)
        buffers = [anchor, payload, levels, table, cache.target]
        report = _twin.launch("lynx_decode_bf16", options.cores, [*map(_buffer, buffers), tiling(True, fine)])
        _check(name, kernel, (cache.target,), (expected,))
        yield _row(name, kernel, report, cache)


def _buffer(values: Tensor | None) -> tuple[int, int] | None:
    return None if values is None else (values.data_ptr(), values.numel() * values.element_size())


def _check(name: str, kernel: str, got: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    if not all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(got, wanted, strict=True)):
        raise WrongResult(f"{name} {kernel}: other bytes than the CPU's kernels")


def _row(name: str, kernel: str, report: _twin.Report, cache: Cache) -> dict[str, Any]:
    """Rates are bytes of bf16 over time, as in `bench codec`."""
    elements = cache.nbytes // cache.source.element_size()
    totals = {pipe: [core["pipes"][pipe] for core in report["cores"]] for pipe in PIPES}
    loaded, stored = (sum(one["bytes"] for one in totals[pipe]) for pipe in ("MTE2", "MTE3"))
    busy = {pipe: max(one["cycles"] for one in totals[pipe]) for pipe in PIPES}
    loads = sum(pipe["cycles"] for pipe in totals["MTE2"])
    hidden = sum(overlap(core["timeline"], "MTE2", "V") for core in report["cores"])
    memory_seconds = (loaded + stored) / HBM_BYTES_PER_SECOND
    return {
        "method": name,
        "kernel": kernel,
        "cycles": report["cycles"],
        "gb_per_s": cache.nbytes / max(report["seconds"], memory_seconds) / 1e9,
        "hbm_gb_per_s": cache.nbytes / memory_seconds / 1e9,
        "bound": "HBM" if memory_seconds > report["seconds"] else max(busy, key=busy.__getitem__),
        "busy": {pipe: busy[pipe] / report["cycles"] for pipe in PIPES},
        "hidden_loads": hidden / loads,
        "loaded_bytes_per_element": loaded / elements,
        "stored_bytes_per_element": stored / elements,
        "vector_repeats_per_64_elements": 64 * sum(pipe["repeats"] for pipe in totals["V"]) / elements,
        "vector_instructions": sum(pipe["instructions"] for pipe in totals["V"]),
    }


def overlap(timeline: Sequence[tuple[str, str, float, float]], first: str, second: str) -> float:
    """Cycles in which two pipes of a core are busy at once. Each pipe's spans come in order and apart."""
    spans = [[(start, end) for pipe, _, start, end in timeline if pipe == name] for name in (first, second)]
    total, i, j = 0.0, 0, 0
    while i < len(spans[0]) and j < len(spans[1]):
        (a_start, a_end), (b_start, b_end) = spans[0][i], spans[1][j]
        total += max(0.0, min(a_end, b_end) - max(a_start, b_start))
        if a_end < b_end:
            i += 1
        else:
            j += 1
    return total
