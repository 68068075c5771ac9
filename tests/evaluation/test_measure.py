"""Cases hold what they say, and rows are what the case and the method imply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lynx_ascend.codec.baselines.dropping import HeavyHitters
from lynx_ascend.codec.baselines.integers import SplitInt8, TensorInt
from lynx_ascend.codec.baselines.uncompressed import Uncompressed
from lynx_ascend.evaluation.cases import CAP, QUERIES, STARTS, Case, exact_kv, prompt_case, text_case
from lynx_ascend.evaluation.fidelity import Reconstruction, attention_outputs, forced_logits, prefill_with_queries
from lynx_ascend.evaluation.kv import PromptKV
from lynx_ascend.evaluation.local_engine import greedy_text
from lynx_ascend.evaluation.measure import Yardstick, measure

IDS = list(range(100, 300))


@pytest.fixture
def case(tiny_model: Any, tmp_path: Path) -> Case:
    return prompt_case(tiny_model, IDS, tmp_path / "case.pt")


def test_a_prompts_case(tiny_model: Any, case: Case) -> None:
    assert case["key"].shape == (2, 199, 2, 16) and case["key"].dtype == torch.bfloat16
    wide = PromptKV(tuple(case["key"].float()), tuple(case["value"].float()))
    assert case["text"] == greedy_text(tiny_model, IDS, wide, CAP + STARTS)
    assert case["forced"] == [IDS[-1], *case["text"][:-1]]
    [logits] = forced_logits(tiny_model, [Reconstruction(exact_kv(case))], case["forced"])
    assert logits.argmax(-1).tolist() == case["text"]
    assert case["queries"].shape == (2, 4, QUERIES, 16)


def test_importance_is_the_attention_of_the_last_tokens(tiny_model: Any, case: Case) -> None:
    assert torch.allclose(case["importance"].sum(1), torch.ones(2, 2), atol=1e-5)
    _, queries = prefill_with_queries(tiny_model, IDS[:-1], 64)
    key = case["key"][1].float()
    mass = torch.zeros(199)
    for head in (2, 3):  # of the second KV head
        for i in range(64):
            position = 199 - 64 + i
            scores = queries[1][head, i] @ key[: position + 1, 1].T / 4
            mass[: position + 1] += torch.softmax(scores, 0) / 128
    assert torch.allclose(case["importance"][1, :, 1], mass, atol=1e-6)


def test_a_texts_case_ends_with_what_reads_it(tiny_model: Any, tmp_path: Path) -> None:
    case = text_case(tiny_model, IDS, tmp_path / "case.pt")
    assert case["key"].shape[1] == len(IDS) - QUERIES and case["text"] == []
    assert case["forced"] == IDS[-QUERIES:] and case["queries"].shape[2] == QUERIES
    _, queries = prefill_with_queries(tiny_model, IDS, QUERIES)  # the same but for the cache's bf16
    assert torch.allclose(case["queries"], torch.stack(queries), atol=0.05)


def test_a_case_is_made_once(tiny_model: Any, tmp_path: Path) -> None:
    first = prompt_case(tiny_model, IDS[:70], tmp_path / "case.pt")
    again = prompt_case(None, IDS[:70], tmp_path / "case.pt")
    assert again["text"] == first["text"] and torch.equal(again["key"], first["key"])
    assert [path.name for path in tmp_path.iterdir()] == ["case.pt"]


def test_the_exact_cache_is_without_error(tiny_model: Any, case: Case) -> None:
    row = measure(Yardstick(tiny_model, case), case, Uncompressed())
    assert row["first"] is row["all"]
    stream = row["all"]
    assert stream["error"] == 0 and stream["layers"] == [0, 0]
    assert stream["bits"] == pytest.approx(16, abs=0.05)
    text = stream["text"]
    assert text["top1"] == 1 and abs(text["kl"]) < 1e-6 and text["tokens"] == len(case["text"])
    assert text["runs"] == [min(CAP, text["tokens"] - start) for start in range(min(STARTS, text["tokens"]))]


def test_streams_are_measured_one_after_the_other(tiny_model: Any, case: Case) -> None:
    row = measure(Yardstick(tiny_model, case), case, SplitInt8())
    whole = measure(Yardstick(tiny_model, case), case, TensorInt(8))
    assert row["all"]["error"] == pytest.approx(whole["all"]["error"], rel=0.02)
    assert row["first"]["error"] > 10 * row["all"]["error"] > 0
    assert row["first"]["bits"] == pytest.approx(4, abs=0.1) and row["all"]["bits"] == pytest.approx(8, abs=0.1)


def test_dropped_tokens_are_not_attended_to(tiny_model: Any, case: Case) -> None:
    yardstick = Yardstick(tiny_model, case)
    none, half = (measure(yardstick, case, HeavyHitters(fraction))["all"] for fraction in (1.0, 0.5))
    assert none["error"] == 0 and none["text"]["top1"] == 1
    assert half["error"] > 1e-6 and half["text"]["kl"] > 1e-9
    kept = case["importance"].clone()
    kept[:, -64:] = torch.inf
    seen = torch.zeros(2, 199, 2, dtype=torch.bool).scatter_(1, kept.argsort(1, True)[:, :100], True)
    outputs = attention_outputs(
        tuple(case["queries"]), exact_kv(case), lambda layer, *_: seen[layer].T.repeat_interleave(2, 0)[:, None]
    )
    exact = attention_outputs(tuple(case["queries"]), exact_kv(case))
    assert half["error"] == pytest.approx(float((outputs - exact).square().sum() / exact.square().sum()), rel=1e-4)


def test_runs_and_agreement_are_counted(tiny_model: Any, case: Case) -> None:
    """A text that is not the model's: the first draft and those at two other places differ."""
    text = list(case["text"])
    other = dict(case) | {"text": [*text]}
    for place in (0, 10, 40):
        other["text"][place] = (text[place] + 1) % 1000
    got = Yardstick(tiny_model, other).agreement(Reconstruction(exact_kv(case)))  # type: ignore[arg-type]
    assert got["runs"][:12] == [0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 29]
    assert got["top1"] == pytest.approx(1 - 3 / len(text))
