"""npu_top_k_top_p. Ascend/op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_top_k_top_p.md."""

from __future__ import annotations

import torch

from tests.emulated_npu.operators.register import FLOATS, kernel, require


@kernel("npu::npu_top_k_top_p")
def npu_top_k_top_p(logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None) -> torch.Tensor:
    """Logits [rows, words] with -inf for words that are not among the k largest or the most probable of mass p."""
    require(logits.dtype in FLOATS, f"logits: dtype {logits.dtype} is not one of {FLOATS}")
    require(logits.dim() == 2, f"logits: {logits.dim()} dimensions, not 2")
    rows, words = logits.shape
    ascending, order = logits.sort(dim=-1, stable=True)
    if k is not None:
        require(
            k.dtype == torch.int32 and k.shape == (rows,), f"k: {k.dtype} of {tuple(k.shape)}, not int32 of ({rows},)"
        )
        require(bool(((k >= 1) & (k <= words)).all()), f"k: not all of {k.tolist()} within 1 to {words}")
        kth = ascending.gather(1, (words - k.long())[:, None])
        ascending = ascending.masked_fill(ascending < kth, -torch.inf)
    if p is not None:
        require(
            p.dtype == logits.dtype and p.shape == (rows,), f"p: {p.dtype} of {tuple(p.shape)}, not as logits' rows"
        )
        require(bool(((p >= 0) & (p <= 1)).all()), f"p: not all of {p.tolist()} within 0 to 1")
        dropped = ascending.float().softmax(-1).cumsum(-1) <= 1 - p.float()[:, None]
        dropped[:, -1] = False
        ascending = ascending.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter_(1, order, ascending)
