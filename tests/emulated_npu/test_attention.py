"""npu_fused_infer_attention_score, called through torch_npu, against attention computed pair by pair."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch_npu

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 16, 16
MASK = torch.ones(2048, 2048, dtype=torch.int8).triu(1)
LENGTHS = [(1, 40), (7, 7), (5, 33)]  # of each sequence: queries, keys
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, before: float, after: float) -> torch.Tensor:
    """One sequence, number by number: query i of n is at position (keys - n + i) and sees keys in its window."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for i in range(len(q)):
        position = len(k) - len(q) + i
        seen = [j for j in range(len(k)) if position - before <= j <= position + after]
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = [
                math.exp(sum((q[i, head].double() * k[j, group].double()).tolist()) / math.sqrt(SIZE)) for j in seen
            ]
            for score, j in zip(scores, seen, strict=True):
                out[i, head] += score / sum(scores) * v[j, group].double()
    return out


class Case:
    """Random sequences, and the operator's arguments for them, paged or one after the other."""

    def __init__(self, dtype: torch.dtype, paged: bool, kv_dtype: torch.dtype | None = None) -> None:
        torch.manual_seed(3)
        kv_dtype = kv_dtype or dtype
        self.q = [torch.randn(n, HEADS, SIZE).to(dtype) for n, _ in LENGTHS]
        self.k, self.v = ([torch.randn(n, KV_HEADS, SIZE).to(kv_dtype) for _, n in LENGTHS] for _ in range(2))
        ends = [sum(n for n, _ in LENGTHS[: i + 1]) for i in range(len(LENGTHS))]
        self.tensors = [torch.cat(self.q).npu()]
        self.arguments: dict[str, Any] = {
            "actual_seq_lengths": ends,
            "num_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "scale": 1 / math.sqrt(SIZE),
            "input_layout": "TND",
        }
        if not paged:
            self.tensors += [torch.cat(self.k).npu(), torch.cat(self.v).npu()]
            self.arguments["actual_seq_lengths_kv"] = [sum(n for _, n in LENGTHS[: i + 1]) for i in range(len(LENGTHS))]
            return
        table = torch.randperm(12).view(3, 4).to(torch.int32)
        for sequences in (self.k, self.v):
            cache = torch.full((12, BLOCK, KV_HEADS * SIZE), 1e4).to(kv_dtype)  # seen by mistake, it shows
            for blocks, rows in zip(table.tolist(), sequences, strict=True):
                for j, row in enumerate(rows):
                    cache[blocks[j // BLOCK], j % BLOCK] = row.flatten()
            self.tensors.append(cache.npu())
        self.arguments |= {
            "actual_seq_lengths_kv": [n for _, n in LENGTHS],
            "block_table": table.npu(),
            "block_size": BLOCK,
        }

    def run(self, **more: Any) -> torch.Tensor:
        out, rest = torch_npu.npu_fused_infer_attention_score(*self.tensors, **{**self.arguments, **more})
        assert rest.cpu().tolist() == [0.0]
        assert out.device.type == "npu"
        return out.cpu()

    def expected(self, before: float, after: float) -> torch.Tensor:
        return torch.cat([naive(*qkv, before, after) for qkv in zip(self.q, self.k, self.v, strict=True)])


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("mode", "window"),
    [(0, (math.inf, math.inf)), (3, (math.inf, 0)), (4, (6, 0)), (4, (3, 2))],
    ids=["unmasked", "causal", "band", "wide band"],
)
def test_attention(mode: int, window: tuple[float, float], dtype: torch.dtype, paged: bool) -> None:
    case = Case(dtype, paged)
    more: dict[str, Any] = {"sparse_mode": mode}
    if mode:
        more["atten_mask"] = MASK.npu()
    if mode == 4:
        more |= {"pre_tokens": window[0], "next_tokens": window[1]}
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(case.run(**more).double(), case.expected(*window), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.bfloat16])
def test_float32_queries_on_a_16_bit_cache(kv_dtype: torch.dtype) -> None:
    """Nothing is rounded again: the result is float32's, as close as on a float32 cache."""
    case = Case(torch.float32, paged=True, kv_dtype=kv_dtype)
    out = case.run(sparse_mode=3, atten_mask=MASK.npu())
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), case.expected(math.inf, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "paged", "kv_dtype"),
    [
        (torch.float16, True, torch.float32),
        (torch.float16, True, torch.bfloat16),
        (torch.float32, False, torch.float16),
        (torch.float32, True, torch.float64),
    ],
)
def test_attention_refuses_other_mixed_dtypes(dtype: torch.dtype, paged: bool, kv_dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"key: dtype {kv_dtype}, query's {dtype}"):
        Case(dtype, paged, kv_dtype).run()


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"input_layout": "BSH"}, NotImplementedError, "input_layout 'BSH'"),
        ({"sparse_mode": 2}, NotImplementedError, "sparse_mode 2"),
        ({"softmax_lse_flag": True}, NotImplementedError, "argument softmax_lse_flag is not emulated"),
        ({"inner_precise": 1}, NotImplementedError, "argument inner_precise is not emulated"),
        ({"atten_mask": MASK}, NotImplementedError, "atten_mask with sparse_mode 0"),
        ({"sparse_mode": 3}, ValueError, r"needs \[2048, 2048\]"),
        ({"sparse_mode": 3, "atten_mask": 1 - MASK}, ValueError, "above the diagonal alone"),
        ({"num_heads": 3}, ValueError, "num_heads: 3, query has 4"),
        ({"num_key_value_heads": 3}, ValueError, "num_key_value_heads: 3 does not divide 4"),
        ({"actual_seq_lengths": [1, 8, 12]}, ValueError, "actual_seq_lengths: ends at 12, of 13"),
        ({"actual_seq_lengths": [8, 1, 13]}, ValueError, "is not cumulative"),
        ({"actual_seq_lengths": None}, ValueError, "actual_seq_lengths: must be given"),
        ({"actual_seq_lengths_kv": [65, 7, 33]}, ValueError, "4 blocks a sequence, 5 needed"),
        ({"actual_seq_lengths_kv": [40, 7]}, ValueError, "2 sequences, actual_seq_lengths 3"),
        (
            {"actual_seq_lengths_kv": [40, 6, 33], "sparse_mode": 3, "atten_mask": MASK},
            ValueError,
            "sees none of 6 keys",
        ),
        ({"block_size": 8}, ValueError, "block_size: 8"),
        ({"block_table": torch.full((3, 4), 12, dtype=torch.int32)}, ValueError, r"block_table: \[12, 12, 12\] of 12"),
    ],
)
def test_attention_refuses(more: dict[str, Any], error: type[Exception], message: str) -> None:
    more = {key: value.npu() if isinstance(value, torch.Tensor) else value for key, value in more.items()}
    with pytest.raises(error, match=message):
        Case(torch.float32, paged=True).run(**more)
