"""What a task is: prompts with a known answer, how a cache is made to answer, and how answers are scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NotRequired, TypedDict

from lynx_ascend.evaluation.fidelity import Reconstruction, greedy_ids
from lynx_ascend.evaluation.local_engine import eos_ids


@dataclass(frozen=True)
class Item:
    """A prompt. group: a category, or a cell of a grid. ids: its tokens, none if only an endpoint knows them. wanted:
    the right answer. choices: how many answers there are to choose from; 0: any text. exemplars: solved questions
    before the one asked; None: the task has none, or its answers tell."""

    name: str
    group: str
    ids: Sequence[int]
    wanted: str
    choices: int = 0
    exemplars: int | None = None


class Grid(NamedTuple):
    """How groups make a grid. rows, columns: their labels; down, across: what these are; cells: groups, by row."""

    down: str
    rows: Sequence[str]
    across: str
    columns: Sequence[str]
    cells: Sequence[Sequence[str]]


class Answer(TypedDict):
    """text: what was chosen or said. reasoning: said before a choice. log_p: of each choice, in nats, among the whole
    vocabulary; None where an endpoint did not tell. exemplars: solved questions that an endpoint took before the one
    asked."""

    text: str
    reasoning: NotRequired[str]
    log_p: NotRequired[Sequence[float | None]]
    exemplars: NotRequired[int]


class Task(ABC):
    """A task, a frozen dataclass whose fields are its parameters.

    Attributes:
        name: of the command and the files. title, score_name: for tables.
        version: of what is asked and how: raise it when answers would come out differently.
        shares: scores and agreements are 0 or 1.
        answer_tokens: how many tokens the model may say; 0: it is scored without.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    score_name: ClassVar[str]
    version: ClassVar[int]
    shares: ClassVar[bool] = True
    answer_tokens: int

    @abstractmethod
    def items(self, tokenizer: Any, positions: int) -> list[Item]:
        """The prompts, of at most `positions` tokens where the task can choose, always the same ones.

        Raises:
            ValueError, OSError: data that cannot be read or is not in its format, naming file and line.
        """

    @abstractmethod
    def answers(self, model: Any, tokenizer: Any, item: Item, got: Sequence[Reconstruction]) -> list[Answer]:
        """What the model answers on each of `got`, caches of all of the item's tokens but the last."""

    @abstractmethod
    def score(self, item: Item, answer: Answer) -> float:
        """0 (wrong) .. 1 (right)."""

    def grid(self) -> Grid | None:
        """How reports lay out the groups; None: side by side."""
        return None

    def agreement(self, answer: Answer, exact: Answer) -> float:
        """With the answer on the exact cache, 0 .. 1: whether the texts are the same."""
        return float(answer["text"] == exact["text"])

    def say(self, model: Any, tokenizer: Any, item: Item, got: Sequence[Reconstruction]) -> list[str]:
        """The model's greedy text on each of `got`, of at most `answer_tokens` tokens."""
        every = greedy_ids(model, got, item.ids[-1], self.answer_tokens, eos_ids(model))
        return [str(tokenizer.decode(ids)).strip() for ids in every]
