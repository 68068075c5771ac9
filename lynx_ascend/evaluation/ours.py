"""This project's codecs as methods, through the public API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import torch
from torch import Tensor

from lynx_ascend import api
from lynx_ascend.codec import config
from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import PayloadError, Reader


@dataclass(frozen=True)
class Lynx(Method):
    """A split codec of this project, by `lynx_ascend.encode`: its frames, headers included, are the streams' bytes."""

    config: config.CodecConfig
    source = "docs/frame.md; alg1: Lynx, arXiv 2607.01831, Alg. 1"
    num_streams: ClassVar[int] = 2

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        encoded = api.encode(x, self.config, layer=context.layer, is_value=context.is_value)
        packed = (msgspec.msgpack.encode(encoded.frames(stream)) for stream in ("anchor", "residual"))
        return [[torch.frombuffer(bytearray(part), dtype=torch.uint8)] for part in packed]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        frames = []
        for reader in readers:
            try:
                frames.append(msgspec.msgpack.decode(reader.rest("frames"), type=list[bytes]))
            except msgspec.DecodeError as error:
                raise PayloadError(f"frames: {error}") from None
        return Decoded(api.EncodedKV.from_frames(*frames).decode("anchor" if len(frames) == 1 else "residual"))


@dataclass(frozen=True)
class AnchorOnly(Lynx):
    """Lynx-INT4, "quantise only": the Anchor is the final cache."""

    source = "Lynx, arXiv 2607.01831 (Lynx-INT4)"
    num_streams: ClassVar[int] = 1

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        return super()._encode(x, context)[:1]
