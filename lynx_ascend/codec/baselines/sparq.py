"""SparQ: decoding reads only the tokens whose approximate scores are highest. It saves reads at decode, no transfer.

After Ribar et al., "SparQ Attention: Bandwidth-Efficient LLM Inference", ICML 2024 (arXiv 2312.04985), its first two
steps: scores come from the query's largest components, and the highest tokens are attended to exactly. The whole cache
is sent, in full. Simplified: no mean-value reallocation (the third step) and no local window; each query head chooses
for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.uncompressed import Uncompressed


@dataclass(frozen=True)
class SparQ(Uncompressed):
    """The `components` largest of a query choose `top` tokens."""

    components: int = 32
    top: int = 128
    source = "after SparQ, arXiv 2312.04985, without its mean-value reallocation"

    def visible(self, query: Tensor, key: Tensor, kept: Tensor | None) -> Tensor | None:
        if key.shape[1] <= self.top:
            return None
        index = query.abs().topk(min(self.components, query.shape[2]), 2).indices
        sparse = torch.zeros_like(query).scatter_(2, index, query.gather(2, index))
        chosen = (sparse @ key.transpose(1, 2)).topk(self.top, 2).indices
        return torch.zeros(query.shape[:2] + key.shape[1:2], dtype=torch.bool).scatter_(2, chosen, True)
