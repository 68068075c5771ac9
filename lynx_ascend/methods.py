"""The transfer methods by name: which codec and streams each uses, and the frames that it puts on the wire."""

from __future__ import annotations

from dataclasses import replace

import torch

from .codec.baselines import linear, raw
from .codec.config import CodecConfig, Stream, head_problem
from .codec.layout import PageLayout, page_layout
from .frame import CODEC_NAMES, HEADER_BYTES, Center, CodecId, DType, FrameHeader

_CODECS = {
    "bf16": CodecId.RAW,  # no compression, whatever the cache's own type
    "int8": CodecId.INT8,
    "int4": CodecId.INT4,
    "lynx": CodecId.GRID,
    "alg1": CodecId.ALG1,
    "pair": CodecId.PAIR,
}
METHODS: tuple[str, ...] = tuple(_CODECS)

NPU_PAIRED_HEADS = (64, 128)  # ascend_kernels/tiling.cpp
LINEAR_BITS = {CodecId.INT8: 8, CodecId.INT4: 4}
TORCH_DTYPES = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16, DType.FP32: torch.float32}
_WIRE_DTYPES = {dtype: code for code, dtype in TORCH_DTYPES.items()}


def method_codec(method: str) -> CodecId:
    """The codec behind a name of METHODS.

    Raises:
        ValueError: an unknown name.
    """
    if method not in _CODECS:
        raise ValueError(f"method: {method!r} is none of {', '.join(METHODS)}")
    return _CODECS[method]


def unmet_by_heads(method: str, head_dim: int, *, npu: bool) -> str | None:
    """Why a method cannot code heads of this size (on an NPU); None if it can."""
    codec = CODEC_NAMES.get(method_codec(method), "")
    problem = head_problem(codec, head_dim)
    if npu and codec == "pair" and head_dim not in NPU_PAIRED_HEADS:
        problem = f"{head_dim} is none of {NPU_PAIRED_HEADS}, which its kernels for NPUs take"
    return problem and f"{method!r} cannot be used: head_dim {problem}"


def codec_method(config: CodecConfig) -> str:
    """The method that uses a split codec."""
    return next(method for method, codec in _CODECS.items() if CODEC_NAMES.get(codec) == config.codec)


def streams(method: str) -> tuple[Stream, ...]:
    """The streams that a method sends, in the order in which they are wanted."""
    return (Stream.ANCHOR, Stream.RESIDUAL) if method_codec(method).is_split else (Stream.ANCHOR,)


def method_config(method: str, config: CodecConfig | None = None) -> CodecConfig:
    """`config`, or the method's default. The monolithic methods use its page alone.

    Raises:
        ValueError: `config` is for another codec, or asks for the exact stream.
    """
    codec = method_codec(method)
    own = CODEC_NAMES.get(codec)
    if config is None:
        return CodecConfig(codec=own or "grid")
    if own and config.codec != own:
        raise ValueError(f"codec: {config.codec!r} is not {own!r}, which method {method!r} uses")
    if config.exact:
        raise ValueError("exact: the transfer methods send two streams, anchor and residual")
    return config


def num_pages(tokens: int, page: int) -> int:
    """Pages that `tokens` tokens from position 0 take."""
    return -(-tokens // page)


def frames_expected(method: str, tokens: int, page: int) -> list[tuple[Stream, int]]:
    """(stream, page index) of every frame of one layer's K or V, in the order in which they are wanted."""
    return [(stream, index) for stream in streams(method) for index in range(num_pages(tokens, page))]


def frame_header(
    method: str,
    stream: Stream,
    page_index: int,
    *,
    tokens: int,
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    layer: int,
    is_value: bool,
    generation: int,
    config: CodecConfig | None = None,
) -> FrameHeader:
    """The header that page `page_index` of a sequence of `tokens` tokens has: what is sent, and what to expect.

    Raises:
        ValueError: an argument out of range (a FrameError if it is the header that cannot hold it).
    """
    if stream is Stream.EXACT:
        raise ValueError("stream: the transfer methods send no EXACT")
    codec, config = method_codec(method), method_config(method, config)
    if dtype not in _WIRE_DTYPES:
        raise ValueError(f"dtype: {dtype} is none of bfloat16, float16, float32")
    split = codec.is_split
    header = FrameHeader(
        stream=stream,
        codec=codec,
        dtype=_WIRE_DTYPES[dtype],
        layer=layer,
        is_value=is_value,
        page_index=page_index,
        page=config.page,
        tokens=min(config.page, tokens - page_index * config.page),
        heads=heads,
        head_dim=head_dim,
        payload_bytes=0,
        generation=generation,
        chunk=config.chunk if split else 0,
        sink_tokens=config.sink_tokens if split else 0,
        alpha=(config.alpha or 0.0) if split else 0.0,
        center=Center.MEAN if split and config.center == "mean" else Center.MIDRANGE,
    )
    return replace(header, payload_bytes=payload_bytes(header))


def frame_layout(header: FrameHeader) -> PageLayout:
    """The layout of the page that a split codec's frame belongs to."""
    channels = header.heads * header.head_dim
    return page_layout(header.config(), TORCH_DTYPES[header.dtype], header.tokens, channels, header.token_offset)


def payload_bytes(header: FrameHeader) -> int:
    """The payload size that the header's other fields imply; a frame of any other size is not what it says.

    Not for EXACT, whose size varies within the limits that FrameHeader itself checks.
    """
    values = header.tokens * header.heads * header.head_dim
    if header.codec is CodecId.RAW:
        return raw.payload_bytes(values, TORCH_DTYPES[header.dtype])
    if not header.codec.is_split:
        return linear.payload_bytes(values, LINEAR_BITS[header.codec])
    layout = frame_layout(header)
    return layout.anchor_bytes if header.stream is Stream.ANCHOR else layout.residual_bytes


def wire_bytes(
    method: str, tokens: int, *, heads: int, head_dim: int, dtype: torch.dtype, config: CodecConfig | None = None
) -> dict[Stream, int]:
    """Bytes of each stream for one layer's K or V of `tokens` tokens, headers included."""
    page = method_config(method, config).page
    total = dict.fromkeys(streams(method), 0)
    for stream, index in frames_expected(method, tokens, page):
        header = frame_header(
            method, stream, index, tokens=tokens, heads=heads, head_dim=head_dim, dtype=dtype, layer=0, is_value=False,
            generation=0, config=config,
        )  # fmt: skip
        total[stream] += HEADER_BYTES + header.payload_bytes
    return total
