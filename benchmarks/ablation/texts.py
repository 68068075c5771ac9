"""The prompts: windows of QMSum meetings with a query, and MMLU-Pro questions after solved ones of their category."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WINDOWS = (1200, 1700, 2300)  # tokens of a meeting, in turn; each window of a meeting starts 1,500 tokens further on
EXAMPLES = (1200, 2000)  # tokens of solved questions before the one that is asked, in turn


def texts(tokenizer: Any, qmsum: Path, mmlu_pro: Path, each: int) -> Iterator[tuple[str, str]]:
    """`each` (name, user message) from either source, always the same ones."""
    held, questions = _lines(qmsum), _lines(mmlu_pro)
    categories = sorted({question["category"] for question in questions})
    rng = random.Random(0)
    for i in range(each):
        yield f"qmsum-{i}", _meeting(tokenizer, held[i % len(held)], i // len(held))
        category = [question for question in questions if question["category"] == categories[i % len(categories)]]
        rng.shuffle(category)
        yield f"mmlu-{i}", _questions(tokenizer, category, EXAMPLES[i % len(EXAMPLES)])


def meetings(qmsum: Path) -> Iterator[str]:
    """The meetings, whole."""
    return map(_turns, _lines(qmsum))


def _turns(meeting: dict[str, Any]) -> str:
    return "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"])


def _meeting(tokenizer: Any, meeting: dict[str, Any], window: int) -> str:
    ids, wanted = tokenizer(_turns(meeting)).input_ids, WINDOWS[window % len(WINDOWS)]
    first = min(1500 * window, max(0, len(ids) - wanted))
    kinds = ("general_query_list", "specific_query_list")
    queries = meeting[kinds[window % 2]] or meeting["specific_query_list"]
    return f"{tokenizer.decode(ids[first : first + wanted])}\n\nQuestion: {queries[window % len(queries)]['query']}"


def _questions(tokenizer: Any, category: list[dict[str, Any]], wanted: int) -> str:
    solved = ""
    for question in category[1:]:
        solved += f"{_question(question)}\nAnswer: ({question['answer']})\n\n"
        if len(tokenizer(solved).input_ids) > wanted:
            break
    return f"{solved}{_question(category[0])}\nThink step by step, then answer."


def _question(question: dict[str, Any]) -> str:
    options = (f"({chr(ord('A') + i)}) {option}" for i, option in enumerate(question["options"]))
    return "\n".join([question["question"], *options])


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
