"""Token dropping: what the prompt's end attends to and the latest tokens are sent in full, the others not at all.

After Liu et al., "Scissorhands: Exploiting the Persistence of Importance Hypothesis for LLM KV Cache Compression at
Test Time", NeurIPS 2023 (arXiv 2305.17118): what was attended to lately will be attended to again.
Lossy: dropped tokens are masked out. Simplified: importance is the attention mass of the prompt's last tokens for a
KV head (Scissorhands counts, in its window, how often a token's weight is below the average), every layer has the
same budget, and nothing is dropped later on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import PayloadError, Reader, pack_codes, take_codes


@dataclass(frozen=True)
class HeavyHitters(Method):
    """Keeps `fraction` of the tokens of each head: of the last `recent` as many as that allows, then the heaviest."""

    fraction: float
    recent: int = 64
    source = "after Scissorhands, arXiv 2305.17118"

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        tokens, heads, _ = x.shape
        if context.importance is None or context.importance.shape != (tokens, heads):
            given = None if context.importance is None else tuple(context.importance.shape)
            raise ValueError(f"importance: {given}, not [tokens, heads] = {(tokens, heads)}")
        score = context.importance.float().clone()
        budget = self._budget(tokens)
        score[tokens - min(self.recent, budget) :] = torch.inf
        top = score.argsort(dim=0, descending=True, stable=True)[:budget]
        kept = torch.zeros(tokens, heads, dtype=torch.bool).scatter_(0, top, True)
        return [[pack_codes(kept, 1), x[kept]]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        reader = readers[0]
        tokens, heads, dim = reader.shape
        kept = take_codes(reader, "kept", 1, tokens, heads).bool()
        if bool((kept.sum(0) != self._budget(tokens)).any()):
            raise PayloadError(f"kept: {kept.sum(0).tolist()} tokens by head, not {self._budget(tokens)}")
        values = torch.zeros(tokens, heads, dim, dtype=reader.dtype)
        values[kept] = reader.take("values", reader.dtype, int(kept.sum()), dim)
        return Decoded(values, kept)

    def _budget(self, tokens: int) -> int:
        return min(tokens, max(1, round(self.fraction * tokens)))
