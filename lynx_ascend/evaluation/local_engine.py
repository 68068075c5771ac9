"""A small in-process engine on Transformers that drives a SpecDecoder, and the 8-bit answer it must give.

Greedy decoding, one request at a time. No vLLM, connector or link: the residual takes a given number of draft steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.evaluation.kv import PromptKV, prefill, reconstruct
from lynx_ascend.speculation.acceptance import greedy_accept
from lynx_ascend.speculation.actions import Action, Commit, Emit, Park, StartDraft, Verify
from lynx_ascend.speculation.decoder import SpecDecoder
from lynx_ascend.speculation.window import FixedWindow


@dataclass(frozen=True)
class Generation:
    """A request's answer: token ids, EOS included where it ended the text; what was drafted and accepted for it."""

    tokens: tuple[int, ...]
    drafted: int
    accepted: int


def reference_text(
    model: Any,
    prompt_ids: Sequence[int],
    config: CodecConfig,
    max_tokens: int,
    *,
    ignore_eos: bool = False,
    handover: bool = False,
) -> list[int]:
    """The 8-bit answer: greedy token ids on the Anchor + Residual cache, EOS included where it ends the text.

    All N prompt tokens are prefilled and their KV coded; positions 0 .. N-2 are replaced by the reconstruction, the
    last prompt token is recomputed on it, and decoding goes on from there.

    Args:
        model: a Transformers causal LM; its dtype is the cache's.
        prompt_ids: N >= 1 token ids; max_tokens: >= 1.
        ignore_eos: go on past EOS.
        handover: the first token is that of the exact cache, and all N positions are replaced by the reconstruction.

    Raises:
        ValueError: an empty prompt, or max_tokens < 1.
    """
    exact = prefill(model, prompt_ids)
    _, full = reconstruct(exact, config)
    first = greedy_text(model, prompt_ids, exact, 1)[0] if handover else None
    return greedy_text(model, prompt_ids, full, max_tokens, ignore_eos=ignore_eos, first=first)


def greedy_text(
    model: Any,
    prompt_ids: Sequence[int],
    kv: PromptKV,
    max_tokens: int,
    *,
    ignore_eos: bool = False,
    first: int | None = None,
) -> list[int]:
    """Greedy token ids on `kv`, whose last position is recomputed; as reference_text otherwise.

    first: the token that was handed over; then all positions of `kv` are used as they are.
    """
    _check_max_tokens(max_tokens)
    stops = frozenset() if ignore_eos else eos_ids(model)
    tokens: list[int] = [] if first is None else [first]
    cache = kv.cache(len(prompt_ids) - 1 + len(tokens))
    while not _ended(tokens, max_tokens, stops):
        tokens += _forward(model, tokens[-1:] or prompt_ids[-1:], cache)
    return tokens


def eos_ids(model: Any) -> frozenset[int]:
    """The ids that end a text, from the model's generation config."""
    ids = model.generation_config.eos_token_id
    return frozenset(() if ids is None else [ids] if isinstance(ids, int) else ids)


class LocalEngine:
    """Runs requests one at a time through SpecDecoder.

    Args:
        model: a Transformers causal LM; its dtype is the cache's.
        config: the codec.
        cap: the most tokens drafted.
        ignore_eos: go on past EOS.
    """

    def __init__(self, model: Any, config: CodecConfig, *, cap: int = 64, ignore_eos: bool = False) -> None:
        self._model = model
        self._config = config
        self._window = FixedWindow(cap)
        self._stops = frozenset() if ignore_eos else eos_ids(model)

    def generate(
        self, prompt_ids: Sequence[int], max_tokens: int, *, steps: int | None = None, kv: PromptKV | None = None
    ) -> Generation:
        """Answers one prompt.

        Args:
            prompt_ids: N >= 1 token ids; max_tokens: >= 1.
            steps: draft steps that the residual takes to arrive; None: until the draft is parked.
            kv: the prompt's exact KV if the caller has it, in the type that is coded, of all tokens or all but the
                last, which is recomputed.

        Raises:
            ValueError: an empty prompt, or max_tokens < 1.
        """
        _check_max_tokens(max_tokens)
        anchor, full = reconstruct(kv or prefill(self._model, prompt_ids), self._config)
        decoder = SpecDecoder("local", cap=self._window.draft_cap(max_tokens))
        request = _Request(self._model, prompt_ids, anchor, full, max_tokens, self._stops)
        request.carry_out(decoder.on_anchor_ready())
        while decoder.drafting and (steps is None or len(decoder.drafts) < steps):
            token = request.draft_step()
            request.carry_out(decoder.on_draft_token(token, stop=token in self._stops))
        request.carry_out(decoder.on_residual_ready())
        request.carry_out(decoder.on_verified(request.verified))
        request.decode_to_end()
        return Generation(tuple(request.output), len(decoder.drafts), decoder.accepted or 0)


class _Request:
    """The model's side of one request: its cache, and what the client has been given."""

    def __init__(
        self,
        model: Any,
        prompt_ids: Sequence[int],
        anchor: PromptKV,
        full: PromptKV,
        max_tokens: int,
        stops: frozenset[int],
    ) -> None:
        self._model, self._prompt_ids = model, prompt_ids
        self._anchor, self._full = anchor, full
        self._max_tokens, self._stops = max_tokens, stops
        self._cache: Any = None
        self._last = prompt_ids[-1]
        self.verified: list[int] = []
        self.output: list[int] = []

    def carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case StartDraft() | Park():
                    self._cache = self._cache or self._anchor.cache(len(self._prompt_ids) - 1, self._model.dtype)
                case Commit():
                    self._cache = self._full.cache(len(self._prompt_ids) - 1, self._model.dtype)
                case Verify(drafts):
                    self.verified = self._verify(drafts)
                case Emit(tokens):
                    self.output += tokens

    def draft_step(self) -> int:
        [self._last] = _forward(self._model, [self._last], self._cache)
        return self._last

    def _verify(self, drafts: tuple[int, ...]) -> list[int]:
        targets = _forward(self._model, [self._prompt_ids[-1], *drafts], self._cache)
        tokens: list[int] = []
        for token in greedy_accept(drafts, targets):
            if not _ended(tokens, self._max_tokens, self._stops):
                tokens.append(token)
        # The KV of rejected drafts goes; that of the last verified token comes with the next step.
        if rejected := len(targets) - len(tokens):
            self._cache.crop(-rejected)
        return tokens

    def decode_to_end(self) -> None:
        while not _ended(self.output, self._max_tokens, self._stops):
            self.output += _forward(self._model, self.output[-1:], self._cache)


def _check_max_tokens(max_tokens: int) -> None:
    if max_tokens < 1:
        raise ValueError(f"max_tokens: {max_tokens} is less than 1")


def _ended(tokens: Sequence[int], max_tokens: int, stops: frozenset[int]) -> bool:
    return len(tokens) >= max_tokens or (bool(tokens) and tokens[-1] in stops)


@torch.inference_mode()
def _forward(model: Any, ids: Sequence[int], cache: Any) -> list[int]:
    """Appends the KV of `ids` to the cache; returns the argmax after each."""
    logits = model(torch.tensor([list(ids)]), past_key_values=cache, use_cache=True).logits
    return [int(token) for token in logits[0].argmax(-1)]
