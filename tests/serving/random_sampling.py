"""Are randomly sampled answers, with drafts and handovers, distributed as without? One engine, one tiny model.

    python -m tests.serving.random_sampling --requests 600      # prints one JSON object

Every request has the same prompt and link, so all answers of a group are samples of one distribution. The drafts
themselves, sampled on the Anchor alone, are compared too: they must be told apart, or the model shows nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tests.conftest  # noqa: F401  the environment, before anything imports vLLM
from lynx_ascend.serving.draft_probs import DraftProbs
from tests.serving.harness import Engine

VOCABULARY = 64
PROMPT_TOKENS = 300
CAP = 6
BATCH = 64
TOKENS = 3  # of each answer that are compared, jointly
MBIT_S = 0.3  # on which the Residual takes longer than the drafts, on a busy machine too
GROUPS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "limited": {"temperature": 0.8, "top_k": 12, "top_p": 0.95},
}


def tiny_model(folder: Path) -> str:
    """Writes a random Llama whose next token depends on what the codec changes in the KV."""
    torch.manual_seed(6)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                gain = 5.0 if "q_proj" in name or "k_proj" in name else 1.0
                weight.normal_(0.0, gain / weight.shape[1] ** 0.5)
        model.model.embed_tokens.weight.normal_()
        model.lm_head.weight.mul_(4.0)
    model.save_pretrained(folder)
    return str(folder)


def chi_square(left: Sequence[Any], right: Sequence[Any]) -> dict[str, float]:
    """Are two samples of one distribution? Pearson's test of homogeneity.

    Outcomes that are expected fewer than 5 times in either sample share a bin.

    Returns:
        `statistic`, `degrees` of freedom, `p`.
    """
    counts = Counter(left), Counter(right)
    total = len(left) + len(right)
    share = min(len(left), len(right)) / total
    table: dict[Any, list[int]] = {}
    for outcome in counts[0].keys() | counts[1].keys():
        both = [count[outcome] for count in counts]
        bin_of = table.setdefault(outcome if sum(both) * share >= 5 else None, [0, 0])
        bin_of[0], bin_of[1] = bin_of[0] + both[0], bin_of[1] + both[1]
    if sum(table.get(None, [0, 0])) * share < 5 and None in table:  # too small a rest joins the smallest bin
        rest = table.pop(None)
        smallest = min(table.values(), key=sum)
        smallest[0], smallest[1] = smallest[0] + rest[0], smallest[1] + rest[1]
    statistic = 0.0
    for row in table.values():
        for observed, size in zip(row, (len(left), len(right)), strict=True):
            expected = sum(row) * size / total
            statistic += (observed - expected) ** 2 / expected
    degrees = len(table) - 1
    p = torch.special.gammaincc(torch.tensor(degrees / 2.0).double(), torch.tensor(statistic / 2.0).double())
    return {"statistic": statistic, "degrees": degrees, "p": float(p)}


class Sampler:
    """An engine, and the answers of many requests with one prompt."""

    def __init__(self, model: str) -> None:
        self.engine = Engine(model, blocks=4096, tokenizer=False, stall=60.0)  # so many slow links wait for each other
        self.prompt = random.Random(3).choices(range(VOCABULARY), k=PROMPT_TOKENS)
        self.drafts: dict[str, list[tuple[int, ...]]] = {}  # by group, the first TOKENS of each draft
        self.drafted: list[int] = []  # by request, and how many of them were accepted
        self.accepted: list[int] = []
        self.engine.half._trace = self._watch

    def _watch(self, event: str, request_id: str, **fields: Any) -> None:
        if event == "verify_start":
            decoder = self.engine.half.remotes[request_id].decoder
            drafts = decoder.drafts if decoder.first is None else (decoder.first, *decoder.drafts)
            temperature = self.engine.scheduler.requests[request_id].sampling_params.temperature
            (name,) = (name for name in GROUPS if GROUPS[name]["temperature"] == temperature)
            if len(drafts) >= TOKENS:
                self.drafts[name].append(tuple(drafts[:TOKENS]))
        elif event == "verified":
            self.drafted.append(fields["drafted"])
            self.accepted.append(fields["accepted"])

    def answers(self, requests: int, **options: Any) -> dict[str, list[tuple[int, ...]]]:
        """By group, the first TOKENS of so many answers; the groups share the batches."""
        found: dict[str, list[tuple[int, ...]]] = {name: [] for name in GROUPS}
        self.drafts, self.drafted, self.accepted = {name: [] for name in GROUPS}, [], []
        names = [name for name in GROUPS for _ in range(requests // len(GROUPS))]
        random.Random(1).shuffle(names)
        for first in range(0, len(names), BATCH):
            batch = names[first : first + BATCH]
            # Every other one has a seed, and so samples its first token here; the others' is the one that P sampled.
            sampling = [
                {**GROUPS[name], "seed": first + index if index % 2 else None, "ignore_eos": True}
                for index, name in enumerate(batch)
            ]
            ids = [self.engine.add(self.prompt, {"do_remote_decode": True}, max_tokens=1, **own) for own in sampling]
            params = [answer.params for answer in self.engine.run(*ids)]
            ids = [
                self.engine.add(self.prompt, given, max_tokens=CAP + 2, **own, **options)
                for given, own in zip(params, sampling, strict=True)
            ]
            for name, answer in zip(batch, self.engine.run(*ids), strict=True):
                found[name].append(tuple(answer.tokens[:TOKENS]))
        self.engine.assert_clean()
        return found


def measure(sampler: Sampler, requests: int) -> dict[str, Any]:
    """The tests of each group's answers and of its drafts, and how many drafts were made and accepted in the mean."""
    handover = sampler.engine.half.handover
    handover.enabled = False
    plain = sampler.answers(requests, lynx_draft_cap=0)
    handover.enabled = True
    assert not sampler.drafted, "the reference drafted"
    lynx = sampler.answers(requests, lynx_draft_cap=CAP, lynx_bandwidth=MBIT_S)
    return {
        "requests": sum(map(len, lynx.values())),
        "verified": len(sampler.drafted),
        "drafted": sum(sampler.drafted) / len(sampler.drafted),
        "accepted": sum(sampler.accepted) / len(sampler.accepted),
        "answers": {name: chi_square(lynx[name], plain[name]) for name in GROUPS},
        "drafts": {name: chi_square(sampler.drafts[name], plain[name]) for name in GROUPS},
    }


def without_rows(sampler: Sampler, requests: int) -> dict[str, Any]:
    """The same where no row of the drafts' distributions is kept."""
    capture = DraftProbs.capture
    DraftProbs.capture = lambda *args: None  # type: ignore[method-assign]
    try:
        return measure(sampler, requests)
    finally:
        DraftProbs.capture = capture  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=600, help="with drafts, and as many without")
    parser.add_argument("--without-rows", action="store_true", help="measure that too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(tiny_model(Path(folder)))
        result = {"with rows": measure(sampler, arguments.requests)}
        if arguments.without_rows:
            result["without rows"] = without_rows(sampler, arguments.requests)
        sampler.engine.core.shutdown()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
