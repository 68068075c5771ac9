"""Measures a variant on a case, by the evaluation's yardstick."""

from __future__ import annotations

from typing import Any, TypedDict

import torch
from formats import Shipped, Variant

from lynx_ascend.evaluation.cases import CAP, Case, exact_kv
from lynx_ascend.evaluation.kv import PromptKV
from lynx_ascend.evaluation.local_engine import LocalEngine
from lynx_ascend.evaluation.measure import Reconstruction, Yardstick


class Row(TypedDict):
    """One variant's anchor on one prompt.

    accepted: drafts until the first that differs from the exact text; run: the same, mean over drafts that start at
    each of the text's first 32 tokens; kl: mean over the text, nats.
    """

    accepted: int
    drafted: int
    run: float
    kl: float


@torch.inference_mode()
def measure(yardstick: Yardstick, case: Case, variant: Variant) -> Row:
    """One row."""
    anchor, _ = _reconstructions(case, variant)
    text = yardstick.agreement(anchor)
    return Row(
        accepted=text["runs"][0],
        drafted=min(CAP, text["tokens"]),
        run=sum(text["runs"]) / len(text["runs"]),
        kl=text["kl"],
    )


@torch.inference_mode()
def attention_errors(yardstick: Yardstick, case: Case, variant: Variant) -> tuple[float, float]:
    """The attention error of the anchor and of both streams."""
    anchor, full = (yardstick.attention(part)[0] for part in _reconstructions(case, variant))
    return anchor, full


class EngineRow(TypedDict):
    """A shipped codec on one prompt by the real loop: drafts, then one verify pass on both streams. `forced`: what
    `measure` counts; equal: the text of 65 tokens is the exact one."""

    drafted: int
    accepted: int
    forced: int
    equal: bool


def run_engine(model: Any, case: Case, variant: Variant, row: Row) -> EngineRow:
    """The in-process engine on a case whose row has been measured. K and V must be coded alike, by a CodecConfig."""
    assert isinstance(variant.key, Shipped) and variant.key == variant.value
    prompt_ids = [0] * case["key"].shape[1] + case["forced"][:1]  # only the last is read when the KV is given
    engine = LocalEngine(model, variant.key.config, cap=CAP)
    done = engine.generate(prompt_ids, CAP + 1, kv=exact_kv(case))
    return EngineRow(
        drafted=done.drafted,
        accepted=done.accepted,
        forced=row["accepted"],
        equal=list(done.tokens) == case["text"][: CAP + 1],
    )


def _reconstructions(case: Case, variant: Variant) -> tuple[Reconstruction, Reconstruction]:
    """The anchor, and both streams."""
    key, value = variant.key.reconstruct(case["key"]), variant.value.reconstruct(case["value"])
    anchor, full = (Reconstruction(PromptKV(tuple(k), tuple(v))) for k, v in zip(key, value, strict=True))
    return anchor, full
