"""The public codec API: a tensor to frames and back, whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from .codec import exact as exact_stream
from .codec.config import CodecConfig, Stream
from .frame import HEADER_BYTES, Frame, FrameError, FrameHeader, parse, seal
from .methods import TORCH_DTYPES, codec_method, frame_layout, payload_bytes
from .paged import PagedKV, PageEncoder, check_frame, decode_page

StreamName = Literal["anchor", "residual", "exact"]
Buffer = bytes | bytearray | memoryview


class EncodedKV:
    """An encoded tensor: for each stream one frame a page, all of them checked.

    Made by `encode` or `from_frames`.

    Attributes:
        device: where `decode` decodes to.
    """

    def __init__(self, frames: dict[Stream, list[Frame]], device: torch.device) -> None:
        self._frames, self.device = frames, device

    @classmethod
    def from_frames(
        cls,
        anchor: Sequence[Buffer],
        residual: Sequence[Buffer] | None = None,
        exact: Sequence[Buffer] | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> EncodedKV:
        """Reads frames, each stream's in the order of its pages. Later streams are optional; exact needs residual.

        `device` is the CPU or an NPU.

        Raises:
            FrameError: naming the field, page and stream of the first frame that is wrong, missing or foreign.
        """
        if not anchor:
            raise FrameError("anchor", "no frames", stream=Stream.ANCHOR.name)
        frames = {Stream.ANCHOR: _parse_anchors(anchor)}
        headers = [frame.header for frame in frames[Stream.ANCHOR]]
        if residual:
            frames[Stream.RESIDUAL] = _parse_later(Stream.RESIDUAL, residual, headers)
        if exact:
            if not residual:
                raise FrameError("residual", "no frames, but exact ones build on them", stream=Stream.RESIDUAL.name)
            frames[Stream.EXACT] = _parse_later(Stream.EXACT, exact, headers)
        return cls(frames, torch.device(device))

    @property
    def config(self) -> CodecConfig:
        """The parameters, as the frames carry them."""
        return replace(self._frames[Stream.ANCHOR][0].header.config(), exact=Stream.EXACT in self._frames)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(tokens, heads, head_dim)."""
        headers = [frame.header for frame in self._frames[Stream.ANCHOR]]
        return sum(header.tokens for header in headers), headers[0].heads, headers[0].head_dim

    @property
    def dtype(self) -> torch.dtype:
        """T, the type of the input and of every reconstruction."""
        return TORCH_DTYPES[self._frames[Stream.ANCHOR][0].header.dtype]

    def decode(self, stream: StreamName = "residual") -> Tensor:
        """The reconstruction from `stream` and those before it: [tokens, heads, head_dim] in the input's dtype.

        "exact" is the input, bit for bit.

        Raises:
            ValueError: `stream` is unknown or absent.
            FrameError: an exact frame was not made for this anchor and residual, or holds what no encoder writes.
            RuntimeError: the device has no kernels, or not for this shape and dtype (docs/ops.md).
        """
        later = self._stream(stream)
        anchors = self._frames[Stream.ANCHOR]
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        target = _as_paged(out)
        for index, anchor in enumerate(anchors):
            decode_page(anchor, None if stream == "anchor" else self._frames[Stream.RESIDUAL][index], target)
        if stream == "exact":
            for frame in later:
                page = _rows(out, frame.header)
                page.copy_(_restore(frame, page.cpu()))
        return out

    def nbytes(self, stream: StreamName) -> int:
        """Bytes on the wire of `stream` alone, headers included. Raises ValueError as decode does."""
        return sum(frame.data.nbytes for frame in self._stream(stream))

    def frames(self, stream: StreamName) -> list[bytes]:
        """The frames of `stream`, one a page. Raises ValueError as decode does."""
        return [bytes(frame.data) for frame in self._stream(stream)]

    def _stream(self, name: str) -> list[Frame]:
        if name not in ("anchor", "residual", "exact"):
            raise ValueError(f"stream: {name!r} is none of 'anchor', 'residual', 'exact'")
        found = self._frames.get(Stream[name.upper()])
        if found is None:
            hint = "; it is written with CodecConfig(exact=True)" if name == "exact" else ""
            raise ValueError(f"{name}: not among the frames that were given{hint}")
        return found


