"""TurboQuant (the MSE variant): a random rotation makes every vector look normal, and one set of levels serves all.

Zandieh et al., "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate" (arXiv 2504.19874),
Algorithm 1: a token's vector of one head is divided by its norm (sent, fp16), rotated, and each coordinate takes the
nearest Lloyd-Max level. Simplified: the rotation is a Hadamard matrix with random signs (a random orthogonal one
where head_dim is no power of two), levels are those of the normal distribution, which the paper's beta distribution
tends to, and there are neither outlier channels nor the inner-product variant's QJL stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import Reader, pack_codes, take_codes


@dataclass(frozen=True)
class TurboQuant(Method):
    """`bits` a coordinate; `seed` of the rotation, which both sides know."""

    bits: Literal[4, 8]
    seed: int = 0
    source = "TurboQuant, arXiv 2504.19874, Alg. 1 (MSE)"

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        norm = x.float().norm(dim=2, keepdim=True)
        if float(norm.max()) > torch.finfo(torch.half).max:
            raise ValueError("x: a norm beyond fp16, in which it is sent")
        dim, levels = x.shape[2], _levels(2**self.bits)
        unit = (x.float() / norm).nan_to_num(0, 0, 0) @ _rotation(dim, self.seed) * math.sqrt(dim)
        return [[norm.half(), pack_codes(torch.bucketize(unit, (levels[1:] + levels[:-1]) / 2), self.bits)]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        tokens, heads, dim = readers[0].shape
        norm = readers[0].take("norm", torch.half, tokens, heads, 1).float()
        codes = take_codes(readers[0], "codes", self.bits, tokens, heads, dim)
        return Decoded(_levels(2**self.bits)[codes.long()] @ _rotation(dim, self.seed).T * (norm / math.sqrt(dim)))


@lru_cache
def _rotation(dim: int, seed: int) -> Tensor:
    """An orthogonal matrix, fp32 [dim, dim]."""
    generator = torch.Generator().manual_seed(seed)
    if dim & (dim - 1):
        orthogonal: Tensor = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
        return orthogonal.float()
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (dim, 1), generator=generator) * 2 - 1
    rotation: Tensor = signs * matrix / math.sqrt(dim)
    return rotation


@lru_cache
def _levels(count: int) -> Tensor:
    """The Lloyd-Max levels of the normal distribution, fp32 [count] ascending."""
    # Panter and Dite: asymptotically the levels follow a normal distribution that is sqrt(3) times as wide.
    start = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    levels = torch.special.ndtri(start) * math.sqrt(3)
    ends = torch.tensor([-math.inf, math.inf], dtype=torch.float64)
    for _ in range(20_000):
        edges = torch.cat([ends[:1], (levels[1:] + levels[:-1]) / 2, ends[1:]])
        density = (-edges.square() / 2).exp() / math.sqrt(2 * math.pi)
        new = -density.diff() / torch.special.ndtr(edges).diff()
        moved = float((new - levels).abs().max())
        levels = new
        if moved < 1e-7:
            break
    symmetric: Tensor = (levels - levels.flip(0)) / 2
    return symmetric.float()
