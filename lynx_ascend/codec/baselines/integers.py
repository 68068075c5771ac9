"""INT8 and INT4 between minimum and maximum of a layer's tensor, of a channel, of a channel and chunk; Lynx-INT8.

Per tensor is what the Lynx paper (arXiv 2607.01831) compares with, by the serving method's own code.
Lynx-INT8 is its ablation "plain INT8 in two streams": the upper four bits of every code first. Per channel and chunk
is Lynx's grouping without its second normalisation, with fp16 metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lynx_ascend.codec.baselines import linear
from lynx_ascend.codec.baselines.affine import Affine, dequantise, grouped, quantise
from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import PayloadError, Reader, pack_codes, take_codes


@dataclass(frozen=True)
class TensorInt(Method):
    """One range for the tensor, fp32."""

    bits: Literal[4, 8]
    source = "Lynx, arXiv 2607.01831 (INT8, INT4)"

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        return [[_tensor_payload(x, self.bits)]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        shape = readers[0].shape
        size = linear.payload_bytes(torch.Size(shape).numel(), self.bits)
        return Decoded(_from_tensor_payload(readers[0].take("codes", torch.uint8, size), self.bits, shape))


@dataclass(frozen=True)
class ChannelInt(Method):
    """One range for each channel and `chunk` tokens (None: all), fp16."""

    bits: Literal[4, 8]
    chunk: int | None = None
    source = "textbook; chunks as in Lynx, arXiv 2607.01831, Alg. 1"

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        chunk = self.chunk or x.shape[0]
        affine = quantise(grouped(x.float(), chunk), self.bits, 1)
        codes = affine.codes.flatten(0, 1)[: x.shape[0]]
        return [[affine.low, affine.scale, pack_codes(codes, self.bits)]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        reader = readers[0]
        tokens, heads, dim = reader.shape
        chunk = self.chunk or tokens
        low, scale = (reader.take(name, torch.half, -(-tokens // chunk), 1, heads, dim) for name in ("low", "scale"))
        codes = grouped(take_codes(reader, "codes", self.bits, *reader.shape), chunk)
        return Decoded(dequantise(Affine(codes, low, scale)).flatten(0, 1)[:tokens])


@dataclass(frozen=True)
class SplitInt8(Method):
    """INT8 over the tensor, upper nibbles first; from them alone a value is the middle of its sixteen codes."""

    source = "Lynx, arXiv 2607.01831 (Lynx-INT8)"
    num_streams: ClassVar[int] = 2

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        payload = _tensor_payload(x, 8)
        limits, codes = payload[:8], payload[8:]
        return [[limits, pack_codes(codes >> 4, 4)], [pack_codes(codes & 15, 4)]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        shape = readers[0].shape
        low, scale = readers[0].take("limits", torch.float32, 2).double().tolist()
        codes = take_codes(readers[0], "upper", 4, *shape).double() * 16
        codes += take_codes(readers[1], "lower", 4, *shape) if len(readers) == 2 else 7.5
        return Decoded(low + codes * scale)


def _tensor_payload(x: Tensor, bits: int) -> Tensor:
    payload = torch.empty(linear.payload_bytes(x.numel(), bits), dtype=torch.uint8)
    low, high = x.float().aminmax()
    linear.encode(x, linear.measure(low, high, bits), bits, payload)
    return payload


def _from_tensor_payload(payload: Tensor, bits: int, shape: tuple[int, int, int]) -> Tensor:
    if wrong := linear.bad_range(payload):
        raise PayloadError(f"{wrong}: no encoder writes it")
    return linear.decode(payload, bits, shape, torch.float32)
