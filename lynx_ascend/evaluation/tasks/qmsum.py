"""QMSum: answers to queries about meetings, against the published ones by ROUGE-L."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

from lynx_ascend.evaluation.data import Meeting, Query, read_meetings
from lynx_ascend.evaluation.fidelity import Reconstruction
from lynx_ascend.evaluation.tasks.rouge import rouge_l
from lynx_ascend.evaluation.tasks.task import Answer, Item, Task
from lynx_ascend.evaluation.texts import chat

_FORMAT = "Answer in one paragraph."


@dataclass(frozen=True)
class QMSum(Task):
    """The queries of `data` (jsonl as published). A general query is asked about the meeting from its start, a specific
    one about the turns that the data marks as relevant (the published "gold spans").

    Attributes:
        limit: how many queries, of each meeting in turn; None: all. tokens: of the meeting, at most.
    """

    data: Path
    limit: int | None = None
    tokens: int = 2000
    answer_tokens: int = 96
    name: ClassVar[str] = "qmsum"
    title: ClassVar[str] = "QMSum"
    score_name: ClassVar[str] = "ROUGE-L"
    version: ClassVar[int] = 1
    shares: ClassVar[bool] = False

    def items(self, tokenizer: Any, positions: int) -> list[Item]:
        found = []
        for row in zip_longest(*(_queries(i, meeting) for i, meeting in enumerate(read_meetings(self.data)))):
            for i, kind, query in (asked for asked in row if asked is not None):
                said = tokenizer.decode(tokenizer(query.about, add_special_tokens=False).input_ids[: self.tokens])
                ids = chat(tokenizer, f"{said}\n\nQuestion: {query.text} {_FORMAT}")
                found.append(Item(f"meeting {i}, {query.text}", kind, ids, query.answer))
        return found[: self.limit]

    def answers(self, model: Any, tokenizer: Any, item: Item, got: Sequence[Reconstruction]) -> list[Answer]:
        return [Answer(text=text) for text in self.say(model, tokenizer, item, got)]

    def score(self, item: Item, answer: Answer) -> float:
        return rouge_l(answer["text"], item.wanted)

    def agreement(self, answer: Answer, exact: Answer) -> float:
        """ROUGE-L of the two texts."""
        return 1.0 if answer["text"] == exact["text"] else rouge_l(answer["text"], exact["text"])


def _queries(number: int, meeting: Meeting) -> Iterator[tuple[int, str, Query]]:
    """(the meeting's number, general | specific, query)."""
    for kind, queries in (("general", meeting.general), ("specific", meeting.specific)):
        for query in queries:
            yield number, kind, query
