"""Files in the published formats: what is read from them, and errors that name file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lynx_ascend.cli import app
from lynx_ascend.evaluation.data import read_meetings, read_questions
from lynx_ascend.evaluation.tasks.qmsum import QMSum
from lynx_ascend.evaluation.texts import growing_prompts, long_texts, meeting_prompts, question_prompts

QUERY = {"query": "What?", "answer": "Squares."}
MEETING: dict[str, Any] = {
    "meeting_transcripts": [{"speaker": "A", "content": f"On day {i} we agreed on {i * i}."} for i in range(40)],
    "general_query_list": [QUERY],
    "specific_query_list": [QUERY | {"relevant_text_span": [["5", "5"], ["7", "8"]]}],
}
QUESTION = {"question_id": 7, "question": "1 + 1?", "options": ["1", "2"], "answer": "B", "category": "math"}
BAD_MEETINGS: list[tuple[dict[str, Any], str]] = [
    ({"general_query_list": None}, "'general_query_list' is no list of objects"),
    ({"general_query_list": [], "specific_query_list": []}, "'general_query_list' and 'specific_query_list' are empty"),
    ({"general_query_list": [{"query": "?"}]}, "'answer' is no text"),
    ({"general_query_list": [QUERY | {"query": " "}]}, "'query' is no text"),
    ({"specific_query_list": [QUERY | {"relevant_text_span": [["39", "40"]]}]}, r"the span 39 \.\. 40 of 40 turns"),
    ({"specific_query_list": [QUERY | {"relevant_text_span": [3]}]}, "the span 3 is no pair"),
    ({"specific_query_list": [QUERY]}, "no relevant_text_span of 'What\\?'"),
    ({"meeting_transcripts": "A: hello"}, "'meeting_transcripts' is no list of objects"),
    ({"meeting_transcripts": []}, "'meeting_transcripts' is empty"),
    ({"meeting_transcripts": [{"content": "hello"}]}, "turn 0: 'speaker' or 'content' is no text"),
    ({"meeting_transcripts": [{"speaker": "A"}]}, "turn 0: 'speaker' or 'content' is no text"),
]
BAD_QUESTIONS: list[tuple[dict[str, Any], str]] = [
    ({"answer": "C"}, "the answer 'C' is none of the 2 options"),
    ({"answer": "AB"}, "the answer 'AB' is none"),
    ({"answer": None}, "'answer' is no text"),
    ({"answer_index": 0}, "answer_index 0 is not that of answer 'B'"),
    ({"options": ["1"]}, "1 options"),
    ({"options": "12"}, "'options' is no list of texts"),
    ({"options": ["1", " "]}, "option B is blank"),
    ({"category": ""}, "'category' is no text"),
    ({"question": 3}, "'question' is no text"),
    ({"cot_content": 3}, "'cot_content' is no text"),
]


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_meeting_is_its_turns_and_its_queries_about_them(tmp_path: Path) -> None:
    [meeting] = read_meetings(write(tmp_path / "meetings.jsonl", MEETING))
    assert meeting.text.splitlines()[6] == "A: On day 6 we agreed on 36." and len(meeting.text.splitlines()) == 40
    [general], [specific] = meeting.general, meeting.specific
    assert (general.text, general.answer, general.about) == ("What?", "Squares.", meeting.text)
    assert specific.about.splitlines() == [f"A: On day {i} we agreed on {i * i}." for i in (5, 7, 8)]


@pytest.mark.parametrize(("change", "message"), BAD_MEETINGS)
@pytest.mark.parametrize(
    "read",
    [
        lambda path: list(meeting_prompts(None, path, 1)),
        lambda path: list(growing_prompts(None, path, 1, 100, 100)),
        lambda path: list(long_texts(None, path, 1, 100)),
        lambda path: QMSum(path).items(None, 8192),
    ],
    ids=["windows", "growing", "long", "task"],
)
def test_a_malformed_meeting_is_named_by_all_that_read_it(
    tmp_path: Path, read: Callable[[Path], object], change: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "meetings.jsonl", MEETING, MEETING | change)
    with pytest.raises(ValueError, match=rf"meetings\.jsonl, line 2: not a QMSum meeting: {message}"):
        read(path)


@pytest.mark.parametrize(("change", "message"), BAD_QUESTIONS)
@pytest.mark.parametrize(
    "read", [read_questions, lambda path: list(question_prompts(None, path, 1))], ids=["task", "prompts"]
)
def test_a_malformed_question_is_named_by_all_that_read_it(
    tmp_path: Path, read: Callable[[Path], object], change: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "test.jsonl", QUESTION, QUESTION | change)
    with pytest.raises(ValueError, match=rf"test\.jsonl, line 2: {message}"):
        read(path)


@pytest.mark.parametrize("read", [read_meetings, read_questions])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ": empty"),
        (b"nonsense\n", ", line 1: not JSON"),
        (b"[" * 100_000, ", line 1: not JSON"),
        (b'{"question": "\\ud800"}\n', ", line 1: not JSON .*surrogates not allowed"),
        (b"[1]\n", ", line 1: no JSON object"),
        (b"PAR1\xff\xfe", r": not UTF-8 text \(invalid start byte at byte 4\)"),
    ],
)
def test_files_of_another_format_are_named(
    tmp_path: Path, read: Callable[[Path], object], content: bytes, message: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"data\.jsonl{message}"):
        read(path)


def test_lines_end_where_json_lines_do(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    text = "A line separator,\u2028 a next line\x85 and a form feed\x0c."
    path.write_text(json.dumps(QUESTION | {"question": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    [question] = read_questions(path)
    assert question.text == text


def test_the_commands_name_the_file(tiny: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff\xfe")
    for command in ("fidelity --text", "contexts --qmsum"):
        arguments = ["eval", *command.split(), str(bad), "--model", str(tiny), "--report", str(tmp_path / "out")]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 1 and "Traceback" not in done.output
        assert done.output.endswith(f"eval: {bad}: not UTF-8 text (invalid start byte at byte 0)\n")
