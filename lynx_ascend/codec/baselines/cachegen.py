"""CacheGen: deltas to the first token of each group of ten, bins that widen with the layer, arithmetic coding.

Liu et al., "CacheGen: KV Cache Compression and Streaming for Fast Large Language Model Serving", SIGCOMM 2024 (arXiv
2310.07240), its KV encoder: anchor tokens are quantised by vector to 8 bits, the other tokens of a group as their
difference to it, with bins of 0.5, 1 and 1.5 in the first, second and last third of the layers (the default level).
Codes go through a range coder (the library `constriction`). Simplified: bins are in units of a channel's standard
deviation of differences (sent, fp16), which also takes the place of the paper's offline profile of each channel's
distribution: one histogram a tensor is sent instead; differences are taken to the anchor as the receiver has it.
There is no streaming in several qualities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import PayloadError, Reader

_SYMBOLS = 255  # -127 .. 127


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
        scale = (rows[:: self.group].abs().amax(1, keepdim=True) / 127).half()
        anchors = _divided(rows[:: self.group], scale.float())
        deltas = self._without_anchors(rows - (anchors * scale.float()).repeat_interleave(self.group, 0)[: len(rows)])
        width = (self.bins[3 * context.layer // context.layers] * _deviation(deltas)).half()
        return [[scale, width, *_compressed(anchors), *_compressed(_divided(deltas, width.float()))]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        reader = readers[0]
        tokens, heads, dim = reader.shape
        groups = -(-tokens // self.group)
        scale = reader.take("scale", torch.half, groups, 1).float()
        width = reader.take("width", torch.half, heads * dim).float()
        anchors = _decompressed(reader, "anchors", groups, heads * dim) * scale
        deltas = _decompressed(reader, "deltas", tokens - groups, heads * dim) * width
        rows = anchors.repeat_interleave(self.group, 0)[:tokens]
        rows[self._not_anchors(tokens)] += deltas
        return Decoded(rows.view(reader.shape))

    def _without_anchors(self, rows: Tensor) -> Tensor:
        return rows[self._not_anchors(len(rows))]

    def _not_anchors(self, tokens: int) -> Tensor:
        return torch.arange(tokens) % self.group != 0


def _deviation(rows: Tensor) -> Tensor:
    """Of each column; 0 where there are no rows."""
    return rows.square().mean(0).sqrt().nan_to_num(0)


def _divided(rows: Tensor, width: Tensor) -> Tensor:
    """Symbols -127 .. 127, fp32; 0 where the width is."""
    return (rows / width).nan_to_num(0, 0, 0).round().clamp(-127, 127)


def _compressed(symbols: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The histogram (uint16, as int16), the number of words, and the range coder's words of symbols in -127 .. 127."""
    import constriction

    flat = symbols.reshape(-1).to(torch.int64) + 127
    counts = torch.bincount(flat, minlength=_SYMBOLS)
    # Counts are scaled to 16 bits; a symbol that occurs keeps at least 1.
    share = (counts * 0xFFFF // counts.max().clamp_min(1)).clamp_min((counts > 0).long())
    histogram = share.to(torch.int32).view(torch.int16)[::2].contiguous()
    coder = constriction.stream.queue.RangeEncoder()
    if flat.numel():
        coder.encode(
            flat.to(torch.int32).numpy(), constriction.stream.model.Categorical(share.double().numpy(), perfect=False)
        )
    words = torch.from_numpy(coder.get_compressed().astype("int32"))
    return histogram, torch.tensor([len(words)], dtype=torch.int32), words


def _decompressed(reader: Reader, name: str, *shape: int) -> Tensor:
    """What _compressed took, fp32."""
    import constriction

    share = reader.take(f"{name}, histogram", torch.int16, _SYMBOLS).long() & 0xFFFF
    words = reader.take(name, torch.int32, int(reader.take(f"{name}, size", torch.int32, 1)[0]))
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty(shape)
    if not int(share.sum()):
        raise PayloadError(f"{name}, histogram: empty")
    coder = constriction.stream.queue.RangeDecoder(words.numpy().astype("uint32"))
    symbols = coder.decode(constriction.stream.model.Categorical(share.double().numpy(), perfect=False), count)
    return torch.from_numpy(symbols).float().view(shape) - 127
