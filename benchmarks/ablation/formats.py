"""What is compared: the shipped codecs, by their kernels, and trial formats in plain PyTorch that are not shipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lynx_ascend.codec import ops
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import page_layout

SINK = CodecConfig().sink_tokens


class Pair(NamedTuple):
    """What a receiver has of x, [layers, tokens, heads, head_dim] bf16: after the anchor, and after both streams."""

    anchor: Tensor
    full: Tensor


class Part(Protocol):
    """A way to code K or V."""

    def reconstruct(self, x: Tensor) -> Pair: ...

    def bits(self, tokens: int, channels: int) -> tuple[float, float]:
        """Bits an element of the anchor and of both streams, metadata and raw rows included, frame headers not."""


@dataclass(frozen=True)
class Shipped:
    """A CodecConfig, by the kernels."""

    config: CodecConfig

    def reconstruct(self, x: Tensor) -> Pair:
        layers, tokens, heads, dim = x.shape
        page = page_layout(self.config, x.dtype, min(self.config.page, tokens), heads * dim)
        pages = -(-tokens // self.config.page)
        anchor = torch.empty(pages, page.anchor_bytes, dtype=torch.uint8)
        residual = torch.empty(pages, (self.config.page * heads * dim + 1) // 2, dtype=torch.uint8)
        pair, block = Pair(torch.empty_like(x), torch.empty_like(x)), torch.zeros(1, dtype=torch.int64)
        for layer in range(layers):
            ops.encode(x[layer : layer + 1], block, 0, tokens, self.config, anchor, residual)
            ops.decode(anchor, None, 0, tokens, self.config, block, pair.anchor[layer : layer + 1])
            ops.decode(anchor, residual, 0, tokens, self.config, block, pair.full[layer : layer + 1])
        return pair

    def bits(self, tokens: int, channels: int) -> tuple[float, float]:
        config, anchor, residual = self.config, 0, 0
        for start in range(0, tokens, config.page):
            page = page_layout(config, torch.bfloat16, min(config.page, tokens - start), channels, start)
            anchor, residual = anchor + page.anchor_bytes, residual + page.residual_bytes
        return 8 * anchor / (tokens * channels), 8 * (anchor + residual) / (tokens * channels)


@dataclass(frozen=True)
class Grid:
    """The linear grid in plain fp32 with other widths: anchor_bits + residual_bits codes, metadata of `metadata` bits
    (0: fp32, not quantised)."""

    anchor_bits: int = 4
    residual_bits: int = 4
    metadata: int = 8
    chunk: int = 32
    page: int = 256
    sink: int = SINK

    def reconstruct(self, x: Tensor) -> Pair:
        tokens = x.shape[1]
        rows = _padded(x.float(), self.page).unflatten(1, (-1, self.page // self.chunk, self.chunk))
        pages = rows.flatten(2, 3)
        g0, g1 = pages.amin(2).unsqueeze(2), pages.amax(2).unsqueeze(2)
        c, s = self._center_and_scale(rows.amin(3), rows.amax(3), g0, g1)
        fine = 2.0 ** (self.anchor_bits + self.residual_bits - self._widths(s))
        c, s = c.unsqueeze(3), s.unsqueeze(3)
        n = (2.0 ** (self.anchor_bits + self.residual_bits) - fine) / 2
        index = (((rows - c) / s.clamp_min(1e-30)).clamp(-1, 1) * n + n).round()
        coarse = ((index + fine / 2 - 1) / fine).floor() * fine
        parts = ((c + s * (level / n - 1)).flatten(1, 3)[:, :tokens].to(x.dtype) for level in (coarse, index))
        return _raw_first(Pair(*parts), x, self.sink)

    def _widths(self, s: Tensor) -> Tensor:
        """Bits in the anchor, to go with s.unsqueeze(3). s: [layers, pages, chunks, heads, head_dim]."""
        return torch.tensor(float(self.anchor_bits))

    def _center_and_scale(self, low: Tensor, high: Tensor, g0: Tensor, g1: Tensor) -> tuple[Tensor, Tensor]:
        c = (low + high) / 2
        if not self.metadata:
            return c, high - c
        half, mid, largest = ((g1 - g0) / 2).clamp_min(1e-30), (g1 + g0) / 2, 2**self.metadata - 1
        mu = ((c - mid) / half * (largest / 2) + largest / 2).round().clamp(0, largest)
        c = torch.minimum(torch.maximum(mid + (mu - largest / 2) * (half / (largest / 2)), g0), g1)
        sigma = (torch.maximum(high - c, c - low) / half * largest).ceil().clamp_max(largest)
        return c, sigma / largest * half

    def bits(self, tokens: int, channels: int) -> tuple[float, float]:
        chunks = sum(-(-min(self.page, tokens - start) // self.chunk) for start in range(0, tokens, self.page))
        gamma = 2 * 16 * -(-tokens // self.page) if self.metadata else 0
        metadata = (2 * (self.metadata or 32) * chunks + gamma + 16 * self.sink) / tokens
        coded = 1 - self.sink / tokens
        return coded * self.anchor_bits + metadata, coded * (self.anchor_bits + self.residual_bits) + metadata


@dataclass(frozen=True)
class Paired(Grid):
    """Two channels of a head share 8 bits of the anchor: whose scales, summed over a page, are `fifth` times its
    partner's has 5, `sixth` times 6. Partners are neighbours ("next"), a half head apart ("half": rotated together by
    RoPE), a quarter ("quarter": codec `pair`), or, of all channels in order of scale, the first and the last and so on
    ("sorted": what a free choice would give)."""

    partner: str = "quarter"
    fifth: float = 1.5
    sixth: float = 6.0

    def _widths(self, s: Tensor) -> Tensor:
        extent = s.sum(2)
        dim = extent.shape[3]
        places = torch.arange(dim).expand_as(extent)
        if self.partner == "sorted":
            order = extent.argsort(3, descending=True)
            first, second = order[..., : dim // 2], order[..., dim // 2 :].flip(3)
        else:
            apart = {"next": 1, "quarter": dim // 4, "half": dim // 2}[self.partner]
            first, second = places.unflatten(3, (-1, 2, apart)).unbind(4)
            first, second = first.flatten(3), second.flatten(3)
        a, b = extent.gather(3, first), extent.gather(3, second)
        more = sum((a > times * b).float() - (b > times * a).float() for times in (self.fifth, self.sixth))
        widths = torch.empty_like(extent).scatter(3, first, 4 + more).scatter(3, second, 4 - more)
        return widths[:, :, None, None]

    def bits(self, tokens: int, channels: int) -> tuple[float, float]:
        widths = 2 * -(-tokens // self.page) / tokens  # a nibble a pair, of sorted ones not told which they are
        anchor, full = super().bits(tokens, channels)
        return anchor + widths, full + widths


@dataclass(frozen=True)
class TokenGroups:
    """Each token in groups of channels (KIVI's way with V), linear 4 + 4 bits, fp32 metadata."""

    group: int = 32

    def reconstruct(self, x: Tensor) -> Pair:
        rows = x.float().unflatten(3, (-1, self.group))
        low, high = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
        c, s = (high + low) / 2, ((high - low) / 2).clamp_min(1e-30)
        index = ((rows - c) / s * 120 + 120).round()
        coarse = ((index + 7) / 16).floor() * 16
        parts = ((c + s * (level / 120 - 1)).flatten(3).to(x.dtype) for level in (coarse, index))
        return _raw_first(Pair(*parts), x, SINK)

    def bits(self, tokens: int, channels: int) -> tuple[float, float]:
        coded, raw = 1 - SINK / tokens, 16 * SINK / tokens
        return coded * (4 + 64 / self.group) + raw, coded * (8 + 64 / self.group) + raw


@dataclass(frozen=True)
class Linear:
    """INT4 (as the anchor) and INT8 (as both) between minimum and maximum, over a layer's tensor or per channel."""

    per: str = "tensor"

    def reconstruct(self, x: Tensor) -> Pair:
        over = (1, 2, 3) if self.per == "tensor" else (1,)
        low, high = x.float().amin(over, keepdim=True), x.float().amax(over, keepdim=True)
        parts = []
        for bits in (4, 8):
            scale = ((high - low) / (2**bits - 1)).clamp_min(1e-30)
            parts.append((low + ((x.float() - low) / scale).round() * scale).to(x.dtype))
        return Pair(*parts)

    def bits(self, tokens: int, channels: int) -> tuple[float, float]:
        metadata = 64 / tokens / (channels if self.per == "tensor" else 1)
        return 4 + metadata, 8 + metadata


@dataclass(frozen=True)
class Variant:
    """One row of the tables: how K and V are coded. `family` groups rows that vary one thing."""

    name: str
    family: str
    key: Part
    value: Part

    def bits(self, tokens: int, channels: int) -> tuple[float, float]:
        """Of K and V together."""
        anchor, full = zip(*(part.bits(tokens, channels) for part in (self.key, self.value)), strict=True)
        return sum(anchor) / 2, sum(full) / 2


def _both(name: str, family: str, part: Part) -> Variant:
    return Variant(name, family, part, part)


def variants() -> list[Variant]:
    """All rows: the default, then what departs from it in one thing, by family."""
    rows = [_both("default", "default", Shipped(CodecConfig()))]

    def vary(family: str, setting: str, values: Sequence[object]) -> None:
        configs = ((value, CodecConfig(**{setting: value})) for value in values)  # type: ignore[arg-type]
        rows.extend(_both(f"{setting} {value}", family, Shipped(config)) for value, config in configs)

    vary("compander", "alpha", [0.5, 1.0, 2.0, 5.0, 15.0, 100.0, 500.0, 2000.0])
    vary("centre", "center", ["mean"])
    vary("chunk", "chunk", [8, 16, 64])
    vary("page", "page", [128, 512])
    vary("sink", "sink_tokens", [0, 1, 16])
    rows += [
        _both(f"metadata {bits} bits" if bits else "metadata fp32", "metadata", Grid(metadata=bits))
        for bits in (0, 8, 6, 5)
    ]
    rows += [_both(f"{bits} + {8 - bits}", "bit split", Grid(bits, 8 - bits)) for bits in (2, 3, 5, 6)]
    rows.append(Variant("K 5 + 3, V 3 + 5", "bit split", Grid(5, 3), Grid(3, 5)))
    rows.append(Variant("K 3 + 5, V 5 + 3", "bit split", Grid(3, 5), Grid(5, 3)))
    narrow, wide = Shipped(CodecConfig(chunk=16)), Shipped(CodecConfig())
    rows.append(Variant("K chunk 16, V chunk 32", "K and V", narrow, wide))
    rows.append(Variant("K chunk 32, V chunk 16", "K and V", wide, narrow))
    rows.append(Variant("V by token, groups of 32", "K and V", wide, TokenGroups()))
    for alpha in (0.5, 1.0, 2.0):
        rows.append(_both(f"chunk 16, alpha {alpha:g}", "chunk", Shipped(CodecConfig(chunk=16, alpha=alpha))))
    rows.append(_both("pair", "pairs", Shipped(CodecConfig("pair"))))
    rows += [_both(f"pair, chunk {chunk}", "pairs", Shipped(CodecConfig("pair", chunk=chunk))) for chunk in (16, 64)]
    rows += [_both(f"pair, {partner}", "pairs", Paired(partner=partner)) for partner in ("next", "half", "sorted")]
    for fifth, sixth in ((1.1, 3.0), (1.25, 4.0), (1.5, 4.0), (1.5, 8.0), (2.0, 6.0), (2.0, 10.0), (3.0, 12.0)):
        rows.append(_both(f"pair, from {fifth:g} and {sixth:g}", "pairs", Paired(fifth=fifth, sixth=sixth)))
    rows.append(_both("alg1", "published", Shipped(CodecConfig("alg1", sink_tokens=0))))
    rows.append(_both("alg1, raw sink", "published", Shipped(CodecConfig("alg1"))))
    rows.append(_both("INT4 | INT8, tensor", "published", Linear()))
    rows.append(_both("INT4 | INT8, channel", "published", Linear("channel")))
    return rows


def _padded(x: Tensor, page: int) -> Tensor:
    """The last token repeated up to whole pages: that changes no minimum, maximum or midrange."""
    return torch.cat([x, x[:, -1:].expand(-1, -x.shape[1] % page, -1, -1)], 1)


def _raw_first(pair: Pair, x: Tensor, tokens: int) -> Pair:
    for part in pair:
        part[:, :tokens] = x[:, :tokens]
    return pair
