"""Affine quantisation with 16-bit metadata, which the integer methods and KIVI share; not a method itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_LARGEST = torch.finfo(torch.float16).max


class Affine(NamedTuple):
    """x_hat = low + code * scale. codes: uint8 of x's shape; low, scale: fp16, of size 1 where x was reduced."""

    codes: Tensor
    low: Tensor
    scale: Tensor


def quantise(x: Tensor, bits: int, dim: int) -> Affine:
    """x, fp32, between its minimum and its maximum along `dim`.

    Raises:
        ValueError: values whose range fp16 cannot hold.
    """
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    if float(torch.maximum(low.abs(), high - low).max()) > _LARGEST:
        raise ValueError(f"x: a range beyond fp16 ({_LARGEST:.0f}), in which the metadata is sent")
    low = low.half()
    scale = ((high - low) / (2**bits - 1)).clamp_min(0).half()
    # Where the scale is 0 in fp16 there is nothing to tell apart: code 0.
    codes = ((x - low) / scale.float()).nan_to_num(0, 0, 0).round().clamp(0, 2**bits - 1)
    return Affine(codes.to(torch.uint8), low, scale)


def dequantise(affine: Affine) -> Tensor:
    """The reconstruction, fp32."""
    return affine.low.float() + affine.codes.float() * affine.scale.float()


def grouped(x: Tensor, group: int, dim: int = 0) -> Tensor:
    """x with `dim` split into [groups, group]; its last slice is repeated, which changes no minimum and no maximum."""
    rows = padded(x, group, dim)
    return rows.reshape(*rows.shape[:dim], -1, group, *rows.shape[dim + 1 :])


def padded(x: Tensor, multiple: int, dim: int = 0) -> Tensor:
    """x with its last slice along `dim` repeated up to a multiple."""
    missing = -x.shape[dim] % multiple
    return torch.cat([x, x.narrow(dim, x.shape[dim] - 1, 1).repeat_interleave(missing, dim)], dim)
