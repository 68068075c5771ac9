"""QMSum meetings and MMLU-Pro questions in their published formats, checked field by field as they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any


@dataclass(frozen=True)
class Query:
    """A question about a meeting with the published answer. about: the turns that the data marks as relevant, a line a
    turn; of a general query, all."""

    text: str
    answer: str
    about: str


@dataclass(frozen=True)
class Meeting:
    """text: a line a turn. One of general and specific may be empty."""

    text: str
    general: Sequence[Query]
    specific: Sequence[Query]


@dataclass(frozen=True)
class Question:
    """cot: the published reasoning of an exemplar, "" without one."""

    name: str
    category: str
    text: str
    options: Sequence[str]
    answer: str
    cot: str


def read_meetings(path: Path) -> list[Meeting]:
    """The meetings of a jsonl file.

    Raises:
        ValueError: naming file and line: one that is not a QMSum meeting with at least one query.
        OSError: it cannot be read.
    """
    meetings = []
    for where, value in _lines(path):
        try:
            meetings.append(_meeting(value))
        except ValueError as error:
            raise ValueError(f"{where}: not a QMSum meeting: {error}") from None
    return meetings


def read_questions(path: Path) -> list[Question]:
    """The questions of a jsonl file.

    Raises:
        ValueError: naming file and line: one that is not a question of MMLU-Pro. OSError: it cannot be read.
    """
    questions = []
    for number, (where, value) in enumerate(_lines(path), 1):
        try:
            questions.append(_question(value, number))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return questions


def read_text(path: Path) -> str:
    """Raises ValueError if the file is not UTF-8 text, OSError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and line, the object there). Raises ValueError unless each line is an object; there must be one."""
    lines = read_text(path).split("\n")  # not str.splitlines, which splits at other characters too
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise ValueError(f"{path}: empty")
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair would trouble the tokenizer
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error})") from None
        if not isinstance(value, dict):
            raise ValueError(f"{where}: no JSON object")
        yield where, value


def _meeting(value: dict[str, Any]) -> Meeting:
    turns = []
    for number, turn in enumerate(_objects(value, "meeting_transcripts")):
        if not isinstance(turn.get("speaker"), str) or not isinstance(turn.get("content"), str):
            raise ValueError(f"turn {number}: 'speaker' or 'content' is no text")
        turns.append(f"{turn['speaker']}: {turn['content']}")
    text = "\n".join(turns)
    if not text:
        raise ValueError("'meeting_transcripts' is empty")
    general = [_query(entry, text) for entry in _objects(value, "general_query_list")]
    specific = [_query(entry, _relevant(entry, turns)) for entry in _objects(value, "specific_query_list")]
    if not general and not specific:
        raise ValueError("'general_query_list' and 'specific_query_list' are empty")
    return Meeting(text, general, specific)


def _query(entry: dict[str, Any], about: str) -> Query:
    return Query(_text(entry, "query"), _text(entry, "answer"), about)


def _relevant(entry: dict[str, Any], turns: Sequence[str]) -> str:
    chosen: list[str] = []
    spans = entry.get("relevant_text_span")
    for span in spans if isinstance(spans, list) else ():
        try:
            first, last = map(int, span)
        except (TypeError, ValueError):
            raise ValueError(f"the span {span!r} is no pair of turns") from None
        if not 0 <= first <= last < len(turns):
            raise ValueError(f"the span {first} .. {last} of {len(turns)} turns")
        chosen += turns[first : last + 1]
    if not chosen:
        raise ValueError(f"no relevant_text_span of {entry.get('query')!r}")
    return "\n".join(chosen)


def _question(value: dict[str, Any], number: int) -> Question:
    text, category, answer = (_text(value, field) for field in ("question", "category", "answer"))
    options, cot = value.get("options"), value.get("cot_content") or ""
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise ValueError("'options' is no list of texts")
    if not 2 <= len(options) <= len(ascii_uppercase):
        raise ValueError(f"{len(options)} options, not 2 .. {len(ascii_uppercase)}")
    if blank := [letter for letter, option in zip(ascii_uppercase, options, strict=False) if not option.strip()]:
        raise ValueError(f"option {blank[0]} is blank")
    if answer not in ascii_uppercase[: len(options)] or len(answer) != 1:
        raise ValueError(f"the answer {answer!r} is none of the {len(options)} options")
    if value.get("answer_index", ascii_uppercase.index(answer)) != ascii_uppercase.index(answer):
        raise ValueError(f"answer_index {value['answer_index']!r} is not that of answer {answer!r}")
    if not isinstance(cot, str):
        raise ValueError("'cot_content' is no text")
    return Question(f"{category} {value.get('question_id', number)}", category, text, options, answer, cot)


def _objects(value: dict[str, Any], field: str) -> list[dict[str, Any]]:
    found = value.get(field)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ValueError(f"{field!r} is no list of objects")
    return found


def _text(entry: dict[str, Any], field: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field!r} is no text")
    return value
