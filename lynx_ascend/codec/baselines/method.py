"""What every evaluated method offers: a layer's K or V to the bytes of its streams, and back from the first on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.payload import DTYPES, PayloadError, Reader, seal


@dataclass(frozen=True)
class Context:
    """What a method may know of the tensor that it encodes.

    Attributes:
        layer, layers: which of how many. is_value: V, not K (which is after RoPE).
        importance: fp32 [tokens, heads], the attention that the prompt's last tokens pay to each token; for those
            methods alone that drop tokens.
    """

    layer: int
    layers: int
    is_value: bool
    importance: Tensor | None = None


class Decoded(NamedTuple):
    """values: [tokens, heads, head_dim] in the input's dtype. kept: bool [tokens, heads], False where a token was
    dropped and must be masked out (its values are 0); None if none was."""

    values: Tensor
    kept: Tensor | None = None


class Method(ABC):
    """A codec, a frozen dataclass whose fields are its parameters. All is deterministic.

    Attributes:
        source: the publication and the part of it that is followed.
        num_streams: how many streams it sends; a receiver can decode from the first on.
    """

    source: ClassVar[str]
    num_streams: ClassVar[int] = 1

    def encode(self, x: Tensor, context: Context) -> tuple[bytes, ...]:
        """The streams of x, [tokens, heads, head_dim] in bf16 | fp16 | fp32, with all that decoding needs.

        Raises:
            ValueError: a shape or dtype that cannot be coded, NaN or Inf, or values beyond what the method can hold.
        """
        if x.dim() != 3 or 0 in x.shape or x.dtype not in DTYPES:
            raise ValueError(f"x: {x.dtype} {tuple(x.shape)} is not bf16, fp16 or fp32 [tokens, heads, head_dim]")
        if not bool(x.isfinite().all()):
            raise ValueError("x: holds NaN or Inf")
        return tuple(seal(self._writer(i), x, parts) for i, parts in enumerate(self._encode(x, context)))

    def decode(self, streams: Sequence[bytes]) -> Decoded:
        """The reconstruction from the first stream, or from more of them in their order.

        Raises:
            PayloadError: bytes that `encode` did not write, naming the field.
        """
        if not 1 <= len(streams) <= self.num_streams:
            raise PayloadError(f"streams: {len(streams)}, not 1 .. {self.num_streams}")
        readers = [Reader(data, self._writer(i)) for i, data in enumerate(streams)]
        if any((reader.shape, reader.dtype) != (readers[0].shape, readers[0].dtype) for reader in readers):
            raise PayloadError("shape: the streams are of different tensors")
        decoded = self._decode(readers)
        for reader in readers:
            reader.end()
        largest = torch.finfo(readers[0].dtype).max
        return Decoded(decoded.values.float().clamp(-largest, largest).to(readers[0].dtype), decoded.kept)

    def visible(self, query: Tensor, key: Tensor, kept: Tensor | None) -> Tensor | None:
        """Which tokens decoding attends to: bool, broadcastable to [heads, queries, tokens]; None: all.

        Args:
            query: [heads, queries, head_dim]. key: [heads, tokens, head_dim], repeated to the queries' heads.
            kept: of K, as `decode` gave it.
        """
        if kept is None:
            return None
        return kept.T.repeat_interleave(query.shape[0] // kept.shape[1], 0)[:, None]

    @abstractmethod
    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        """The parts of each stream."""

    @abstractmethod
    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        """The reconstruction, in any floating type."""

    def _writer(self, stream: int) -> str:
        return f"{self!r}, stream {stream}"
