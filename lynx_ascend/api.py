"""The public codec API: a tensor to frames and back, whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from .codec.config import CodecConfig, Stream
from .frame import Frame, FrameError, FrameHeader, parse
from .methods import TORCH_DTYPES, payload_bytes
from .paged import PagedKV, PageEncoder, check_frame, decode_page

StreamName = Literal["anchor", "residual", "exact"]


class EncodedKV:
    """An encoded tensor: for each stream one frame a page, all of them checked.

    Made by `encode` or `from_frames`.
    """

    def __init__(self, frames: dict[Stream, list[Frame]]) -> None:
        self._frames = frames

    @classmethod
    def from_frames(
        cls,
        anchor: Sequence[bytes | bytearray],
        residual: Sequence[bytes | bytearray] | None = None,
        exact: Sequence[bytes | bytearray] | None = None,
    ) -> EncodedKV:
        """Reads frames, each stream's in the order of its pages. Later streams are optional.

        Raises:
            FrameError: naming the field, page and stream of the first frame that is wrong, missing or foreign.
        """
        if exact:
            raise FrameError("stream", "this version has two streams, anchor and residual", stream=Stream.EXACT.name)
        if not anchor:
            raise FrameError("anchor", "no frames", stream=Stream.ANCHOR.name)
        frames = {Stream.ANCHOR: _parse_anchors(anchor)}
        if residual:
            frames[Stream.RESIDUAL] = _parse_residuals(residual, [frame.header for frame in frames[Stream.ANCHOR]])
        return cls(frames)

    @property
    def config(self) -> CodecConfig:
        """The parameters, as the frames carry them."""
        return self._frames[Stream.ANCHOR][0].header.config()

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

        Raises:
            ValueError: `stream` is unknown or absent.
        """
        self._stream(stream)
        anchors = self._frames[Stream.ANCHOR]
        out = torch.empty(self.shape, dtype=self.dtype)
        target = _as_paged(out)
        for index, anchor in enumerate(anchors):
            decode_page(anchor, None if stream == "anchor" else self._frames[Stream.RESIDUAL][index], target)
        return out

    def nbytes(self, stream: StreamName) -> int:
        """Bytes on the wire of `stream` alone, headers included. Raises ValueError as decode does."""
        return sum(frame.data.nbytes for frame in self._stream(stream))

    def frames(self, stream: StreamName) -> list[bytes]:
        """The frames of `stream`, one a page. Raises ValueError as decode does."""
        return [bytes(frame.data) for frame in self._stream(stream)]

    def _stream(self, name: str) -> list[Frame]:
        if name == "exact":
            raise ValueError("exact: this version has two streams, anchor and residual")
        if name not in ("anchor", "residual"):
            raise ValueError(f"stream: {name!r} is none of 'anchor', 'residual', 'exact'")
        found = self._frames.get(Stream[name.upper()])
        if found is None:
            raise ValueError(f"{name}: not among the frames that were given")
        return found


def encode(x: Tensor, config: CodecConfig | None = None) -> EncodedKV:
    """Encodes a tensor of KV values whose first token is the sequence's first.

    Args:
        x: [tokens, heads, head_dim], bf16 | fp16 | fp32, any strides, on the CPU. config: None for CodecConfig().

    Raises:
        ValueError: a shape, dtype or config that cannot be coded; NonFiniteError, a ValueError, for NaN and Inf.
        RuntimeError: x is on a device that has no kernels.
    """
    config = config or CodecConfig()
    if x.dim() != 3 or 0 in x.shape:
        raise ValueError(f"x: shape {tuple(x.shape)} is not [tokens, heads, head_dim], each at least 1")
    source = _as_paged(x.detach())
    method = "alg1" if config.codec == "alg1" else "lynx"
    encoder = PageEncoder(method, source, x.shape[0], layer=0, is_value=False, generation=0, config=config)
    pages = [encoder.page(index) for index in range(encoder.num_pages)]
    return EncodedKV.from_frames([p[Stream.ANCHOR] for p in pages], [p[Stream.RESIDUAL] for p in pages])


def _as_paged(x: Tensor) -> PagedKV:
    """A plain tensor is a paged cache of one block."""
    return PagedKV(x.unsqueeze(0), torch.zeros(1, dtype=torch.int64))


def _parse_anchors(data: Sequence[bytes | bytearray]) -> list[Frame]:
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


def _parse_residuals(data: Sequence[bytes | bytearray], anchors: list[FrameHeader]) -> list[Frame]:
    if len(data) != len(anchors):
        page = min(len(data), len(anchors))
        raise FrameError("residual", f"{len(data)} frames, {len(anchors)} pages", page=page, stream="RESIDUAL")
    return [
        parse(item, _resized(replace(anchor, stream=Stream.RESIDUAL)))
        for item, anchor in zip(data, anchors, strict=True)
    ]


def _resized(header: FrameHeader) -> FrameHeader:
    return replace(header, payload_bytes=payload_bytes(header))
