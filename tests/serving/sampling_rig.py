"""vLLM's own sampler and rejection sampler without an engine: rows that draft from one law, and verify by another."""

from __future__ import annotations

import functools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch

from lynx_ascend.serving import compat, verification

VOCABULARY, DRAFTS = 12, 3
# temperature, top_k, top_p of the rows in turn
KINDS = [(1.0, VOCABULARY, 1.0), (0.7, 6, 1.0), (1.3, VOCABULARY, 0.8)]


@functools.cache
def set_kernels() -> None:
    """The rejection sampler's kernels on a CPU, as the start of an engine sets them."""
    from vllm.platforms import current_platform

    if compat.vllm_version() == "0.23":
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        CPUModelRunner._postprocess_triton(SimpleNamespace())
    else:
        current_platform.register_triton_kernel_overrides()


def sampling(rows: int, device: str, **changes: Any) -> Any:
    """The SamplingMetadata of so many rows, their parameters those of KINDS in turn."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    temperature, top_k, top_p = (torch.tensor([KINDS[i % 3][j] for i in range(rows)], device=device) for j in range(3))
    fields: dict[str, Any] = {
        "temperature": temperature,
        "all_greedy": False,
        "all_random": True,
        "top_k": top_k.int(),
        "top_p": top_p,
        "generators": {},
        "max_num_logprobs": None,
        "no_penalties": True,
        "prompt_token_ids": None,
        "frequency_penalties": torch.zeros(rows, device=device),
        "presence_penalties": torch.zeros(rows, device=device),
        "repetition_penalties": torch.ones(rows, device=device),
        "output_token_ids": [[] for _ in range(rows)],
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(),
        "spec_token_ids": [[] for _ in range(rows)],
    }
    return SamplingMetadata(**{**fields, **changes})


def law(logits: torch.Tensor, kind: int) -> torch.Tensor:
    """What sampling from `logits` [VOCABULARY] follows, by the definition of temperature, top-k and top-p."""
    temperature, top_k, top_p = KINDS[kind]
    probs, order = (logits / temperature).softmax(-1).sort(descending=True)
    probs[top_k:] = 0
    probs /= probs.sum()
    probs[probs.cumsum(0) - probs >= top_p] = 0
    return torch.zeros(VOCABULARY).scatter(0, order, probs / probs.sum())


def p_value(outcomes: list[int], probs: torch.Tensor) -> float:
    """Pearson's chi-square of a sample against a law; outcomes expected fewer than 5 times share a bin."""
    counts, bins = Counter(outcomes), {}
    for token, prob in enumerate(probs.tolist()):
        expected, observed = prob * len(outcomes), counts[token]
        assert prob > 0 or not observed, f"token {token} cannot come"
        key = token if expected >= 5 else -1
        before = bins.get(key, (0.0, 0))
        bins[key] = before[0] + expected, before[1] + observed
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in bins.values() if expected > 0)
    return float(torch.special.gammaincc(torch.tensor((len(bins) - 1) / 2).double(), torch.tensor(statistic / 2)))


class Rig:
    """A runner's samplers over many rows that all see the same logits: q while they draft, p when they are verified."""

    def __init__(self, rows: int, sampler: Any = None, device: str = "cpu") -> None:
        from vllm.v1.sample.sampler import Sampler

        if device == "cpu":
            set_kernels()
        torch.manual_seed(14)
        self.device = device
        self.rows = rows
        self.ids = [f"r{i}" for i in range(rows)]
        self.q = 1.5 * torch.randn(DRAFTS, VOCABULARY)
        self.p = self.q + 1.5 * torch.randn(DRAFTS, VOCABULARY)
        self.runner = SimpleNamespace(sampler=sampler or Sampler(), input_batch=SimpleNamespace(req_ids=self.ids))
        self.runner.rejection_sampler = compat.rejection_sampler(self.runner.sampler)
        self.kept = verification.install(self.runner)

    def draft(self) -> torch.Tensor:
        """[rows, DRAFTS], one sampler step a draft."""
        steps = []
        for q in self.q:
            self.kept.begin_step(self.ids, [])
            logits = q.repeat(self.rows, 1).to(self.device)
            steps.append(self.runner.sampler(logits, sampling(self.rows, self.device)).sampled_token_ids)
        return torch.cat(steps, dim=1).cpu()

    def verify(self, drafts: torch.Tensor) -> list[list[int]]:
        """What the rejection sampler answers each row with."""
        from vllm.v1.sample.rejection_sampler import RejectionSampler
        from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

        metadata = SpecDecodeMetadata.make_dummy(drafts.tolist(), torch.device(self.device))
        indices = torch.arange(self.rows * (DRAFTS + 1), device=self.device).view(self.rows, DRAFTS + 1)
        metadata.target_logits_indices = indices[:, :DRAFTS].flatten()
        metadata.bonus_logits_indices = indices[:, DRAFTS]
        logits = torch.cat([self.p, self.p[:1]]).repeat(self.rows, 1).to(self.device)
        self.kept.begin_step(self.ids, self.ids)
        spec = [row.tolist() for row in drafts]
        limits = sampling(self.rows, self.device, spec_token_ids=spec)
        output = self.runner.rejection_sampler(metadata, None, logits, limits)
        tokens, _ = RejectionSampler.parse_output(output.sampled_token_ids, VOCABULARY)
        return tokens


def assert_exact(rig: Rig, captured: bool) -> None:
    """Answers follow p whatever was drafted, and as many drafts are accepted as the rule says."""
    drafts = rig.draft()
    assert len(rig.kept) == (rig.rows * DRAFTS if captured else 0)
    answers = rig.verify(drafts)
    assert len(rig.kept) == 0
    for kind in range(3):
        mine = answers[kind::3]
        p, q = law(rig.p[0], kind), law(rig.q[0], kind)
        assert p_value([answer[0] for answer in mine], p) > 1e-4
        # The drafts themselves follow q, and could not be taken for p.
        first = drafts[kind::3, 0].tolist()
        assert p_value(first, q) > 1e-4
        assert float((p - q).abs().sum()) / 2 > 0.2
        # The second token: p's second row, given that the first draft was accepted.
        second = [answer[1] for answer in mine if len(answer) > 1]
        assert p_value(second, law(rig.p[1], kind)) > 1e-4
        # A draft from q is accepted with probability sum(min(p, q)); one that is taken for certain, sum(p * q).
        expected = float((torch.minimum(p, q) if captured else p * q).sum())
        assert abs(len(second) / len(mine) - expected) < 4 * (0.25 / len(mine)) ** 0.5
