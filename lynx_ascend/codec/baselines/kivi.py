"""KIVI: K by channel, V by token, in groups of 32, the latest tokens in full precision.

Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024 (arXiv 2402.02750), the
prefill phase of Algorithm 1: of K the last tokens % 128 tokens and of V the last 128 stay in full precision, the
rest is quantised between minimum and maximum, K in groups of 32 tokens of a channel, V in groups of 32 channels of a
token (a smaller head_dim is one group). Metadata is fp16. K is coded after RoPE, as in KIVI. Nothing was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.affine import Affine, dequantise, grouped, quantise
from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import Reader, pack_codes, take_codes


@dataclass(frozen=True)
class KIVI(Method):
    """`bits` a code, groups of `group`, at most `window` tokens in full precision."""

    bits: Literal[2, 4]
    group: int = 32
    window: int = 128
    source = "KIVI, arXiv 2402.02750, Alg. 1 (prefill)"

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        coded = self._coded(x.shape[0], context.is_value)
        flag = torch.tensor([context.is_value], dtype=torch.uint8)
        if not coded:
            return [[flag, x]]
        dim = 2 if context.is_value else 0
        rows = grouped(x[:coded].float(), self.group, dim)
        affine = quantise(rows, self.bits, dim + 1)
        codes = affine.codes.flatten(dim, dim + 1)[:, :, : x.shape[2]]
        return [[flag, affine.low, affine.scale, pack_codes(codes, self.bits), x[coded:]]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        reader = readers[0]
        tokens, heads, dim = reader.shape
        is_value = bool(reader.take("kind", torch.uint8, 1)[0])
        coded = self._coded(tokens, is_value)
        parts = []
        if coded:
            groups = -(-dim // self.group)
            sizes = (coded, heads, groups, 1) if is_value else (coded // self.group, 1, heads, dim)
            low, scale = (reader.take(name, torch.half, *sizes) for name in ("low", "scale"))
            axis = 2 if is_value else 0
            codes = grouped(take_codes(reader, "codes", self.bits, coded, heads, dim), self.group, axis)
            rows = dequantise(Affine(codes, low, scale)).flatten(axis, axis + 1)
            parts.append(rows[:, :, :dim])
        parts.append(reader.take("window", reader.dtype, tokens - coded, heads, dim).float())
        return Decoded(torch.cat(parts))

    def _coded(self, tokens: int, is_value: bool) -> int:
        """Tokens that are quantised: of K a multiple of the window, and so of the group."""
        return max(0, tokens - self.window) if is_value else tokens - tokens % self.window
