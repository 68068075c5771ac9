"""What prompts are about: QMSum meetings, MMLU-Pro questions after solved ones, a plain text, or made-up documents."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lynx_ascend.evaluation.data import Meeting, Question, read_meetings, read_questions, read_text
from lynx_ascend.evaluation.prompts import chat_prompt, prompts

WINDOWS = (1200, 1700, 2300)  # tokens of a meeting, in turn
STRIDE = 1500  # tokens by which the windows of a meeting start further on
EXAMPLES = (1200, 2000)  # tokens of solved questions before the one that is asked, in turn
TASK = "Summarise this text in ten full sentences."


def meeting_prompts(tokenizer: Any, qmsum: Path, n: int) -> Iterator[tuple[str, list[int]]]:
    """n (name, token ids), always the same ones: windows of the meetings, a query after each."""
    held = read_meetings(qmsum)
    for i in range(n):
        yield f"qmsum-{i}", chat(tokenizer, _meeting(tokenizer, held[i % len(held)], i // len(held)))


def growing_prompts(tokenizer: Any, qmsum: Path, n: int, tokens: int, longest: int) -> Iterator[tuple[str, list[int]]]:
    """n (name, token ids) of exactly `tokens` tokens, each a meeting's text from somewhere on and a query. Where they
    begin and what they ask depends on `longest` alone, which is how far each could grow.

    Raises:
        ValueError: fewer than n places in the meetings have `longest` tokens after them.
    """
    held = [(meeting, tokenizer(meeting.text).input_ids) for meeting in read_meetings(qmsum)]
    windows = range(max(len(ids) for _, ids in held) // STRIDE)
    places = [(i, w) for w in windows for i, (_, ids) in enumerate(held) if len(ids) - STRIDE * w >= longest]
    if len(places) < n:
        raise ValueError(f"prompts: {n}, but {qmsum} has {len(places)} windows of {longest} tokens")
    for i, window in places[:n]:
        meeting, ids = held[i]
        text = tokenizer.decode(ids[STRIDE * window : STRIDE * window + tokens])
        yield f"meeting {i}, window {window}", chat_prompt(tokenizer, [text], _query(meeting, window), tokens)


def question_prompts(tokenizer: Any, mmlu_pro: Path, n: int) -> Iterator[tuple[str, list[int]]]:
    """n (name, token ids), always the same ones: a question of each category in turn, after solved ones of it."""
    questions = read_questions(mmlu_pro)
    categories = sorted({question.category for question in questions})
    rng = random.Random(0)
    for i in range(n):
        category = [question for question in questions if question.category == categories[i % len(categories)]]
        rng.shuffle(category)
        yield f"mmlu-{i}", chat(tokenizer, _questions(tokenizer, category, EXAMPLES[i % len(EXAMPLES)]))


def text_prompts(tokenizer: Any, path: Path, n: int, tokens: int) -> Iterator[tuple[str, list[int]]]:
    """n (name, token ids): windows of about `tokens` tokens, evenly spread over a text, each with a task.

    Raises:
        ValueError: the file is not UTF-8 text, or shorter than a window.
    """
    ids = tokenizer(read_text(path)).input_ids
    if len(ids) < tokens:
        raise ValueError(f"text: {path} has {len(ids)} tokens, {tokens} wanted")
    for i in range(n):
        first = (len(ids) - tokens) * i // max(n - 1, 1)
        yield f"text-{i}", chat(tokenizer, f"{tokenizer.decode(ids[first : first + tokens])}\n\n{TASK}")


def own_prompts(tokenizer: Any, n: int, tokens: int) -> Iterator[tuple[str, list[int]]]:
    """n (name, token ids) of exactly `tokens` tokens about documents that a seeded generator makes."""
    for i, ids in enumerate(prompts(tokenizer, n, [tokens] * n)):
        yield f"own-{i}", ids


def long_texts(tokenizer: Any, qmsum: Path | None, n: int, tokens: int) -> Iterator[tuple[str, list[int]]]:
    """The first `tokens` token ids of up to n meetings that have as many; without QMSum, of n made-up documents."""
    if qmsum is None:
        for i, ids in enumerate(prompts(tokenizer, n, [tokens] * n)):
            yield f"own, {i}", ids
        return
    found = 0
    for i, meeting in enumerate(read_meetings(qmsum)):
        ids = tokenizer(meeting.text).input_ids[:tokens]
        if len(ids) == tokens and found < n:
            found += 1
            yield f"meeting {i}", ids


def chat(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a user's message, up to where the answer begins."""
    message = [{"role": "user", "content": text}]
    ids: list[int] = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]
    return ids


def _meeting(tokenizer: Any, meeting: Meeting, window: int) -> str:
    ids, wanted = tokenizer(meeting.text).input_ids, WINDOWS[window % len(WINDOWS)]
    first = min(STRIDE * window, max(0, len(ids) - wanted))
    return f"{tokenizer.decode(ids[first : first + wanted])}\n\n{_query(meeting, window)}"


def _query(meeting: Meeting, window: int) -> str:
    """General and specific ones in turn; of a meeting with one kind alone, of that."""
    kinds = (meeting.general, meeting.specific)
    queries = kinds[window % 2] or kinds[1 - window % 2]
    return f"Question: {queries[window % len(queries)].text}"


def _questions(tokenizer: Any, category: Sequence[Question], wanted: int) -> str:
    solved = ""
    for question in category[1:]:
        solved += f"{_question(question)}\nAnswer: ({question.answer})\n\n"
        if len(tokenizer(solved).input_ids) > wanted:
            break
    return f"{solved}{_question(category[0])}\nThink step by step, then answer."


def _question(question: Question) -> str:
    options = (f"({chr(ord('A') + i)}) {option}" for i, option in enumerate(question.options))
    return "\n".join([question.text, *options])
