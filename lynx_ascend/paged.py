"""Pages of a paged KV cache to frames and back: one interface for every method, which is what serving uses."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from .buffers import FrameBuffer, as_tensor, wait
from .codec import ops
from .codec.baselines import linear, raw
from .codec.cache import PagedKV
from .codec.config import CodecConfig, Stream
from .codec.layout import bad_metadata
from .frame import CodecId, Frame, FrameHeader, seal
from .methods import (
    LINEAR_BITS,
    METHODS,
    TORCH_DTYPES,
    frame_header,
    frame_layout,
    frames_expected,
    method_codec,
    method_config,
    num_pages,
    payload_bytes,
    streams,
    wire_bytes,
)

__all__ = [
    "METHODS",
    "NonFiniteError",
    "PageEncoder",
    "PagedKV",
    "check_frame",
    "decode_page",
    "frame_header",
    "frames_expected",
    "num_pages",
    "streams",
    "wire_bytes",
    "write_page",
]


class NonFiniteError(ValueError):
    """A page holds NaN or Inf, which no codec may hide.

    Attributes:
        layer, is_value, page: where.
    """

    def __init__(self, layer: int, is_value: bool, page: int) -> None:
        self.layer, self.is_value, self.page = layer, is_value, page
        super().__init__(f"layer {layer}, {'V' if is_value else 'K'}, page {page}: holds NaN or Inf")


class PageEncoder:
    """Encodes one layer's K or V page by page, so that page i can be on the wire while page i + 1 is encoded.

    From an NPU the current stream of the calling thread encodes and copies; each page is waited for.

    Args:
        method: a name of METHODS. source: where the `tokens` first tokens of the sequence are.
        layer, is_value, generation: what the frames' headers say. config: None for the method's default.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        method: str,
        source: PagedKV,
        tokens: int,
        *,
        layer: int,
        is_value: bool,
        generation: int,
        config: CodecConfig | None = None,
    ) -> None:
        self._codec, self._config, self._streams = method_codec(method), method_config(method, config), streams(method)
        if tokens < 1:
            raise ValueError(f"tokens: {tokens} is not positive")
        source.check(tokens)
        self._device = source.cache.device
        self._method, self._source, self._tokens = method, source, tokens
        self._layer, self._is_value, self._generation = layer, is_value, generation
        self.num_pages = num_pages(tokens, self._config.page)

    def page(self, index: int) -> dict[Stream, bytearray | memoryview]:
        """The sealed frames of page `index`, one for each of the method's streams.

        Raises:
            IndexError: there is no such page. NonFiniteError: it holds NaN or Inf (int8, int4: any page does).
            RuntimeError: the cache's device has no kernels, or not for this cache (docs/ops.md).
        """
        if not 0 <= index < self.num_pages:
            raise IndexError(f"page {index} is outside 0 .. {self.num_pages - 1}")
        headers = {stream: self._header(stream, index) for stream in self._streams}
        device = self._device if self._codec.is_split else torch.device("cpu")
        frames = {stream: FrameBuffer(header.payload_bytes, device) for stream, header in headers.items()}
        anchor, payload = headers[Stream.ANCHOR], frames[Stream.ANCHOR].payload
        if self._codec.is_split:
            self._encode_split(anchor, frames[Stream.ANCHOR], frames[Stream.RESIDUAL])
        elif self._codec is CodecId.RAW:
            values = self._gather(index)
            self._ends(index, values)
            raw.encode(values, payload)
        else:
            linear.encode(self._gather(index), self._range, LINEAR_BITS[self._codec], payload)
        for stream, frame in frames.items():
            seal(frame.data, headers[stream])
        return {stream: frame.data for stream, frame in frames.items()}

    def _header(self, stream: Stream, index: int) -> FrameHeader:
        heads, head_dim = self._source.cache.shape[2:]
        return frame_header(
            self._method,
            stream,
            index,
            tokens=self._tokens,
            heads=heads,
            head_dim=head_dim,
            dtype=self._source.cache.dtype,
            layer=self._layer,
            is_value=self._is_value,
            generation=self._generation,
            config=self._config,
        )

    @cached_property
    def _table(self) -> Tensor:
        return _block_table(self._source)

    def _encode_split(self, header: FrameHeader, anchor: FrameBuffer, residual: FrameBuffer) -> None:
        ops.encode(
            self._source.cache,
            self._table,
            header.token_offset,
            header.tokens,
            self._config,
            anchor.target.unsqueeze(0),
            residual.target.unsqueeze(0),
        )
        anchor.fetch()
        residual.fetch()
        wait(self._device)
        # min and max propagate NaN and Inf, so gamma tells whether the whole page is finite.
        if bad_metadata(anchor.payload, frame_layout(header)):
            raise NonFiniteError(self._layer, self._is_value, header.page_index)

    def _gather(self, index: int) -> Tensor:
        """The page's values on the CPU."""
        start = index * self._config.page
        return self._source.gather(start, min(self._config.page, self._tokens - start)).cpu()

    def _ends(self, index: int, x: Tensor) -> Tensor:
        """Smallest and largest value [2] of page `index`; they propagate NaN and Inf, far faster than isfinite(x)."""
        ends = torch.stack(x.aminmax())
        if not bool(ends.isfinite().all()):
            raise NonFiniteError(self._layer, self._is_value, index)
        return ends

    @cached_property
    def _range(self) -> linear.Range:
        """Of all pages. Taken with the first one, so that other layers' pages are on the wire meanwhile."""
        ends = [self._ends(index, self._gather(index)) for index in range(self.num_pages)]
        low, high = torch.stack(ends).float().aminmax()
        return linear.measure(low, high, LINEAR_BITS[self._codec])


