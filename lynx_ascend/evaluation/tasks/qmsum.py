"""QMSum: answers to queries about meetings, against the published ones by ROUGE-L."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

from lynx_ascend.evaluation.fidelity import Reconstruction
from lynx_ascend.evaluation.tasks.rouge import rouge_l
from lynx_ascend.evaluation.tasks.task import Answer, Item, Task
from lynx_ascend.evaluation.texts import chat, read_jsonl, turns_text

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
        meetings = []
        for number, value in enumerate(read_jsonl(self.data, "meeting_transcripts"), 1):
            try:
                meetings.append(list(_queries(value)))
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise ValueError(f"{self.data}, line {number}: not a QMSum meeting ({error!r})") from None
        found = []
        for row in zip_longest(*([(i, *query) for query in meeting] for i, meeting in enumerate(meetings))):
            for i, kind, text, query, answer in (query for query in row if query is not None):
                said = tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids[: self.tokens])
                ids = chat(tokenizer, f"{said}\n\nQuestion: {query} {_FORMAT}")
                found.append(Item(f"meeting {i}, {query}", kind, ids, answer))
        return found[: self.limit]

    def answers(self, model: Any, tokenizer: Any, item: Item, got: Sequence[Reconstruction]) -> list[Answer]:
        return [Answer(text=text) for text in self.say(model, tokenizer, item, got)]

    def score(self, item: Item, answer: Answer) -> float:
        return rouge_l(answer["text"], item.wanted)

    def agreement(self, answer: Answer, exact: Answer) -> float:
        """ROUGE-L of the two texts."""
        return 1.0 if answer["text"] == exact["text"] else rouge_l(answer["text"], exact["text"])


def _queries(meeting: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """(general | specific, text of the turns, query, answer)."""
    turns = meeting["meeting_transcripts"]
    for entry in meeting["general_query_list"]:
        yield "general", turns_text(turns), *_asked(entry)
    for entry in meeting["specific_query_list"]:
        chosen: list[dict[str, Any]] = []
        for first, last in entry["relevant_text_span"]:
            if not 0 <= int(first) <= int(last) < len(turns):
                raise ValueError(f"the span {first} .. {last} of {len(turns)} turns")
            chosen += turns[int(first) : int(last) + 1]
        if not chosen:
            raise ValueError(f"no relevant_text_span of {entry['query']!r}")
        yield "specific", turns_text(chosen), *_asked(entry)


def _asked(entry: dict[str, Any]) -> tuple[str, str]:
    for field in ("query", "answer"):
        if not isinstance(entry[field], str) or not entry[field]:
            raise ValueError(f"{field!r} is no text")
    return entry["query"], entry["answer"]
