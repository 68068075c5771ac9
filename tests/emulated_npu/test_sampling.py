"""vllm-ascend's sampler and rejection sampler judge drafts by what they were sampled from, as vLLM's do."""

from __future__ import annotations

import pytest

from lynx_ascend.serving.draft_probs import DraftProbs
from tests.serving.sampling_rig import Rig, assert_exact


@pytest.mark.parametrize("captured", [True, False])
def test_answers_follow_the_verify_passes_law(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm_ascend.worker.worker  # noqa: F401  first: its samplers cannot be imported on their own
    from vllm.config import VllmConfig
    from vllm_ascend.ascend_config import init_ascend_config
    from vllm_ascend.sample.sampler import AscendSampler

    init_ascend_config(VllmConfig())
    if not captured:
        monkeypatch.setattr(DraftProbs, "capture", lambda *args: None)
    assert_exact(Rig(3000, AscendSampler(), "npu"), captured)
