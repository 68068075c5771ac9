"""What a prompt costs on an Ascend 910B4: estimates by bytes and operations, none of them measured on an NPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from lynx_ascend.simulation.models import Model
from lynx_ascend.simulation.prefill import PrefillCosts
from lynx_ascend.speculation.latency import CodecTimes
from lynx_ascend.speculation.steps import StepCosts

KERNELS = 0.13  # seconds of quantising and reconstructing that the paper gives for Lynx, measured on such hardware
_MAY_BE_ZERO = {"layer_overhead", "commit"}
_SECANT = 32  # drafts over which the cost of one more is averaged: the experts that a pass reads are not linear in them


_NO_CODEC = CodecTimes()


@dataclass(frozen=True)
class Work:
    """What one prompt costs, whoever says so.

    Args:
        tokens: of the prompt. nbytes: of its cache in bf16.
        prefill: of P's steps; one P, and so the same for all prompts of a run.
        costs: of D's steps with this prompt in the batch.
        codec: seconds for the whole cache.
        draft_prefill: seconds of a draft model's prefill on D.
    """

    tokens: int
    nbytes: float
    prefill: PrefillCosts
    costs: StepCosts
    codec: CodecTimes = _NO_CODEC
    draft_prefill: float = 0.0


@dataclass(frozen=True)
class Hardware:
    """One NPU, and how well it is used; an instance is spread over Model.npus of them.

    Args:
        hbm: bytes a second (0.8 TB/s is inferred, not published).
        flops: of bf16 a second: 20 cube cores, 1.5 GHz, 16 x 16 x 16 multiply-adds a cycle.
        utilisation: of flops in prefill: an assumption.
        layer_overhead: seconds a layer and step beside reading weights and cache (launches, collectives): fitted to the
            decode steps of the paper's Table 1 (paper.fit).
        commit: seconds of a verify pass beside the pass itself: the paper's figure for all its kernels. The estimates
            of ours, below, come to milliseconds.
        encode, anchor_decode, full_decode: bytes of bf16 a second, estimates of `lynx-ascend bench kernels`.
        chunk: the most prompt tokens of one prefill step.
        draft_model: size of a draft model, as a share of the model it drafts for.
        tpot, prefill_rate: seconds of a lone decode step, prompt tokens a second, if measured; else they are estimated.

    Raises:
        ValueError: a value is not positive and finite, or utilisation is above 1.
    """

    hbm: float = 0.8e12
    flops: float = 20 * 1.5e9 * 2 * 16**3
    utilisation: float = 0.4
    layer_overhead: float = 0.585e-3
    commit: float = KERNELS
    encode: float = 279e9
    anchor_decode: float = 570e9
    full_decode: float = 511e9
    chunk: int = 8192
    draft_model: float = 1 / 16
    tpot: float | None = None
    prefill_rate: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            zero = value == 0 and field.name in _MAY_BE_ZERO
            if value is not None and not zero and not 0 < value < math.inf:
                raise ValueError(f"{field.name}: {value} is not positive and finite")
        if self.utilisation > 1:
            raise ValueError(f"utilisation: {self.utilisation} is above 1")

    def costs(self, model: Model, context: int) -> StepCosts:
        """A step reads the weights and each row's cache; a further token in it costs operations (and experts).

        Attention is split by KV heads, so that no more NPUs than those share the reading of a row's cache: what more
        there are hold copies of it.
        """
        hbm, rate = model.npus * self.hbm, model.npus * self.flops * self.utilisation
        operations = (2 * model.active + 4 * model.layers * model.attention_width * context) / rate
        experts = (model.weights_read(1 + _SECANT) - model.weights_read(1)) / _SECANT / hbm
        cache = context * model.kv_token_bytes / (min(model.npus, model.kv_heads) * self.hbm)
        tpot = self.tpot or model.weights_read(1) / hbm + cache + model.layers * self.layer_overhead
        more = operations + experts
        return StepCosts(tpot=tpot, verify=tpot + self.commit, verify_draft=more, row=min(more + cache, tpot))

    def prefill(self, model: Model) -> PrefillCosts:
        """Matrices and causal attention at the assumed utilisation, and each step's overhead."""
        if self.prefill_rate is not None:
            return PrefillCosts(token=1 / self.prefill_rate, chunk=self.chunk, layers=model.layers)
        rate = model.npus * self.flops * self.utilisation
        return PrefillCosts(
            token=2 * model.active / rate,
            attention=2 * model.layers * model.attention_width / rate,
            step=model.layers * self.layer_overhead,
            chunk=self.chunk,
            layers=model.layers,
        )

    def work(self, model: Model, tokens: int) -> Work:
        """All of it for a prompt.

        Raises:
            ValueError: no tokens.
        """
        if tokens < 1:
            raise ValueError(f"tokens: {tokens} is less than 1")
        nbytes, prefill = tokens * model.kv_token_bytes, self.prefill(model)
        rates = (self.encode, self.anchor_decode, self.full_decode)
        return Work(
            tokens,
            nbytes,
            prefill,
            self.costs(model, tokens),
            CodecTimes(*(nbytes / (model.npus * rate) for rate in rates)),
            draft_prefill=prefill.alone(tokens) * self.draft_model,
        )