def check_frame(frame: Frame) -> None:
    """Raises FrameError unless the payload is one that the header's codec can have written.

    What EXACT holds can be judged only against the reconstruction: EncodedKV.decode does that.
    """
    header = frame.header
    if header.stream is Stream.EXACT:
        return
    if header.payload_bytes != payload_bytes(header):
        raise header.error("payload_bytes", f"{header.payload_bytes}, but its fields imply {payload_bytes(header)}")
    payload = as_tensor(frame.payload, torch.device("cpu"))
    if header.codec is CodecId.RAW:
        field = raw.bad_values(payload, TORCH_DTYPES[header.dtype])
    elif not header.codec.is_split:
        field = linear.bad_range(payload)
    else:
        field = bad_metadata(payload, frame_layout(header)) if header.stream is Stream.ANCHOR else None
    if field:
        raise header.error(field, "holds a value that no encoder writes")
    if _nibbles(header) % 2 and int(payload[-1]) > 15:
        raise header.error("codes", "the last high nibble is not 0")


def decode_page(anchor: Frame, residual: Frame | None, target: PagedKV, *, first: int = 0) -> None:
    """Reconstructs one page into the paged cache, from the anchor alone or from both.

    Args:
        anchor, residual: parsed frames of the same page. target: where the sequence's tokens go.
        first: absolute position before which nothing is written (those blocks belong to someone else).

    Raises:
        FrameError: a frame that is not what its header says, does not fit its partner, or does not fit the target.
        ValueError: the target itself is malformed.
    """
    target.check(0)
    _check_fit(anchor.header, target)
    check_frame(anchor)
    if residual is not None:
        _check_partner(anchor.header, residual)
        check_frame(residual)
    write_page(anchor, residual, target, first=first)


def write_page(anchor: Frame, residual: Frame | None, target: PagedKV, *, first: int = 0) -> None:
    """`decode_page` without its checks, for a receiver that made them when the frames arrived.

    Both headers must be those expected for this target, and `check_frame` must have accepted the anchor. Into an NPU's
    cache everything is queued on the current stream: copies of the payloads, which may change meanwhile, and a kernel.
    """
    header = anchor.header
    start, end = header.token_offset, header.token_offset + header.tokens
    if first >= end:
        return
    first = max(first, start)
    if header.codec.is_split:
        _decode_split(anchor, residual, target, first)
        return
    payload = as_tensor(anchor.payload, torch.device("cpu"))
    shape, dtype = (header.tokens, header.heads, header.head_dim), TORCH_DTYPES[header.dtype]
    if header.codec is CodecId.RAW:
        values = raw.decode(payload, shape, dtype)
    else:
        values = linear.decode(payload, LINEAR_BITS[header.codec], shape, dtype)
    target.scatter(first, values[first - start :])


def _decode_split(anchor: Frame, residual: Frame | None, target: PagedKV, first: int) -> None:
    header, device = anchor.header, target.cache.device
    ops.decode(
        as_tensor(anchor.payload, device).unsqueeze(0),
        None if residual is None else as_tensor(residual.payload, device).unsqueeze(0),
        header.token_offset,
        header.tokens,
        header.config(),
        _block_table(target),
        target.cache,
        first,
    )


def _block_table(kv: PagedKV) -> Tensor:
    return ops.block_table(kv.block_ids, kv.cache.device) if kv.table is None else kv.table


def _check_fit(header: FrameHeader, target: PagedKV) -> None:
    if header.stream is not Stream.ANCHOR:
        raise header.error("stream", f"{header.stream.name} given as the anchor")
    _, block_size, heads, head_dim = target.cache.shape
    for field, found, wanted in (
        ("dtype", TORCH_DTYPES[header.dtype], target.cache.dtype),
        ("heads", header.heads, heads),
        ("head_dim", header.head_dim, head_dim),
    ):
        if found != wanted:
            raise header.error(field, f"{found}, but the target's is {wanted}")
    room = target.block_ids.numel() * block_size
    if header.token_offset + header.tokens > room:
        raise header.error("tokens", f"{header.tokens} from {header.token_offset} on, but the target holds {room}")


def _check_partner(header: FrameHeader, residual: Frame) -> None:
    if not header.codec.is_split:
        raise header.error("codec", f"{header.codec.name} has no residual")
    expected = replace(header, stream=Stream.RESIDUAL, payload_bytes=0)
    residual.header.require(replace(expected, payload_bytes=payload_bytes(expected)))


def _nibbles(header: FrameHeader) -> int:
    """How many codes of four bits end the payload; if their number is odd, half a byte is left over."""
    if header.codec.is_split:
        layout = frame_layout(header)
        return (layout.tokens - layout.sink_rows) * layout.channels
    return header.tokens * header.heads * header.head_dim if header.codec is CodecId.INT4 else 0
