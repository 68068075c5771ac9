"""CacheGen: deltas to the first token of each group of ten, bins that widen with the layer, arithmetic coding.

Liu et al., "CacheGen: KV Cache Compression and Streaming for Fast Large Language Model Serving", SIGCOMM 2024 (arXiv
2310.07240), its KV encoder: anchor tokens are quantised by vector to 8 bits, the other tokens of a group as their
difference to it, with bins of 0.5, 1 and 1.5 in the first, second and last third of the layers (the default level).
Codes go through a range coder (the library `constriction`) with a distribution for each channel and layer. What the
paper leaves open: bins are in units of the standard deviation of a tensor's differences, one width for all of its
channels. Simplified: a channel's distribution is a normal one whose parameters are sent (fp16), where the paper has
profiles that were taken beforehand; differences are taken to the anchor as the receiver has it. There is no streaming
in several qualities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import PayloadError, Reader

_ANCHORS = 127  # largest symbol of an anchor token, 8 bits
_DELTAS = 16383  # and of a difference; a thousand standard deviations at the default level
_NARROWEST = 0.1  # deviation of a channel's symbols, for the coder: 0 would leave no room for others


@dataclass(frozen=True)
class CacheGen(Method):
    """`group` tokens share an anchor token; `bins` by third of the layers."""

    group: int = 10
    bins: tuple[float, float, float] = (0.5, 1.0, 1.5)
    source = "CacheGen, arXiv 2310.07240"

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        rows = x.float().flatten(1)
        if float(rows.abs().max()) > torch.finfo(torch.half).max / 4:
            raise ValueError("x: a value beyond a quarter of fp16's range, in which scales are sent")
        scale = (rows[:: self.group].abs().amax(1, keepdim=True) / _ANCHORS).half()
        anchors = _divided(rows[:: self.group], scale.float(), _ANCHORS)
        deltas = self._without_anchors(rows - (anchors * scale.float()).repeat_interleave(self.group, 0)[: len(rows)])
        width = (self.bins[3 * context.layer // context.layers] * deltas.square().mean().sqrt()).nan_to_num(0).half()
        symbols = _divided(deltas, width.float(), _DELTAS)
        return [[scale, width.view(1), *_compressed(anchors, _ANCHORS), *_compressed(symbols, _DELTAS)]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        reader = readers[0]
        tokens, heads, dim = reader.shape
        groups = -(-tokens // self.group)
        scale = reader.take("scale", torch.half, groups, 1).float()
        width = reader.take("width", torch.half, 1).float()
        anchors = _decompressed(reader, "anchors", _ANCHORS, groups, heads * dim) * scale
        deltas = _decompressed(reader, "deltas", _DELTAS, tokens - groups, heads * dim) * width
        rows = anchors.repeat_interleave(self.group, 0)[:tokens]
        rows[self._not_anchors(tokens)] += deltas
        return Decoded(rows.view(reader.shape))

    def _without_anchors(self, rows: Tensor) -> Tensor:
        return rows[self._not_anchors(len(rows))]

    def _not_anchors(self, tokens: int) -> Tensor:
        return torch.arange(tokens) % self.group != 0


def _divided(rows: Tensor, width: Tensor, largest: int) -> Tensor:
    """Symbols -largest .. largest, fp32; 0 where the width is."""
    return (rows / width).nan_to_num(0, 0, 0).round().clamp(-largest, largest)


def _compressed(symbols: Tensor, largest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each column's mean and deviation (fp16), the number of words, and the range coder's words."""
    import constriction

    mean = symbols.mean(0).nan_to_num(0).half()
    deviation = (symbols - mean.float()).square().mean(0).sqrt().nan_to_num(0).half()
    coder = constriction.stream.queue.RangeEncoder()
    if symbols.numel():
        model = constriction.stream.model.QuantizedGaussian(-largest, largest)
        coder.encode(symbols.reshape(-1).to(torch.int32).numpy(), model, *_parameters(mean, deviation, len(symbols)))
    words = torch.from_numpy(coder.get_compressed().astype("int32"))
    return torch.stack([mean, deviation]), torch.tensor([len(words)], dtype=torch.int32), words


def _decompressed(reader: Reader, name: str, largest: int, rows: int, columns: int) -> Tensor:
    """What _compressed took, fp32."""
    import constriction

    mean, deviation = reader.take(f"{name}, distribution", torch.half, 2, columns)
    words = reader.take(name, torch.int32, int(reader.take(f"{name}, size", torch.int32, 1)[0]))
    if not bool(mean.isfinite().all()) or not bool((deviation.isfinite() & (deviation >= 0)).all()):
        raise PayloadError(f"{name}, distribution: no means and deviations")
    if not rows:
        return torch.empty(rows, columns)
    coder = constriction.stream.queue.RangeDecoder(words.numpy().astype("uint32"))
    model = constriction.stream.model.QuantizedGaussian(-largest, largest)
    symbols = coder.decode(model, *_parameters(mean, deviation, rows))
    return torch.from_numpy(symbols).float().view(rows, columns)


def _parameters(mean: Tensor, deviation: Tensor, rows: int) -> tuple[Any, Any]:
    """A column's for each of its symbols, fp64 as the coder wants them."""
    narrowest = deviation.double().clamp_min(_NARROWEST)
    return mean.double().repeat(rows).numpy(), narrowest.repeat(rows).numpy()
