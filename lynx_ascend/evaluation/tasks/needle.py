"""A needle in a haystack: one sentence at a depth of a made-up document, asked for at its end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lynx_ascend.evaluation.documents import field_notes, incidents, meeting
from lynx_ascend.evaluation.fidelity import Reconstruction
from lynx_ascend.evaluation.prompts import chat_prompt
from lynx_ascend.evaluation.tasks.task import Answer, Grid, Item, Task

_WRITERS: Sequence[Callable[[random.Random], Iterator[str]]] = (meeting, incidents, field_notes)
_COLOURS = ["amber", "cobalt", "crimson", "emerald", "indigo", "ochre", "scarlet", "teal", "turquoise", "violet"]


@dataclass(frozen=True)
class Needle(Task):
    """A grid of documents.

    Attributes:
        lengths: tokens of the prompts, everything counted. depths: where the needle is, 0 (the start) .. 100 (the end).
            One that is given twice counts once.
        repeats: documents a cell, each with a needle of its own.
    """

    lengths: Sequence[int]
    depths: Sequence[float]
    repeats: int = 2
    answer_tokens: int = 24
    name: ClassVar[str] = "needle"
    title: ClassVar[str] = "Needle in a haystack"
    score_name: ClassVar[str] = "found"
    version: ClassVar[int] = 1

    def items(self, tokenizer: Any, positions: int) -> list[Item]:
        for depth in self.depths:
            if not 0 <= depth <= 100:
                raise ValueError(f"depths: {depth:g} is not 0 .. 100")
        for length in self.lengths:  # before a document of any length is made
            if length + self.answer_tokens > positions:
                raise ValueError(f"lengths: {length} tokens and the answer's, the model has {positions} positions")
        lengths, depths = dict.fromkeys(self.lengths), dict.fromkeys(self.depths)
        cells = [(length, depth) for length in lengths for depth in depths]
        return [self._item(tokenizer, *cell, repeat) for cell in cells for repeat in range(self.repeats)]

    def grid(self) -> Grid:
        lengths, depths = dict.fromkeys(self.lengths), dict.fromkeys(self.depths)
        cells = [[_cell(length, depth) for length in lengths] for depth in depths]
        return Grid("depth / %", [f"{depth:g}" for depth in depths], "tokens", [f"{n:,}" for n in lengths], cells)

    def answers(self, model: Any, tokenizer: Any, item: Item, got: Sequence[Reconstruction]) -> list[Answer]:
        return [Answer(text=text) for text in self.say(model, tokenizer, item, got)]

    def score(self, item: Item, answer: Answer) -> float:
        return float(item.wanted in answer["text"])

    def _item(self, tokenizer: Any, length: int, depth: float, repeat: int) -> Item:
        rng = random.Random(f"{length} {depth:g} {repeat}")
        colour, code = rng.choice(_COLOURS), str(rng.randint(10_000, 99_999))
        needle = f"\nThe code of the {colour} safe is {code}.\n"
        task = f"What is the code of the {colour} safe?"
        write = _WRITERS[repeat % len(_WRITERS)]
        taken = _shortest(tokenizer, needle, task)
        room = length - taken
        if room < 1:
            raise ValueError(f"lengths: {length} tokens leave no room for a document ({taken} are taken)")
        ids = chat_prompt(tokenizer, _hidden(tokenizer, write(rng), needle, room * depth / 100), task, length)
        return Item(f"{length} tokens, depth {depth:g} %, {repeat}", _cell(length, depth), ids, code)


def _cell(length: int, depth: float) -> str:
    return f"{length} at {depth:g} %"


def _shortest(tokenizer: Any, needle: str, task: str) -> int:
    """Tokens of a prompt of the needle and the task alone."""
    message = [{"role": "user", "content": f"\N{SYMBOL FOR SUBSTITUTE}\n\n{task}"}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    parts = [*text.split("\N{SYMBOL FOR SUBSTITUTE}"), needle]
    return sum(len(tokenizer(part, add_special_tokens=False).input_ids) for part in parts)


def _hidden(tokenizer: Any, document: Iterator[str], needle: str, before: float) -> Iterator[str]:
    """The document, and the needle after as many of its pieces as fit into `before` tokens."""
    tokens, hidden = 0, False
    for piece in document:
        tokens += len(tokenizer(piece, add_special_tokens=False).input_ids)
        if not hidden and tokens > before:
            hidden = True
            yield needle
        yield piece