def encode(x: Tensor, config: CodecConfig | None = None, *, layer: int = 0, is_value: bool = False) -> EncodedKV:
    """Encodes a tensor of KV values whose first token is the sequence's first.

    Args:
        x: [tokens, heads, head_dim], bf16 | fp16 | fp32, any strides; on an NPU bf16 | fp16, channels adjacent,
            heads * head_dim a multiple of 64. config: None for CodecConfig().
        layer, is_value: what the frames' headers say they are of: which layer, and V instead of K.

    Raises:
        ValueError: a shape, dtype or config that cannot be coded; NonFiniteError, a ValueError, for NaN and Inf.
        RuntimeError: x is on a device that has no kernels, or not for such an x (docs/ops.md).
    """
    config = config or CodecConfig()
    if x.dim() != 3 or 0 in x.shape:
        raise ValueError(f"x: shape {tuple(x.shape)} is not [tokens, heads, head_dim], each at least 1")
    source = _as_paged(x.detach())
    split = replace(config, exact=False)
    encoder = PageEncoder(
        codec_method(config), source, x.shape[0], layer=layer, is_value=is_value, generation=0, config=split
    )
    pages = [encoder.page(index) for index in range(encoder.num_pages)]
    anchors, residuals = ([page[stream] for page in pages] for stream in (Stream.ANCHOR, Stream.RESIDUAL))
    encoded = EncodedKV.from_frames(anchors, residuals, device=x.device)
    if not config.exact:
        return encoded
    reconstruction, values = encoded.decode("residual").cpu(), x.detach().cpu()
    exacts = [_exact_frame(frame.header, values, reconstruction) for frame in encoded._frames[Stream.ANCHOR]]
    return EncodedKV({**encoded._frames, Stream.EXACT: exacts}, x.device)


def _as_paged(x: Tensor) -> PagedKV:
    """A plain tensor is a paged cache of one block."""
    return PagedKV(x.unsqueeze(0), torch.zeros(1, dtype=torch.int64))


def _parse_anchors(data: Sequence[Buffer]) -> list[Frame]:
    frames: list[Frame] = []
    for index, item in enumerate(data):
        frame = parse(item)
        first, header = (frames[0] if frames else frame).header, frame.header
        if header.stream is not Stream.ANCHOR:
            raise header.error("stream", f"{header.stream.name}, expected ANCHOR")
        # The last page alone may be short.
        tokens = header.tokens if index == len(data) - 1 else header.page
        header.require(_resized(replace(first, page_index=index, tokens=tokens)))
        check_frame(frame)
        frames.append(frame)
    return frames


def _parse_later(stream: Stream, data: Sequence[Buffer], anchors: list[FrameHeader]) -> list[Frame]:
    """The frames of the residual or exact stream that belong to `anchors`."""
    if len(data) != len(anchors):
        page = min(len(data), len(anchors))
        problem = f"{len(data)} frames, {len(anchors)} pages"
        raise FrameError(stream.name.lower(), problem, page=page, stream=stream.name)
    read = _parse_exact if stream is Stream.EXACT else _parse_residual
    return [read(item, anchor) for item, anchor in zip(data, anchors, strict=True)]


def _parse_residual(data: Buffer, anchor: FrameHeader) -> Frame:
    frame = parse(data, _resized(replace(anchor, stream=Stream.RESIDUAL)))
    check_frame(frame)
    return frame


def _parse_exact(data: Buffer, anchor: FrameHeader) -> Frame:
    frame = parse(data)
    size = exact_stream.CHECKSUM_BYTES  # in both: the frame's own size varies, and its header has checked it
    replace(frame.header, payload_bytes=size).require(replace(anchor, stream=Stream.EXACT, payload_bytes=size))
    return frame


def _exact_frame(anchor: FrameHeader, x: Tensor, reconstruction: Tensor) -> Frame:
    """The exact frame of the anchor's page; x and reconstruction are whole, [tokens, heads, head_dim]."""
    payload = exact_stream.encode(_rows(x, anchor), _rows(reconstruction, anchor), frame_layout(anchor).sink_rows)
    frame = bytearray(HEADER_BYTES) + payload
    seal(frame, replace(anchor, stream=Stream.EXACT, payload_bytes=len(payload)))
    return parse(frame)


def _restore(frame: Frame, reconstruction: Tensor) -> Tensor:
    """The exact page from its reconstruction."""
    try:
        return exact_stream.decode(frame.payload, reconstruction, frame_layout(frame.header).sink_rows)
    except ValueError as problem:
        name, _, text = str(problem).partition(": ")
        raise frame.header.error(name, text) from None


def _rows(x: Tensor, header: FrameHeader) -> Tensor:
    """The page's tokens, a view."""
    return x[header.token_offset : header.token_offset + header.tokens]


def _resized(header: FrameHeader) -> FrameHeader:
    return replace(header, payload_bytes=payload_bytes(header))
