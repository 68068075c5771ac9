"""The models that are simulated: published shapes, from which bytes and work follow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lynx_ascend.speculation.latency import kv_bytes


@dataclass(frozen=True)
class Experts:
    """Routed experts of a mixture. parameters: of all of them, over all layers; chosen: for each token, of `count`."""

    count: int
    chosen: int
    parameters: float

    def read(self, tokens: float) -> float:
        """Expected parameters that a pass over `tokens` tokens reads, if each token chooses anew."""
        return self.parameters * (1.0 - math.pow(1 - self.chosen / self.count, tokens))


@dataclass(frozen=True)
class Model:
    """A model's shape.

    Args:
        kv_heads, head_dim, kv_tensors: of the cache in a layer: K and V, or one latent tensor (MLA).
        parameters, active: in all, and used by one token.
        attention_width: query heads times the mean of the dimensions of a query's key and value.
        weight_bytes: a parameter. npus: that an instance is spread over, evenly.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    parameters: float
    active: float
    attention_width: int
    kv_tensors: int = 2
    experts: Experts | None = None
    weight_bytes: float = 2
    npus: int = 8

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of one token's cache in bf16."""
        return kv_bytes(1, self.kv_heads, self.head_dim, self.layers) * self.kv_tensors / 2

    def weights_read(self, tokens: float) -> float:
        """Expected bytes of weights that a forward pass over `tokens` tokens reads."""
        if self.experts is None:
            return self.parameters * self.weight_bytes
        return (self.parameters - self.experts.parameters + self.experts.read(tokens)) * self.weight_bytes


def _expert_parameters(layers: int, experts: int, hidden: int, width: int) -> float:
    return 3.0 * layers * experts * hidden * width  # gate, up and down


MODELS = {
    "llama-8b": Model("LLaMA 3.1 8B", 32, 8, 128, 8.03e9, 8.03e9, 32 * 128),
    "qwen3-32b": Model("Qwen3 32B", 64, 8, 128, 32.8e9, 32.8e9, 64 * 128),
    "mistral-24b": Model("Mistral Small 24B", 40, 8, 128, 23.6e9, 23.6e9, 32 * 128),
    # In bf16 these two fit no 16 or 32 NPUs of 32 GB: weights of 8 bits.
    "qwen3-235b": Model(
        "Qwen3-235B-A22B", 94, 4, 128, 235e9, 22e9, 64 * 128,
        experts=Experts(128, 8, _expert_parameters(94, 128, 4096, 1536)), weight_bytes=1, npus=16,
    ),
    "mla": Model(
        "DeepSeek-V3-like (MLA)", 61, 1, 512 + 64, 671e9, 37e9, 128 * (192 + 128) // 2, kv_tensors=1,
        experts=Experts(256, 8, _expert_parameters(58, 256, 7168, 2048)), weight_bytes=1, npus=32,
    ),
}  # fmt: skip
