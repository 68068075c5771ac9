"""What the ops refuse on an NPU, naming it, before anything is queued; and their Meta kernels for NPU tensors."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401  adds the device "npu"
from torch._subclasses.fake_tensor import FakeTensorMode

from lynx_ascend import CodecConfig, EncodedKV, encode
from lynx_ascend.codec import ops
from lynx_ascend.codec.tables import tables

ops.check_kernels(torch.device("npu"))  # loads them: torch.ops alone does not

TABLES = tables("grid", 1.0)
ONE_PAGE = torch.zeros(1, 8192, dtype=torch.uint8)
ENCODE: dict[str, Any] = {
    "cache": torch.zeros(3, 16, 2, 64, dtype=torch.bfloat16),
    "block_ids": torch.tensor([2, 0, 1], dtype=torch.int32),
    "start": 0,
    "tokens": 40,
    "page": 32,
    "chunk": 16,
    "sink_tokens": 4,
    "fp32_metadata": False,
    "mean": False,
    "thresholds": TABLES.thresholds,
    "anchor": torch.zeros(2, 8192, dtype=torch.uint8),
    "residual": torch.zeros(2, 4096, dtype=torch.uint8),
    "alpha": 1.0,
}
DECODE = {name: ENCODE[name] for name in ENCODE if name not in ("mean", "thresholds", "alpha")}
DECODE |= {"levels": TABLES.levels, "first": 0}

BOTH: list[tuple[dict[str, Any], str]] = [
    ({"cache": torch.zeros(3, 16, 2, 64)}, "cache: the kernels take bf16 and fp16 only"),
    ({"cache": torch.zeros(3, 16, 1, 80).half()}, "channels: 80 is not a multiple of 64"),
    ({"cache": torch.zeros(3, 2, 16, 64).half().transpose(1, 2)}, "cache: strides .*must be adjacent"),
    ({"block_ids": torch.tensor([2, 0, 1])}, r"block_ids: is Long with 1 dimensions, expected int32 \[n\]"),
    ({"block_ids": torch.tensor([2, 0], dtype=torch.int32)}, "block_ids: 2 blocks of 16 do not hold token 39"),
    ({"start": 8}, "start: 8 is not a multiple of page"),
    ({"anchor": torch.zeros(2, 100, dtype=torch.uint8)}, "anchor: rows of 100 bytes"),
    ({"residual": torch.zeros(1, 4096, dtype=torch.uint8)}, "residual: has 1 rows"),
]
ONLY_ENCODE: list[tuple[dict[str, Any], str]] = [
    ({"page": 320, "anchor": ONE_PAGE, "residual": ONE_PAGE}, "page: 320, expected"),
    ({"alpha": 0.0}, "alpha: "),
    ({"page": 30, "chunk": 10}, "chunk: not a power of two"),
    ({"thresholds": torch.zeros(225)}, "thresholds: has 225 entries"),
]
ONLY_DECODE: list[tuple[dict[str, Any], str]] = [
    ({"levels": TABLES.anchor_levels}, "levels: has 16 entries, expected 256"),
    ({"first": 40}, "first: 40 is outside"),
]


def moved(arguments: dict[str, Any], device: str = "npu") -> dict[str, Any]:
    """Views keep their strides."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)

    return {name: move(value) for name, value in arguments.items()}


@pytest.mark.parametrize(("change", "message"), BOTH + ONLY_ENCODE)
def test_encode_names_the_bad_argument(change: dict[str, Any], message: str) -> None:
    torch.ops.lynx_ascend.encode(**moved(ENCODE))  # the call itself is sound
    with pytest.raises(RuntimeError, match=f"^{message}"):
        torch.ops.lynx_ascend.encode(**moved({**ENCODE, **change}))


@pytest.mark.parametrize(("change", "message"), BOTH + ONLY_DECODE)
def test_decode_names_the_bad_argument(change: dict[str, Any], message: str) -> None:
    torch.ops.lynx_ascend.decode(**moved(DECODE))
    with pytest.raises(RuntimeError, match=f"^{message}"):
        torch.ops.lynx_ascend.decode(**moved({**DECODE, **change}))


@pytest.mark.parametrize("name", ["block_ids", "anchor", "residual", "thresholds"])
def test_a_cpu_tensor_among_npu_tensors_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{name}: is on cpu, the cache on npu:0"):
        torch.ops.lynx_ascend.encode(**{**moved(ENCODE), name: ENCODE[name]})


def test_a_cpu_cache_among_npu_tensors_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"^block_ids: is on npu:0, the cache on cpu"):
        torch.ops.lynx_ascend.encode(**{**moved(ENCODE), "cache": ENCODE["cache"]})


def test_fake_npu_tensors_are_checked_and_compute_nothing() -> None:
    with FakeTensorMode():
        fake = {
            name: torch.empty(v.shape, dtype=v.dtype, device="npu") if isinstance(v, torch.Tensor) else v
            for name, v in {**ENCODE, **DECODE}.items()
        }
        assert fake["cache"].device.type == "npu"
        call_encode = {name: fake[name] for name in ENCODE}
        call_decode = {name: fake[name] for name in DECODE}
        assert torch.ops.lynx_ascend.encode(**call_encode) is None
        assert torch.ops.lynx_ascend.decode(**call_decode) is None
        with pytest.raises(RuntimeError, match=r"^anchor: has 2 rows, expected 1 pages"):
            torch.ops.lynx_ascend.encode(**{**call_encode, "tokens": 20})


def test_public_api_names_what_the_kernels_cannot_do() -> None:
    with pytest.raises(RuntimeError, match=r"^cache: the kernels take bf16 and fp16 only"):
        encode(torch.zeros(40, 2, 64).npu())
    with pytest.raises(RuntimeError, match=r"^channels: 80 is not a multiple of 64"):
        encode(torch.zeros(40, 1, 80).half().npu())
    frames = encode(torch.zeros(40, 1, 80).half()).frames("anchor")
    with pytest.raises(RuntimeError, match=r"^channels: 80 is not a multiple of 64"):
        EncodedKV.from_frames(frames, device="npu").decode("anchor")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ops._load_npu.cache_clear()

    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        RuntimeError, match=r"^cache: is on an NPU, but lynx_ascend\._npu could not be loaded .*ascend\.md"
    ):
        encode(torch.zeros(40, 2, 64).half().npu(), CodecConfig())
