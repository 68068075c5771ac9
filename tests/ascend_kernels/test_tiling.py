"""What the kernels' host half refuses, naming the argument, before anything is launched."""

from __future__ import annotations

import pytest
import torch

from lynx_ascend.codec.config import CodecConfig
from tests.ascend_kernels.calls import TwinCase
from tests.csrc.pages import draw_values


@pytest.mark.parametrize(
    "decode, changes, message",
    [
        (True, {"element_bytes": 4}, "cache: "),
        (True, {"channels": 80}, "channels: 80 is not a multiple of 64"),
        (True, {"channels": 0}, "channels: 0, expected"),
        (True, {"chunk": 0}, "chunk: 0, expected"),
        (True, {"page": 250}, "page: not a multiple of chunk"),
        (True, {"start": 3}, "start: not a multiple of page"),
        (True, {"tokens": 0}, "tokens: 0, expected"),
        (True, {"sink_tokens": 257}, "sink_tokens: 257, expected"),
        (True, {"first": -1}, "first: -1, expected"),
        (True, {"cores": 0}, "cores: 0, expected"),
        (True, {"row_stride": 127}, "cache: rows overlap"),
        (True, {"block_stride": -1}, "cache: negative stride"),
        (True, {"block_size": 0}, "block_size: 0, expected"),
        (True, {"blocks": 0}, "blocks: 0, expected"),
        (True, {"table_entries": 18}, "block_table: 18 entries for 300 tokens"),
        (True, {"anchor_stride": 19000}, "anchor: rows too short"),
        (True, {"residual_stride": 16000}, "residual: rows too short"),
        (True, {"pairs": True, "head_dim": 96}, "head_dim: 96, expected 64 or 128"),
        (False, {"pairs": True, "head_dim": 32}, "head_dim: 32, expected 64 or 128"),
        (True, {"pairs": True, "channels": 192, "head_dim": 128}, "channels: not a multiple of head_dim"),
        (True, {"pairs": True, "companded": True}, "pairs: they are linear"),
        (False, {"pairs": True, "companded": True, "alpha": 1.0}, "pairs: they are linear"),
        (True, {"alg1": True}, "levels: alg1 needs them"),
        (False, {"alg1": True}, "thresholds: alg1 needs them"),
        (False, {"residual": False}, "residual: encode writes both"),
        (False, {"page": 512}, "page: 512, expected 1 .. 256"),
        (False, {"chunk": 128}, "chunk: 128, expected"),
        (False, {"chunk": 8}, "chunk: 8, expected 16 .. 64"),
        (False, {"page": 48, "chunk": 24}, "chunk: not a power of two"),
        (False, {"companded": True, "alpha": 1e-4}, "alpha: "),
        (False, {"companded": True, "alpha": float("nan")}, "alpha: "),
    ],
)
def test_refusals_name_the_argument(decode: bool, changes: dict[str, object], message: str) -> None:
    case = TwinCase(draw_values("normal", (300, 2, 64), torch.bfloat16, 1), CodecConfig())
    anchor, residual = case.payloads()
    assert case.tiling(decode, case.cache(), anchor, residual)
    with pytest.raises(ValueError, match=f"^{message}"):
        case.tiling(decode, case.cache(), anchor, residual, changes)
