"""KVQuant: non-uniform levels, K by channel and V by token, with and without 1 % sparse outliers.

Hooper et al., "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization", NeurIPS 2024
(arXiv 2401.18079): K by channel and V by token, nuqX (one set of levels a layer on values normalised to [-1, 1]),
per-vector dense-and-sparse (outliers of each vector apart), attention-sink-aware (the first token in full precision).
Simplified: K is coded after RoPE, since a transferred cache holds it so (the paper's is before RoPE); levels come from
k-means on the tensor itself without sensitivity weights, and are sent (the paper calibrates both offline); each vector
has the same number of outliers on either side (the paper's are those beyond a quantile).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import PayloadError, Reader, pack_codes, take_codes

_BINS = 4096  # of the histogram on which k-means works


@dataclass(frozen=True)
class KVQuant(Method):
    """`bits` a code; `outliers` of each vector, half of them on either side, as (fp16 value, uint16 index)."""

    bits: Literal[2, 4]
    outliers: float = 0.0
    source = "KVQuant, arXiv 2401.18079"

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        vectors = _vectors(x[1:].float(), context.is_value)  # [vectors, length]
        flag = torch.tensor([context.is_value], dtype=torch.uint8)
        if not vectors.numel():
            return [[flag, x[:1]]]
        side = self._per_side(vectors.shape[1])
        order = vectors.argsort(dim=1, stable=True)
        index = torch.cat([order[:, :side], order[:, vectors.shape[1] - side :]], 1)
        values = vectors.gather(1, index)
        low, high = (vectors.gather(1, order[:, i : i + 1]) for i in (side, vectors.shape[1] - side - 1))
        center, half = _half((low + high) / 2), _half((high - low) / 2)
        unit = ((vectors - center.float()) / half.float()).nan_to_num(0, 0, 0).clamp(-1, 1)
        levels = _k_means(unit, 2**self.bits)
        codes = torch.bucketize(unit, (levels[1:] + levels[:-1]) / 2)
        # numpy-free uint16: the lower half of an int32
        packed = index.to(torch.int32).contiguous().view(torch.int16)[:, ::2]
        return [[flag, levels, center, half, pack_codes(codes, self.bits), packed, _half(values), x[:1]]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        reader = readers[0]
        tokens, heads, dim = reader.shape
        is_value = bool(reader.take("kind", torch.uint8, 1)[0])
        rest = torch.empty(0, heads, dim)
        if tokens > 1:
            count, length = (tokens - 1, heads * dim) if is_value else (heads * dim, tokens - 1)
            levels = reader.take("levels", torch.float32, 2**self.bits)
            center, half = (reader.take(name, torch.half, count, 1).float() for name in ("center", "half"))
            vectors = levels[take_codes(reader, "codes", self.bits, count, length).long()] * half + center
            side = self._per_side(length)
            index = reader.take("outlier index", torch.int16, count, 2 * side).long() & 0xFFFF
            if index.numel() and int(index.max()) >= length:
                raise PayloadError(f"outlier index: {int(index.max())} of {length}")
            vectors.scatter_(1, index, reader.take("outliers", torch.half, count, 2 * side).float())
            rest = (vectors if is_value else vectors.T).reshape(tokens - 1, heads, dim)
        return Decoded(torch.cat([reader.take("first", reader.dtype, 1, heads, dim).float(), rest]))

    def _per_side(self, length: int) -> int:
        if self.outliers and length > 0xFFFF:
            raise ValueError(f"x: {length} elements in a vector, more than an outlier's index holds (65535)")
        return min(round(length * self.outliers / 2 + 0.5) if self.outliers else 0, (length - 1) // 2)


def _vectors(x: Tensor, is_value: bool) -> Tensor:
    """[tokens, channels] if V, otherwise [channels, tokens]."""
    rows = x.flatten(1)
    return rows if is_value else rows.T.contiguous()


def _half(x: Tensor) -> Tensor:
    if float(x.abs().max() if x.numel() else 0) > torch.finfo(torch.half).max:
        raise ValueError("x: a value beyond fp16, in which outliers and ranges are sent")
    return x.half()


def _k_means(x: Tensor, count: int) -> Tensor:
    """Lloyd's levels of x in [-1, 1], fp32 [count] ascending, on a histogram, from its quantiles."""
    weight = torch.histc(x, _BINS, -1, 1).double()
    middle = (torch.arange(_BINS, dtype=torch.float64) + 0.5) * (2 / _BINS) - 1
    mass, moment = weight.cumsum(0), (weight * middle).cumsum(0)
    at = torch.searchsorted(mass, (torch.arange(count, dtype=torch.float64) + 0.5) / count * mass[-1])
    levels = middle[at.clamp_max(_BINS - 1)]
    for _ in range(100):
        edges = torch.searchsorted(middle, (levels[1:] + levels[:-1]) / 2)
        total, first = (
            torch.cat([s.new_zeros(1), torch.cat([s.new_zeros(1), s])[edges], s[-1:]]) for s in (mass, moment)
        )
        inside = total.diff()
        new = torch.where(inside > 0, first.diff() / inside.clamp_min(1), levels)
        if torch.equal(new, levels):
            break
        levels = new
    return levels.float()
