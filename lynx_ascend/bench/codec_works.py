"""What `lynx-ascend bench codec` times, and checks: kernels, PyTorch reference and INT8, on one paged cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from lynx_ascend import _C
from lynx_ascend.codec import ops
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import page_layout
from lynx_ascend.codec.reference import decode_page, encode_page

from . import int8
from .rounds import Work

CODECS = {
    "grid": CodecConfig(),
    "grid-a1": CodecConfig(alpha=1.0),
    "pair": CodecConfig(codec="pair"),
    "alg1": CodecConfig(codec="alg1"),
}
BLOCK_SIZE, HEADS, HEAD_DIM = 128, 8, 128
CHANNELS = HEADS * HEAD_DIM
TOKEN_BYTES = 2 * CHANNELS  # bf16
REFERENCE_TOKENS = 1024
INT8_SLICE = 1024  # tokens, 2 MiB of bf16: the fastest of 256, 1024, 4096 and 16384 where they were compared
INT8_WHOLE, INT8_SLICED = "int8", "int8-sliced"
_POISON = 0xA5  # what the first round's outputs hold before they are written


class WrongResult(RuntimeError):
    """What was timed did not compute what it should."""


@dataclass(frozen=True)
class Cache:
    """The values: bf16 `source` and `target` [blocks, 128, 8, 128], of which target is written; a shuffled table."""

    source: Tensor
    target: Tensor
    block_ids: Tensor

    @classmethod
    def drawn(cls, tokens: int) -> Cache:
        """Normal values. tokens: a multiple of 256."""
        generator = torch.Generator().manual_seed(0)
        blocks = tokens // BLOCK_SIZE
        source = torch.empty(blocks, BLOCK_SIZE, HEADS, HEAD_DIM, dtype=torch.bfloat16).normal_(generator=generator)
        return cls(source, torch.ones_like(source), torch.randperm(blocks, generator=generator))

    @property
    def tokens(self) -> int:
        """Tokens of the whole buffer."""
        return self.source.shape[0] * BLOCK_SIZE

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer."""
        return self.tokens * TOKEN_BYTES

    def page(self, of: Tensor, index: int, size: int) -> Tensor:
        """Tokens index * size .. of `of`, [size, heads, head_dim], through the block table."""
        blocks = self.block_ids[index * size // BLOCK_SIZE : (index + 1) * size // BLOCK_SIZE]
        return of[blocks].view(size, HEADS, HEAD_DIM)


class KernelWorks:
    """The compiled kernels of one codec. In the first round every output starts poisoned; then pages at the start, in
    the middle and at the end must equal the reference, and the whole output must be the same with every thread count.
    """

    def __init__(self, name: str, cache: Cache) -> None:
        self.name, self.config, self.cache = name, CODECS[name], cache
        page = self.config.page
        pages = cache.tokens // page
        layouts = [page_layout(self.config, torch.bfloat16, page, CHANNELS, start) for start in (0, page)]
        self.anchor = torch.empty(pages, max(at.anchor_bytes for at in layouts), dtype=torch.uint8)
        self.residual = torch.empty(pages, max(at.residual_bytes for at in layouts), dtype=torch.uint8)
        self.expected = {
            index: encode_page(cache.page(cache.source, index, page), self.config, index * page)
            for index in sorted({0, pages // 2, pages - 1})
        }
        self.digests: dict[str, str] = {}

    def works(self) -> Iterator[Work]:
        """Encode comes first: the others decode what it wrote."""
        payloads, values = (self.anchor, self.residual), (self.cache.target,)
        yield self._work("encode", self._encode, self._check_encode, payloads)
        yield self._work("anchor decode", lambda: self._decode(None), lambda: self._check_decode(False), values)
        yield self._work("full decode", lambda: self._decode(self.residual), lambda: self._check_decode(True), values)

    def _work(
        self, kernel: str, run: Callable[[], None], check: Callable[[], None], outputs: tuple[Tensor, ...]
    ) -> Work:
        return Work(_C.isa(), self.name, kernel, self.cache.nbytes, run, lambda: _poison(outputs), check)

    def _encode(self) -> None:
        ops.encode(
            self.cache.source, self.cache.block_ids, 0, self.cache.tokens, self.config, self.anchor, self.residual
        )

    def _decode(self, residual: Tensor | None) -> None:
        ops.decode(self.anchor, residual, 0, self.cache.tokens, self.config, self.cache.block_ids, self.cache.target)

    def _check_encode(self) -> None:
        for index, payloads in self.expected.items():
            for stream, rows, payload in zip(
                ("anchor", "residual"), (self.anchor, self.residual), payloads, strict=True
            ):
                if not torch.equal(rows[index, : payload.numel()], payload):
                    raise self._wrong("encode", f"{stream} of page {index} differs from the reference")
        self._check_digest("encode", self.anchor, self.residual)

    def _check_decode(self, full: bool) -> None:
        kernel = "full decode" if full else "anchor decode"
        page = self.config.page
        for index, (anchor, residual) in self.expected.items():
            shape = (page, HEADS, HEAD_DIM)
            fine = residual if full else None
            wanted = decode_page(anchor, fine, self.config, shape, torch.bfloat16, index * page)
            if not torch.equal(self.cache.page(self.cache.target, index, page), wanted):
                raise self._wrong(kernel, f"page {index} differs from the reference")
        self._check_digest(kernel, self.cache.target)

    def _check_digest(self, kernel: str, *outputs: Tensor) -> None:
        digest = " ".join(_digest(output) for output in outputs)
        if self.digests.setdefault(kernel, digest) != digest:
            raise self._wrong(kernel, f"{torch.get_num_threads()} threads computed other bytes than 1")

    def _wrong(self, kernel: str, what: str) -> WrongResult:
        return WrongResult(f"{_C.isa()} {self.name} {kernel}: {what}")


def reference_works(name: str, cache: Cache) -> Iterator[Work]:
    """The definition in PyTorch, on the first REFERENCE_TOKENS tokens only."""
    config = CODECS[name]
    page = config.page
    count = min(REFERENCE_TOKENS, cache.tokens) // page
    shape = (page, HEADS, HEAD_DIM)
    pages = [cache.page(cache.source, index, page) for index in range(count)]
    payloads = [encode_page(x, config, index * page) for index, x in enumerate(pages)]

    def encode() -> None:
        for index, x in enumerate(pages):
            encode_page(x, config, index * page)

    def decode(full: bool) -> None:
        for index, (anchor, residual) in enumerate(payloads):
            decode_page(anchor, residual if full else None, config, shape, torch.bfloat16, index * page)

    nbytes = count * page * TOKEN_BYTES
    yield Work("reference", name, "encode", nbytes, encode)
    yield Work("reference", name, "anchor decode", nbytes, lambda: decode(False))
    yield Work("reference", name, "full decode", nbytes, lambda: decode(True))


def int8_works(cache: Cache) -> Iterator[Work]:
    """The INT8 quantiser over the whole buffer at once, and over slices whose intermediate values stay in cache."""
    source, target = (values.view(-1, CHANNELS) for values in (cache.source, cache.target))
    whole = int8.Int8.empty(cache.tokens, CHANNELS)

    def check() -> None:
        x, got, part = source[:INT8_SLICE].float(), target[:INT8_SLICE].float(), whole.split(INT8_SLICE)[0]
        # Half a step, a rounding to bf16, and a few of fp32.
        bound = 0.51 * part.scale.expand(part.codes.shape).reshape(x.shape) + 2.0**-8 * x.abs()
        if not bool(((x - got).abs() <= bound).all()):
            raise WrongResult("int8: a value is more than half a step off")

    for method, tokens in ((INT8_WHOLE, cache.tokens), (INT8_SLICED, INT8_SLICE)):
        parts = list(zip(torch.split(source, tokens), torch.split(target, tokens), whole.split(tokens), strict=True))

        def quantise(parts: list[tuple[Tensor, Tensor, int8.Int8]] = parts) -> None:
            for x, _, codes in parts:
                int8.quantise(x, codes)

        def dequantise(parts: list[tuple[Tensor, Tensor, int8.Int8]] = parts) -> None:
            for _, x, codes in parts:
                int8.dequantise(codes, x)

        yield Work("PyTorch", method, "quantise", cache.nbytes, quantise, lambda: _poison(whole))
        yield Work("PyTorch", method, "dequantise", cache.nbytes, dequantise, lambda: _poison((target,)), check)


def _poison(outputs: tuple[Tensor, ...]) -> None:
    for output in outputs:
        output.view(torch.uint8).fill_(_POISON)


def _digest(values: Tensor) -> str:
    """XXH3-64 of contiguous values."""
    size = values.numel() * values.element_size()
    return xxhash.xxh3_64_hexdigest((ctypes.c_char * size).from_address(values.data_ptr()))
