"""The emulated operators, called through torch_npu, against loops over single numbers, written from their pages."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch_npu

from tests.emulated_npu.stand_ins import compute_slot_mapping

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = list(TOLERANCE)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(1)


def assert_near(actual: torch.Tensor, expected: Any, dtype: torch.dtype) -> None:
    assert actual.device.type == "npu" and actual.dtype == dtype
    torch.testing.assert_close(
        actual.cpu().double(),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=TOLERANCE[dtype],
        atol=TOLERANCE[dtype],
    )


def rms(row: list[float], gamma: list[float], epsilon: float) -> tuple[list[float], float]:
    root = math.sqrt(sum(x * x for x in row) / len(row) + epsilon)
    return [x / root * g for x, g in zip(row, gamma, strict=True)], 1 / root


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, gamma = torch.randn(5, 24).to(dtype), torch.randn(24).to(dtype)
    y, reciprocal = torch_npu.npu_rms_norm(x.npu(), gamma.npu(), 1e-5)
    expected = [rms(row, gamma.tolist(), 1e-5) for row in x.tolist()]
    assert_near(y, [row for row, _ in expected], dtype)
    assert_near(reciprocal, [[value] for _, value in expected], torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(dtype: torch.dtype) -> None:
    a, b, gamma = torch.randn(5, 24).to(dtype), torch.randn(5, 24).to(dtype), torch.randn(24).to(dtype)
    y, reciprocal, total = torch_npu.npu_add_rms_norm(a.npu(), b.npu(), gamma.npu(), 1e-5)
    added = [[p + q for p, q in zip(*rows, strict=True)] for rows in zip(a.tolist(), b.tolist(), strict=True)]
    expected = [rms(row, gamma.tolist(), 1e-5) for row in added]
    assert_near(total, added, dtype)
    assert_near(y, [row for row, _ in expected], dtype)
    assert_near(reciprocal, [[value] for _, value in expected], torch.float32)


def test_rms_norm_over_two_dimensions() -> None:
    x, gamma = torch.randn(3, 4, 5), torch.randn(4, 5)
    y, reciprocal = torch_npu.npu_rms_norm(x.npu(), gamma.npu())
    expected = [rms(rows.flatten().tolist(), gamma.flatten().tolist(), 1e-6) for rows in x]
    assert_near(y.flatten(1), [row for row, _ in expected], torch.float32)
    assert reciprocal.shape == (3, 1, 1)


def test_rms_norm_refuses() -> None:
    x = torch.ones(2, 8).npu()
    with pytest.raises(ValueError, match="gamma: shape"):
        torch_npu.npu_rms_norm(x, torch.ones(7).npu())
    with pytest.raises(ValueError, match=r"gamma: dtype torch.float16 does not go with input's torch.float32"):
        torch_npu.npu_rms_norm(x, torch.ones(8).half().npu())
    with pytest.raises(ValueError, match="input: dtype"):
        torch_npu.npu_rms_norm(x.int(), torch.ones(8).npu())
    with pytest.raises(ValueError, match="x2: shape"):
        torch_npu.npu_add_rms_norm(x, torch.ones(3, 8).npu(), torch.ones(8).npu())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [-1, 0])
def test_swiglu(dtype: torch.dtype, dim: int) -> None:
    x = torch.randn(6, 10).to(dtype)
    half = x.shape[dim] // 2
    gate, up = (x[:half], x[half:]) if dim == 0 else (x[:, :half], x[:, half:])
    pairs = zip(gate.flatten().tolist(), up.flatten().tolist(), strict=True)
    expected = torch.tensor([a / (1 + math.exp(-a)) * b for a, b in pairs]).view(gate.shape)
    assert_near(torch_npu.npu_swiglu(x.npu(), dim), expected, dtype)
    with pytest.raises(ValueError, match="is odd"):
        torch_npu.npu_swiglu(torch.ones(2, 3).npu())


@pytest.mark.parametrize("with_k", [True, False])
@pytest.mark.parametrize("with_p", [True, False])
def test_top_k_top_p(with_k: bool, with_p: bool) -> None:
    logits = torch.randn(6, 40) * 3
    k = torch.tensor([1, 3, 10, 40, 7, 20], dtype=torch.int32)
    p = torch.tensor([0.5, 0.9, 0.0, 1.0, 0.3, 0.99])
    out = torch_npu.npu_top_k_top_p(logits.npu(), p.npu() if with_p else None, k.npu() if with_k else None).cpu()
    for row, count, mass, kept in zip(logits.tolist(), k.tolist(), p.tolist(), out.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda i: row[i])
        survivors = order[-count:] if with_k else order
        if with_p:
            total = sum(math.exp(row[i]) for i in survivors)
            cumulated, few = 0.0, []
            for i in survivors:  # from the least probable on: the tail of mass 1 - p goes
                cumulated += math.exp(row[i]) / total
                if cumulated > 1 - mass or i == survivors[-1]:
                    few.append(i)
            survivors = few
        assert kept == [x if i in survivors else -math.inf for i, x in enumerate(row)]


def test_top_k_top_p_refuses() -> None:
    logits = torch.randn(2, 5).npu()
    with pytest.raises(ValueError, match="k: not all"):
        torch_npu.npu_top_k_top_p(logits, None, torch.tensor([0, 2], dtype=torch.int32).npu())
    with pytest.raises(ValueError, match="not int32"):
        torch_npu.npu_top_k_top_p(logits, None, torch.tensor([1, 2]).npu())
    with pytest.raises(ValueError, match="p: not all"):
        torch_npu.npu_top_k_top_p(logits, torch.tensor([0.5, 1.5]).npu(), None)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_embedding(neox: bool, dtype: torch.dtype) -> None:
    size, positions = 8, torch.tensor([0, 5, 3])
    angles = torch.rand(10, size // 2) * 6
    table = torch.cat((angles.cos(), angles.sin()), -1)
    inputs = [torch.randn(3, heads * size).to(dtype) for heads in (3, 1)]
    on_device = [x.npu() for x in inputs]
    assert torch_npu._npu_rotary_embedding(positions.npu(), *on_device, size, table.npu(), neox) is None
    for x, turned in zip(inputs, on_device, strict=True):
        expected = x.double().clone()
        for token, position in enumerate(positions.tolist()):
            for head in range(x.shape[1] // size):
                for i in range(size // 2):
                    a, b = (i, i + size // 2) if neox else (2 * i, 2 * i + 1)
                    p, q = (float(x[token, head * size + j]) for j in (a, b))
                    angle = float(angles[position, i])
                    expected[token, head * size + a] = p * math.cos(angle) - q * math.sin(angle)
                    expected[token, head * size + b] = q * math.cos(angle) + p * math.sin(angle)
        assert_near(turned, expected, dtype)


def test_rotary_embedding_refuses() -> None:
    positions, x, table = torch.arange(2).npu(), torch.ones(2, 16).npu(), torch.ones(4, 8).npu()
    with pytest.raises(ValueError, match="key: shape"):
        torch_npu._npu_rotary_embedding(positions, x, torch.ones(2, 12).npu(), 8, table, True)
    with pytest.raises(ValueError, match="cos_sin_cache"):
        torch_npu._npu_rotary_embedding(positions, x, x.clone(), 16, table, True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reshape_and_cache(dtype: torch.dtype) -> None:
    """float32 rows; a narrower cache takes them rounded."""
    blocks, size = 3, 4
    key, value = torch.randn(5, 2, 6), torch.randn(5, 2, 6)
    slots = [11, 0, -1, 5, 2]
    caches = [fill(blocks, size, 2, 6, dtype=dtype).npu() for fill in (torch.zeros, torch.ones)]
    torch_npu._npu_reshape_and_cache(
        key=key.npu(),
        value=value.npu(),
        key_cache=caches[0],
        value_cache=caches[1],
        slot_indices=torch.tensor(slots, dtype=torch.int32).npu(),
    )
    for rows, cache, filler in ((key, caches[0], 0.0), (value, caches[1], 1.0)):
        for slot in range(blocks * size):
            written = rows[slots.index(slot)] if slot in slots else torch.full((2, 6), filler)
            written = written.to(dtype)
            assert torch.equal(cache.cpu()[slot // size, slot % size], written), slot


def test_reshape_and_cache_refuses() -> None:
    rows, cache = torch.ones(2, 2, 6).npu(), torch.zeros(3, 4, 2, 6).npu()

    def call(slots: torch.Tensor, cache: torch.Tensor, rows: torch.Tensor = rows) -> None:
        torch_npu._npu_reshape_and_cache(rows, rows, cache, cache, slots.npu())

    with pytest.raises(ValueError, match="12 of 12 slots"):
        call(torch.tensor([0, 12], dtype=torch.int32), cache)
    with pytest.raises(ValueError, match="not int32"):
        call(torch.tensor([0, 1]), cache)
    for other in (cache, cache.bfloat16()):
        with pytest.raises(ValueError, match=f"dtype torch.float16, its cache's {other.dtype}"):
            call(torch.tensor([0, 1], dtype=torch.int32), other, rows.half())
    with pytest.raises(ValueError, match=r"dtype torch.float32, its cache's torch.int8"):
        call(torch.tensor([0, 1], dtype=torch.int32), cache.to(torch.int8))
    assert not cache.cpu().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matmul_add_fp32(dtype: torch.dtype) -> None:
    x, weight, c = torch.randn(4, 3).to(dtype), torch.randn(4, 5).to(dtype), torch.randn(3, 5)
    out = c.npu()
    torch_npu._npu_matmul_add_fp32(x.npu(), weight.npu(), out)
    products = [[sum(float(x[k, i] * 1.0) * float(weight[k, j]) for k in range(4)) for j in range(5)] for i in range(3)]
    assert_near(out, c.double() + torch.tensor(products), torch.float32)
    with pytest.raises(ValueError, match="do not fit"):
        torch_npu._npu_matmul_add_fp32(x.npu(), weight.npu(), out.t().contiguous())


def test_slot_mapping() -> None:
    block_size, counts, begins = 4, [3, 1, 6], [0, 9, 2]
    table = torch.tensor([[7, 8, 9], [3, 1, 2], [5, 6, 4]], dtype=torch.int32)
    positions = [begin + i for begin, count in zip(begins, counts, strict=True) for i in range(count)]
    rows = [row for row, count in enumerate(counts) for _ in range(count)]
    out = torch.full((16,), 99, dtype=torch.int32).npu()
    starts = torch.tensor([0, 3, 4, 10], dtype=torch.int32).npu()
    constants = {"TOTAL_CP_RANK": 0, "CP_KV_CACHE_INTERLEAVE_SIZE": 1, "PAD_ID": -1, "BLOCK_SIZE": 1024}
    arguments = (10, 14, starts, torch.tensor(positions).npu(), table.npu(), 3, block_size, out)
    compute_slot_mapping(*arguments, TOTAL_CP_WORLD_SIZE=1, **constants)
    expected = [
        int(table[r, p // block_size]) * block_size + p % block_size for r, p in zip(rows, positions, strict=True)
    ]
    assert out.cpu().tolist() == [*expected, -1, -1, -1, -1, 99, 99]
    with pytest.raises(NotImplementedError, match="TOTAL_CP_WORLD_SIZE 2"):
        compute_slot_mapping(*arguments, TOTAL_CP_WORLD_SIZE=2, **constants)
