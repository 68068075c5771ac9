"""What drafts were sampled from, kept and judged by: vLLM's own samplers without an engine, against exact laws."""

from __future__ import annotations

import pytest
import torch

from lynx_ascend.serving.draft_probs import DraftProbs
from tests.serving.sampling_rig import DRAFTS, VOCABULARY, Rig, assert_exact

pytestmark = pytest.mark.portable


@pytest.mark.parametrize("captured", [True, False])
def test_answers_follow_the_verify_passes_law(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the captured distributions and without; in a batch whose rows differ in temperature, top-k and top-p."""
    if not captured:
        monkeypatch.setattr(DraftProbs, "capture", lambda *args: None)
    assert_exact(Rig(6000), captured)


def test_rows_of_requests_that_no_longer_draft_are_forgotten() -> None:
    rig = Rig(4)
    rig.draft()
    assert len(rig.kept) == 4 * DRAFTS
    rig.kept.begin_step(rig.ids[:1], [])
    assert len(rig.kept) == DRAFTS
    rig.kept.begin_step([], [])
    assert len(rig.kept) == 0


def test_only_drafting_rows_are_kept() -> None:
    kept = DraftProbs()
    logits = torch.zeros(3, VOCABULARY)
    kept.begin_step(["b", "c"], ["c"])  # c's drafts are verified in this pass
    kept.capture(["a", "b", "c"], logits, None, None)
    assert len(kept) == 1
    assert torch.equal(logits, torch.zeros(3, VOCABULARY))
    rows = kept.take(["a", "b", "c"], [0, 1, 1], torch.tensor([3, 4]), VOCABULARY)
    assert rows is not None and rows.dtype == torch.float32
    assert torch.allclose(rows[0], torch.full((VOCABULARY,), 1 / VOCABULARY))
    assert rows[1].tolist() == [float(token == 4) for token in range(VOCABULARY)]  # missing: as if it were certain


def test_rows_beyond_the_verified_drafts_are_left_out() -> None:
    kept = DraftProbs()
    for step in range(3):
        kept.begin_step(["a"], [])
        kept.capture(["a"], torch.nn.functional.one_hot(torch.tensor([step]), VOCABULARY) * 50.0, None, None)
    kept.begin_step(["a"], ["a"])
    rows = kept.take(["a"], [2], torch.tensor([0, 1]), VOCABULARY)
    assert rows is not None and rows.argmax(dim=-1).tolist() == [0, 1]
    assert kept.take(["a"], [2], torch.tensor([0, 1]), VOCABULARY) is None


def test_a_request_that_drafts_beside_a_verification_keeps_its_rows() -> None:
    kept = DraftProbs()
    logits = torch.randn(2, VOCABULARY)
    for _ in range(2):
        kept.begin_step(["a", "b"], [])
        kept.capture(["a", "b"], logits, None, None)
    kept.begin_step(["a", "b"], ["a"])
    rows = kept.take(["a", "b"], [2, 0], torch.tensor([5, 6]), VOCABULARY)
    assert rows is not None and torch.allclose(rows, logits[:1].softmax(-1).expand(2, -1))
    kept.capture(["a", "b"], logits, None, None)
    assert len(kept) == 3


def test_rows_are_bounded_and_a_request_that_lost_one_is_judged_without_any() -> None:
    """Else later rows, as many as there are drafts, would stand for the wrong ones."""
    kept = DraftProbs(max_bytes=5 * 4 * VOCABULARY)
    logits = torch.randn(3, VOCABULARY)
    for step in range(3):
        drafting = ["a", "b", "c"] if step < 2 else ["a", "c"]  # then there is room again
        kept.begin_step(drafting, [])
        kept.capture(drafting, logits[: len(drafting)], None, None)
        assert len(kept) <= 5
    kept.begin_step(["a", "c"], ["a", "c"])
    rows = kept.take(["a", "c"], [2, 1], torch.tensor([5, 6, 7]), VOCABULARY)
    assert rows is not None and torch.allclose(rows[:2], logits[:1].softmax(-1).expand(2, -1))
    assert [row.nonzero().flatten().tolist() for row in rows[2:]] == [[7]]
    kept.begin_step([], [])
    kept.begin_step(["c"], [])
    kept.capture(["c"], logits[:1], None, None)
    assert len(kept) == 1  # another request of that name
