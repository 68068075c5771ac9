"""The ops' contract beside their bits: named errors, the Meta kernels, and a GIL that is free while they run."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from lynx_ascend.codec import ops
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.tables import tables
from tests.csrc.calls import using

TABLES = tables("grid", 1.0)
SUBNORMAL = torch.cat([torch.arange(-120.0, 0.0), torch.arange(1.0, 121.0)]) * 2.0**-149  # growing and mirrored
ENCODE = {
    "cache": torch.zeros(3, 16, 2, 8, dtype=torch.bfloat16),
    "block_ids": torch.tensor([2, 0, 1]),
    "start": 0,
    "tokens": 40,
    "page": 32,
    "chunk": 8,
    "sink_tokens": 4,
    "fp32_metadata": False,
    "mean": False,
    "thresholds": TABLES.thresholds,
    "anchor": torch.zeros(2, 544, dtype=torch.uint8),
    "residual": torch.zeros(2, 224, dtype=torch.uint8),
}
DECODE = {name: ENCODE[name] for name in ENCODE if name not in ("mean", "thresholds")}
DECODE |= {"levels": TABLES.levels, "first": 0}

BOTH: list[tuple[dict[str, Any], str]] = [
    ({"cache": torch.zeros(3, 16, 16)}, "cache: has 3 dimensions"),
    ({"cache": torch.zeros(3, 16, 2, 8, dtype=torch.float64)}, "cache: dtype Double"),
    ({"cache": torch.zeros(3, 16, 2, 0)}, "cache: is empty"),
    ({"block_ids": torch.tensor([2, 0])}, "block_ids: 2 blocks of 16 do not hold token 39"),
    ({"block_ids": torch.tensor([2, 0, 3])}, r"block_ids: \[2\] is 3"),
    ({"block_ids": torch.tensor([2, -1, 1])}, r"block_ids: \[1\] is -1"),
    ({"block_ids": torch.tensor([2, 0, 1], dtype=torch.int32)}, "block_ids: is Int"),
    ({"block_ids": torch.tensor([[2, 0, 1]])}, "block_ids: is Long with 2 dimensions"),
    ({"block_ids": torch.arange(6)[::2]}, "block_ids: stride is 2"),
    ({"start": 8}, "start: 8 is not a multiple of page"),
    ({"start": -32}, "start: -32"),
    ({"tokens": 0}, "tokens: 0 is out of range"),
    ({"tokens": 2**63 - 1}, "tokens: 9223372036854775807 is out of range"),
    ({"page": 12}, "page: 12 is not a multiple of chunk"),
    ({"page": 2**16}, "page: 65536"),
    ({"chunk": 0}, "chunk: 0 is outside"),
    ({"chunk": 2048, "page": 2048}, "chunk: 2048 is outside"),
    ({"sink_tokens": 33}, "sink_tokens: 33 is outside"),
    ({"sink_tokens": -1}, "sink_tokens: -1 is outside"),
    ({"anchor": torch.zeros(2, 543, dtype=torch.uint8)}, "anchor: rows of 543 bytes, a page needs 544"),
    ({"anchor": torch.zeros(1, 544, dtype=torch.uint8)}, "anchor: has 1 rows, expected 2 pages"),
    ({"anchor": torch.zeros(2, 544, dtype=torch.int8)}, "anchor: is Char"),
    ({"anchor": torch.zeros(2, 1088, dtype=torch.uint8)[:, ::2]}, "anchor: last stride is 2"),
    ({"residual": torch.zeros(2, 223, dtype=torch.uint8)}, "residual: rows of 223 bytes, a page needs 224"),
    ({"residual": torch.zeros(448, dtype=torch.uint8)}, "residual: is Byte with 1 dimensions"),
    ({"pairs": True}, "pairs: take no tables"),
]
ONLY_ENCODE: list[tuple[dict[str, Any], str]] = [
    ({"thresholds": torch.zeros(225)}, "thresholds: has 225 entries, expected 240"),
    ({"thresholds": torch.zeros(240), "fp32_metadata": True}, "thresholds: has 240 entries, expected 225"),
    ({"thresholds": TABLES.thresholds.double()}, "thresholds: is Double"),
    ({"thresholds": torch.zeros(480)[::2]}, "thresholds: stride is 2"),
    ({"thresholds": torch.zeros(240)}, "thresholds: are not a compander's"),
    ({"thresholds": TABLES.thresholds.flip(0)}, "thresholds: are not a compander's"),
    ({"thresholds": TABLES.thresholds + 1}, "thresholds: are not a compander's"),
    ({"thresholds": TABLES.thresholds**5}, "thresholds: are not a compander's"),
    ({"thresholds": SUBNORMAL}, "thresholds: are not a compander's"),
    ({"thresholds": None, "fp32_metadata": True}, "fp32_metadata: needs tables"),
    ({"anchor": torch.zeros(1, 544, dtype=torch.uint8).expand(2, 544)}, "anchor: rows of 544 bytes are 0 apart"),
    (
        {"residual": torch.zeros(447, dtype=torch.uint8).as_strided((2, 224), (223, 1))},
        "residual: rows of 224 bytes are 223 apart",
    ),
]
ONLY_DECODE: list[tuple[dict[str, Any], str]] = [
    ({"levels": TABLES.anchor_levels}, "levels: has 16 entries, expected 256"),
    ({"residual": None}, "levels: has 256 entries, expected 16"),
    ({"levels": TABLES.levels.half()}, "levels: is Half"),
    ({"levels": None, "fp32_metadata": True}, "fp32_metadata: needs tables"),
    ({"first": 40}, r"first: 40 is outside 0 \.\. 39"),
    ({"first": -1}, "first: -1 is outside"),
    ({"cache": torch.zeros(3, 16, 1, 8, dtype=torch.bfloat16).expand(3, 16, 2, 8)}, "cache: is expanded"),
]


@pytest.mark.parametrize(("change", "message"), BOTH + ONLY_ENCODE)
def test_encode_names_the_bad_argument(change: dict[str, Any], message: str) -> None:
    torch.ops.lynx_ascend.encode(**ENCODE)  # the call itself is sound
    with pytest.raises(RuntimeError, match=f"^{message}"):
        torch.ops.lynx_ascend.encode(**{**ENCODE, **change})


@pytest.mark.parametrize(("change", "message"), BOTH + ONLY_DECODE)
def test_decode_names_the_bad_argument(change: dict[str, Any], message: str) -> None:
    torch.ops.lynx_ascend.decode(**DECODE)
    with pytest.raises(RuntimeError, match=f"^{message}"):
        torch.ops.lynx_ascend.decode(**{**DECODE, **change})


@pytest.mark.parametrize("head_dim", [2, 6, 2052])
def test_pairs_need_whole_quarters_of_a_head(head_dim: int) -> None:
    change = {"pairs": True, "cache": torch.zeros(3, 16, 2, head_dim)}
    for op, arguments, table in (("encode", ENCODE, "thresholds"), ("decode", DECODE, "levels")):
        with pytest.raises(RuntimeError, match=f"^cache: head_dim {head_dim} is not a multiple of 4 up to 2048"):
            getattr(torch.ops.lynx_ascend, op)(**{**arguments, **change, table: None})


def on_meta(arguments: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}


def test_meta_checks_shapes_and_computes_nothing() -> None:
    assert torch.ops.lynx_ascend.encode(**on_meta(ENCODE)) is None
    assert torch.ops.lynx_ascend.decode(**on_meta(DECODE)) is None
    with pytest.raises(RuntimeError, match=r"^anchor: has 2 rows, expected 1 pages"):
        torch.ops.lynx_ascend.encode(**on_meta({**ENCODE, "tokens": 20}))
    with pytest.raises(RuntimeError, match=r"^first: 40 is outside"):
        torch.ops.lynx_ascend.decode(**on_meta({**DECODE, "first": 40}))


def test_a_meta_tensor_among_cpu_tensors_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"^anchor: is on meta, the cache on cpu"):
        torch.ops.lynx_ascend.encode(**{**ENCODE, "anchor": ENCODE["anchor"].to("meta")})
    with pytest.raises(RuntimeError, match=r"^block_ids: is on meta, the cache on cpu"):
        torch.ops.lynx_ascend.decode(**{**DECODE, "block_ids": DECODE["block_ids"].to("meta")})


def test_other_python_threads_run_during_a_call() -> None:
    """P encodes in a thread beside its engine: the dispatcher must have released the GIL."""
    x = torch.randn(1, 16384, 8, 128)
    config = CodecConfig(alpha=1.0)
    anchor, residual = torch.zeros(64, 400_000, dtype=torch.uint8), torch.zeros(64, 200_000, dtype=torch.uint8)
    span: list[float] = []

    def work() -> None:
        span.append(time.perf_counter())
        with using("portable"):  # slow enough to see
            ops.encode(x, torch.zeros(1, dtype=torch.int64), 0, 16384, config, anchor, residual)
        span.append(time.perf_counter())

    thread = threading.Thread(target=work)
    thread.start()
    ticks = []
    while thread.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    assert sum(span[0] < tick < span[1] for tick in ticks) >= 3, f"{span[1] - span[0]:.3f} s without another thread"
