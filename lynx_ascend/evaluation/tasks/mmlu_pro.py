"""MMLU-Pro: the most likely letter, or the one that the model reasons its way to."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar

from lynx_ascend.evaluation.data import Question, read_questions
from lynx_ascend.evaluation.documents import field_notes
from lynx_ascend.evaluation.fidelity import Reconstruction, forced_logits
from lynx_ascend.evaluation.tasks.task import Answer, Item, Task

SHOTS = 5  # solved questions before the one asked, as published
_REASON = "Let's think step by step."
_ANSWER = "The answer is ("


@dataclass(frozen=True)
class MMLUPro(Task):
    """The questions of `data`, a jsonl file or a folder with test*.jsonl and validation*.jsonl, each behind up to five
    exemplars of its category from the validation files; from a file alone, without any.

    Attributes:
        limit: how many questions, of each category in turn; None: all.
        answer_tokens: for the model's reasoning and its answer; 0: the letters' log-probabilities decide.
        context: tokens of a prompt at least; made-up text stands before a shorter one.
    """

    data: Path
    limit: int | None = None
    answer_tokens: int = 0
    context: int = 0
    name: ClassVar[str] = "mmlu-pro"
    title: ClassVar[str] = "MMLU-Pro"
    score_name: ClassVar[str] = "accuracy"
    version: ClassVar[int] = 1

    def items(self, tokenizer: Any, positions: int) -> list[Item]:
        return [
            item_of(question, *self._prompt(tokenizer, question, exemplars, positions))
            for question, exemplars in self.questions()
        ]

    def questions(self) -> list[tuple[Question, Sequence[Question]]]:
        """What is asked, each with its exemplars. Raises as `load`."""
        questions, exemplars = load(self.data)
        return [(q, exemplars.get(q.category, [])[:SHOTS]) for q in list(_in_turn(questions))[: self.limit]]

    def text(self, asked: Question, exemplars: Sequence[Question]) -> str:
        """The prompt, up to where the model begins to reason, or up to the answer's letter."""
        return prompt_text(asked, exemplars) + ("" if self.answer_tokens else f" {_ANSWER}")

    def answers(self, model: Any, tokenizer: Any, item: Item, got: Sequence[Reconstruction]) -> list[Answer]:
        if self.answer_tokens:
            said = self.say(model, tokenizer, item, got)
            return [Answer(text=extract(text, item.choices), reasoning=text) for text in said]
        log_p = forced_logits(model, got, item.ids[-1:])[:, -1].log_softmax(-1)
        rows: list[list[float]] = log_p[:, letter_ids(tokenizer, item.choices)].tolist()
        return [Answer(text=ascii_uppercase[row.index(max(row))], log_p=row) for row in rows]

    def score(self, item: Item, answer: Answer) -> float:
        return float(answer["text"] == item.wanted)

    def agreement(self, answer: Answer, exact: Answer) -> float:
        """Whether the letters are the same; where neither has one, the reasoning, if both have that."""
        if answer["text"] or exact["text"] or "reasoning" not in answer:
            return float(answer["text"] == exact["text"] != "")
        return float(answer["reasoning"] == exact.get("reasoning"))

    def _prompt(
        self, tokenizer: Any, asked: Question, exemplars: Sequence[Question], positions: int
    ) -> tuple[list[int], int]:
        """With as many exemplars as leave room, as in the published evaluation; and how many."""
        for shots in range(len(exemplars), -1, -1):
            ids = self._padded(tokenizer, self.text(asked, exemplars[:shots]), asked.name)
            if len(ids) + self.answer_tokens <= positions:
                return ids, shots
        raise ValueError(f"{asked.name}: {len(ids) + self.answer_tokens} tokens, the model has {positions} positions")

    def _padded(self, tokenizer: Any, text: str, seed: str) -> list[int]:
        ids, padding = tokenizer(text, add_special_tokens=False).input_ids, list[int]()
        start: list[int] = tokenizer("").input_ids  # such as a BOS, which is to stay the first token
        room = max(0, self.context - len(start) - len(ids))
        document = field_notes(random.Random(seed))
        while len(padding) < room:
            padding += tokenizer(next(document), add_special_tokens=False).input_ids
        return [*start, *padding[:room], *ids]


def load(data: Path) -> tuple[list[Question], dict[str, list[Question]]]:
    """The questions, and the exemplars by category.

    Raises:
        ValueError: a line that is not a question in the published format. FileNotFoundError: no questions there.
    """
    tests, validation = [data], []
    if data.is_dir():
        tests, validation = (sorted(data.glob(f"{split}*.jsonl")) for split in ("test", "validation"))
        if not tests:
            raise FileNotFoundError(f"{data}: no test*.jsonl (the hub's Parquet files: `Dataset.to_json` writes jsonl)")
    exemplars: dict[str, list[Question]] = {}
    for question in (question for path in validation for question in read_questions(path)):
        exemplars.setdefault(question.category, []).append(question)
    return [question for path in tests for question in read_questions(path)], exemplars


def item_of(question: Question, ids: Sequence[int] = (), exemplars: int | None = None) -> Item:
    """The question as an item with these tokens, so many exemplars among them; without, as an endpoint knows it."""
    return Item(question.name, question.category, ids, question.answer, len(question.options), exemplars)


def prompt_text(asked: Question, exemplars: Sequence[Question]) -> str:
    """The published prompt, up to where the model begins to reason."""
    head = (
        f"The following are multiple choice questions (with answers) about {asked.category}. Think step by step and "
        'then finish your answer with "the answer is (X)" where X is the correct letter choice.'
    )
    solved = (f"{_posed(question)} {_solution(question)}" for question in exemplars)
    return "\n\n".join([head, *solved, f"{_posed(asked)} {_REASON}"])


def letter_ids(tokenizer: Any, choices: int) -> list[int]:
    """The tokens of the first `choices` letters after "The answer is (".

    Raises:
        ValueError: a letter that is not one token of its own there.
    """
    before, found = tokenizer(_ANSWER).input_ids, []
    for letter in ascii_uppercase[:choices]:
        ids = tokenizer(f"{_ANSWER}{letter}").input_ids
        if ids[:-1] != before:
            raise ValueError(f"tokenizer: {letter!r} after {_ANSWER!r} is no token of its own")
        found.append(ids[-1])
    return found


def extract(text: str, choices: int) -> str:
    """The letter in "the answer is (X)", before the model goes on to a question of its own; "" without one."""
    match = re.search(rf"answer is \(?([A-{ascii_uppercase[choices - 1]}])\b", text.split("Question:")[0])
    return match[1] if match else ""


def _posed(question: Question) -> str:
    options = (f"{letter}. {option}" for letter, option in zip(ascii_uppercase, question.options, strict=False))
    return "\n".join([f"Question:\n{question.text}\nOptions:", *options, "Answer:"])


def _solution(question: Question) -> str:
    return question.cot.removeprefix("A:").strip() or f"{_REASON} {_ANSWER}{question.answer})."


def _in_turn(questions: Sequence[Question]) -> Iterator[Question]:
    """One of each category, then the next of each."""
    by_category: dict[str, list[Question]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    for row in zip_longest(*(by_category[category] for category in sorted(by_category))):
        yield from (question for question in row if question is not None)
