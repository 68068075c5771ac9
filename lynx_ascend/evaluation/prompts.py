"""Deterministic long prompts made without any data: a synthesised document and a task, in the model's chat template."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lynx_ascend.evaluation.documents import field_notes, incidents, meeting

_Writer = Callable[[random.Random], Iterator[str]]
# Tasks on which a 135M model goes on for 64 tokens. They were picked, among others as plain, also for a draft that is
# accepted for a while: numbers on these prompts compare codecs, and say little about how often drafts hold in general.
_KINDS: tuple[tuple[_Writer, str], ...] = (
    (meeting, "What was decided in this meeting? Answer with a numbered list of at least ten full sentences."),
    (incidents, "Write an email to the customers that explains these incidents."),
    (field_notes, "Write a short story about the people and the animals in these notes."),
)


def prompts(tokenizer: Any, n: int = 20, lengths: Sequence[int] | None = None) -> list[list[int]]:
    """Prompts of exact length, the same on every machine for the same tokenizer.

    Args:
        tokenizer: a Transformers tokenizer with a chat template.
        n: how many; their documents are a meeting, an incident diary and field notes in turn.
        lengths: tokens of each prompt, template included; None: n lengths spread evenly over 300 .. 4,000.

    Returns:
        n lists of token ids.

    Raises:
        ValueError: n is negative, lengths is not of length n, or a length leaves the document no room.
    """
    if n < 0:
        raise ValueError(f"n: {n} is negative")
    if lengths is None:
        lengths = [300 + 3700 * i // max(n - 1, 1) for i in range(n)]
    if len(lengths) != n:
        raise ValueError(f"lengths: {len(lengths)} for {n} prompts")
    return [_prompt(tokenizer, seed, length) for seed, length in enumerate(lengths)]


def chat_prompt(tokenizer: Any, document: Sequence[str] | Iterator[str], task: str, length: int) -> list[int]:
    """Token ids, exactly `length` of them: as much of `document` (pieces of text) as fits, then `task`.

    Raises:
        ValueError: length leaves the document no room, or the document is too short.
    """
    marker = "\N{SYMBOL FOR SUBSTITUTE}"
    message = [{"role": "user", "content": f"{marker}\n\n{task}"}]
    before, after = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False).split(marker)
    head, tail = (tokenizer(part, add_special_tokens=False).input_ids for part in (before, after))
    room = length - len(head) - len(tail)
    if room < 1:
        raise ValueError(
            f"length: {length} tokens leave no room for a document (template and task take {length - room})"
        )
    body: list[int] = []
    for piece in document:
        body += tokenizer(piece, add_special_tokens=False).input_ids
        if len(body) >= room:
            return [*head, *body[:room], *tail]
    raise ValueError(f"document: {len(body)} tokens, {room} wanted")


def _prompt(tokenizer: Any, seed: int, length: int) -> list[int]:
    write, task = _KINDS[seed % len(_KINDS)]
    return chat_prompt(tokenizer, write(random.Random(seed)), task, length)
