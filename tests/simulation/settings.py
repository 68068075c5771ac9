"""Small settings for the simulator's tests."""

from __future__ import annotations

from lynx_ascend.simulation.acceptance import Acceptance
from lynx_ascend.simulation.hardware import Work
from lynx_ascend.simulation.methods import DraftModel, Method
from lynx_ascend.simulation.prefill import PrefillCosts
from lynx_ascend.speculation.latency import CodecTimes
from lynx_ascend.speculation.steps import StepCosts
from lynx_ascend.speculation.window import MAX_DRAFTS

LINK = 8e6  # bits a second: a byte takes a microsecond

METHODS = [
    Method("bf16", 16, coded=False),
    Method("int8", 8),
    Method("lynx", 5, 4),
    Method("bf16, layer-wise", 16, coded=False, layerwise=True),
    Method("int8, layer-wise", 8, layerwise=True),
    Method("lynx, layer-wise", 5, 4, layerwise=True),
    Method("int8, draft model", 8, draft_model=DraftModel(length=3, acceptance=1.0)),
]
BY_NAME = {method.name: method for method in METHODS}


def holds(count: int) -> tuple[float, ...]:
    """The survival of a prompt of which exactly `count` drafts hold."""
    return (1.0,) * count + (0.0,) * (MAX_DRAFTS - count)


def certain(count: int) -> Acceptance:
    """The same for every context."""
    return Acceptance({1: holds(count)}, "certain")


def work(
    tokens: int,
    *,
    per_token: float = 1000.0,
    prefill: float = 0.001,
    attention: float = 0.0,
    step: float = 0.0,
    chunk: int = 1_000_000,
    layers: int = 8,
    codec: float = 0.0,
    verify_draft: float = 0.001,
) -> Work:
    """A prompt of which each token takes `per_token` bytes and `prefill` seconds; codec: seconds for the cache."""
    costs = PrefillCosts(prefill, attention, step, chunk, layers)
    return Work(
        tokens,
        tokens * per_token,
        costs,
        StepCosts(tpot=0.03, verify=0.05, verify_draft=verify_draft, row=0.002),
        CodecTimes(codec, codec / 2, codec),
        draft_prefill=costs.alone(tokens) / 16,
    )
