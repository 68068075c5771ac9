"""FP8 with one scale a tensor, as vLLM and TensorRT-LLM store KV caches (Micikevicius et al., arXiv 2209.05433).

The scale maps the largest magnitude to the format's largest number (dynamic; the serving stacks use calibrated
scales).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import Reader

_TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class FP8(Method):
    """x = float8 * scale, scale fp32."""

    kind: Literal["e4m3", "e5m2"]
    source = "Micikevicius et al., arXiv 2209.05433"

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        dtype = _TYPES[self.kind]
        largest = torch.finfo(dtype).max
        scale = (x.abs().max().float() / largest).clamp_min(torch.finfo(torch.float32).tiny)
        return [[scale, (x.float() / scale).clamp(-largest, largest).to(dtype)]]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        scale = readers[0].take("scale", torch.float32, 1)
        return Decoded(
            readers[0].take("values", torch.uint8, *readers[0].shape).view(_TYPES[self.kind]).float() * scale
        )
