"""MMLU-Pro: the published format and prompt, letters by log-probability, reasoning, the shipped sample, the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from lynx_ascend.cli import app
from lynx_ascend.evaluation.cases import exact_cache
from lynx_ascend.evaluation.data import Question
from lynx_ascend.evaluation.intervals import Interval
from lynx_ascend.evaluation.methods import METHODS, choose
from lynx_ascend.evaluation.tasks import run as module
from lynx_ascend.evaluation.tasks.mmlu_pro import MMLUPro, extract, letter_ids, load, prompt_text
from lynx_ascend.evaluation.tasks.report import scores, tables, write_report
from lynx_ascend.evaluation.tasks.run import run_task
from lynx_ascend.evaluation.tasks.task import Answer, Item

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "mmlu_pro"
QUESTION = {"question_id": 7, "question": "1 + 1?", "options": ["1", "2"], "answer": "B", "category": "math"}


def quiet() -> Console:
    return Console(quiet=True)


def test_the_prompt_is_the_published_one() -> None:
    asked = Question("math 2", "math", "2 + 2?", ["3", "4"], "B", "")
    solved = Question(
        "math 1", "math", "1 + 1?", ["1", "2"], "B", "A: Let's think step by step. It is 2. The answer is (B)."
    )
    assert prompt_text(asked, [solved]) == (
        "The following are multiple choice questions (with answers) about math. Think step by step and then finish "
        'your answer with "the answer is (X)" where X is the correct letter choice.\n\n'
        "Question:\n1 + 1?\nOptions:\nA. 1\nB. 2\nAnswer: Let's think step by step. It is 2. The answer is (B).\n\n"
        "Question:\n2 + 2?\nOptions:\nA. 3\nB. 4\nAnswer: Let's think step by step."
    )
    assert "Let's think step by step. The answer is (B).\n\nQuestion" in prompt_text(
        asked, [asked]
    )  # no reasoning given


def test_questions_come_from_each_category_in_turn_behind_exemplars_of_theirs(tokenizer: Any) -> None:
    items = MMLUPro(SAMPLE).items(tokenizer, 8192)
    assert [item.name for item in items[:4]] == ["biology 5", "history 8", "math 1", "biology 6"]
    assert len(items) == 10 and MMLUPro(SAMPLE, 4).items(tokenizer, 8192) == items[:4]
    said = [tokenizer.decode(item.ids) for item in items]
    assert [text.count("Question:") for text in said[:3]] == [3, 1, 4]  # history has no exemplars
    assert [item.exemplars for item in items[:3]] == [2, 0, 3]
    assert all(text.endswith("step by step. The answer is (") for text in said)
    alone = MMLUPro(SAMPLE / "test.jsonl").items(tokenizer, 8192)
    assert [item.wanted for item in alone] == [item.wanted for item in items]
    assert all(tokenizer.decode(item.ids).count("Question:") == 1 for item in alone)
    # Exemplars that do not fit are left out, from the last on; a question that does not fit is refused.
    short = MMLUPro(SAMPLE).items(tokenizer, len(items[2].ids) - 1)[2]
    assert tokenizer.decode(short.ids).count("Question:") == 3
    with pytest.raises(ValueError, match=r"biology 5: \d+ tokens, the model has 50 positions"):
        MMLUPro(SAMPLE).items(tokenizer, 50)
    reasoning = MMLUPro(SAMPLE, 1, 100).items(tokenizer, 8192)[0]
    assert tokenizer.decode(reasoning.ids).endswith("Answer: Let's think step by step.")


def test_a_context_stands_before_a_shorter_prompt(tokenizer: Any) -> None:
    [plain], [padded] = (MMLUPro(SAMPLE, 1, 0, context).items(tokenizer, 8192) for context in (100, 1500))
    assert len(plain.ids) > 100 and len(padded.ids) == 1500 and padded.ids[-len(plain.ids) :] == plain.ids
    assert tokenizer.decode(padded.ids).startswith("Field notes from")


def test_letters_are_tokens_of_their_own(tokenizer: Any) -> None:
    assert [tokenizer.decode([token]) for token in letter_ids(tokenizer, 10)] == list("ABCDEFGHIJ")

    class Letters:
        def __call__(self, text: str) -> Any:
            return type("Encoded", (), {"input_ids": [text]})

    with pytest.raises(ValueError, match="'A' after 'The answer is \\(' is no token"):
        letter_ids(Letters(), 2)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("So 2. The answer is (B).", "B"),
        ("the answer is C, I think", "C"),
        ("The answer is (K).", ""),
        ("the answer is Because", ""),
        ("I do not know.\n\nQuestion:\n1?\nAnswer: The answer is (A).", ""),
    ],
)
def test_the_letter_of_a_reasoned_answer(text: str, letter: str) -> None:
    assert extract(text, 10) == letter


def test_answers_agree_by_letter_and_without_one_by_what_was_said() -> None:
    task = MMLUPro(SAMPLE, answer_tokens=9)
    letter, other, silent, vague = (
        Answer(text=text, reasoning=said) for text, said in (("A", "x"), ("A", "y"), ("", "x"), ("", "y"))
    )
    assert task.agreement(letter, other) == task.agreement(silent, silent) == 1
    nothing = Answer(text="", log_p=[None, None])  # an endpoint that told no letter's log-probability
    assert task.agreement(nothing, nothing) == 0
    assert task.agreement(silent, vague) == task.agreement(letter, silent) == task.agreement(silent, letter) == 0


def test_a_folder_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no test\*\.jsonl"):
        load(tmp_path)


def test_where_the_data_has_no_exemplars_questions_are_asked_without_and_the_report_says_so(
    tokenizer: Any, tmp_path: Path
) -> None:
    path = tmp_path / "test_1.jsonl"
    path.write_text(json.dumps(QUESTION) + "\n")
    folder, file = (MMLUPro(data).items(tokenizer, 8192) for data in (tmp_path, path))
    assert folder == file and [item.exemplars for item in file] == [0]
    for data, words in ((tmp_path, "0.0 exemplars each"), (SAMPLE, "1.8 exemplars each")):
        task = MMLUPro(data)
        answer = module.StreamAnswer(bits=16.0, answer=Answer(text="A"))
        items = [(item, {"bf16": module.TaskRow(first=answer, all=answer)}) for item in task.items(tokenizer, 8192)]
        assert tables(module.TaskResult(task, items, choose("bf16"), {}))[0][0].endswith(words)


def test_letters_are_scored_as_in_one_pass_over_the_prompt(tokenizer: Any, model: Any) -> None:
    """SmolLM2, the shipped sample: BF16's log-probabilities are the model's own up to the cache's rounding."""
    task = MMLUPro(SAMPLE, 2)
    for item in task.items(tokenizer, 8192):
        with torch.inference_mode():
            whole = model(torch.tensor([item.ids])).logits[0, -1].log_softmax(-1)[letter_ids(tokenizer, item.choices)]
        cache = exact_cache(model, item.ids[:-1])
        rows = module.measure_task(task, model, tokenizer, item, cache, choose("bf16,lynx,int4"))
        row, ours, crude = rows["bf16"], rows["lynx"], rows["int4"]
        found = torch.tensor(row["all"]["answer"]["log_p"])
        assert (found - whole).abs().max() < 0.1 and len(found) == item.choices
        assert row["all"]["answer"]["text"] == "ABCDEFGHIJ"[int(found.argmax())] and row["all"][
            "bits"
        ] == pytest.approx(16, abs=0.1)
        errors = [
            float((torch.tensor(stream["answer"]["log_p"]) - found).abs().max())
            for stream in (ours["all"], ours["first"], crude["all"])
        ]
        assert errors == sorted(errors) and errors[0] < 0.1  # closer with every bit: all, the Anchor, a coarse grid


@pytest.mark.parametrize("reasoning", [0, 5])
def test_every_method_answers(tiny: Path, tmp_path: Path, reasoning: int) -> None:
    result = run_task(MMLUPro(SAMPLE / "test.jsonl", 2, reasoning), choose(None), tmp_path, quiet(), tiny)
    found = {(row.method, row.stream): row for row in scores(result)}
    assert {method for method, _ in found} == set(METHODS)
    assert {method for method, stream in found if stream == "first"} == {
        "pair",
        "lynx",
        "alg1",
        "lynx-int8",
        "bf16-msb",
    }
    for row in found.values():
        assert 0 <= row.score.low <= row.score.value <= row.score.high <= 1 and row.bits > 1
        assert set(row.groups) == {"biology", "history"}
    for exact in (found["bf16", "all"], found["bf16-msb", "all"]):
        assert exact.agreement.value == 1


def test_scores_and_agreement_are_counted_by_method_stream_and_group() -> None:
    task = MMLUPro(SAMPLE)
    items = [Item(f"q {i}", group, [1, 2], "A", 4) for i, group in enumerate(("math", "math", "history"))]

    def rows(letters: str, bits: float) -> list[module.StreamAnswer]:
        return [module.StreamAnswer(bits=bits + i, answer=Answer(text=letter)) for i, letter in enumerate(letters)]

    exact, anchor, full = rows("ABC", 16), rows("DBA", 4), rows("ABA", 8)
    measured = [
        (item, {"bf16": module.TaskRow(first=e, all=e), "lynx": module.TaskRow(first=a, all=f)})
        for item, e, a, f in zip(items, exact, anchor, full, strict=True)
    ]
    methods = {name: METHODS[name] for name in ("bf16", "lynx")}
    bf16, first, every = scores(module.TaskResult(task, measured, methods, {}))
    assert [row.score.value for row in (bf16, first, every)] == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert [row.agreement.value for row in (bf16, first, every)] == pytest.approx([1, 1 / 3, 2 / 3])
    assert [row.bits for row in (bf16, first, every)] == [17, 5, 9]
    assert {name: group.value for name, group in every.groups.items()} == {"math": 0.5, "history": 1}
    assert every.agreement == Interval.of_share([1, 1, 0])


def test_a_report_holds_what_was_measured_and_a_run_goes_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, measured, real = MMLUPro(SAMPLE / "test.jsonl", 3), [], module.measure_task

    def counted(*arguments: Any) -> Any:
        measured.append(list(arguments[-1]))
        return real(*arguments)

    monkeypatch.setattr(module, "measure_task", counted)
    run_task(MMLUPro(SAMPLE / "test.jsonl", 2), choose("lynx"), tmp_path, quiet(), tiny)
    assert measured == [["bf16", "lynx"]] * 2  # BF16 is measured unasked
    result = run_task(task, choose("lynx,int4"), tmp_path, quiet(), tiny)
    assert measured[2:] == [["int4"], ["int4"], ["bf16", "lynx", "int4"]]
    value = write_report(result, tmp_path)
    assert json.loads((tmp_path / "mmlu-pro.json").read_text()) == value
    letters = [prompt["methods"]["int4"]["all"]["answer"]["text"] for prompt in value["prompts"]]
    exact = [prompt["methods"]["bf16"]["all"]["answer"]["text"] for prompt in value["prompts"]]
    wanted = [prompt["wanted"] for prompt in value["prompts"]]
    [row] = [row for row in value["methods"] if row["method"] == "int4"]
    assert row["agreement"]["value"] == pytest.approx(sum(map(str.__eq__, letters, exact)) / 3)
    assert row["score"]["value"] == pytest.approx(sum(map(str.__eq__, letters, wanted)) / 3)
    page, markdown = ((tmp_path / f"mmlu-pro.{suffix}").read_text() for suffix in ("html", "md"))
    for caption, _, rows in tables(result):
        assert caption in markdown and all("| " + " | ".join(cells) + " |" in markdown for cells in rows)
        assert caption.split(",")[0] in page
    assert "chance 10.0 %" in markdown and 'src="http' not in page


def test_the_command(tiny: Path, tmp_path: Path) -> None:
    base = ["eval", "mmlu-pro", "--model", str(tiny), "--report", str(tmp_path / "out"), "--methods", "int8"]
    done = CliRunner().invoke(app, [*base, "--data", str(SAMPLE / "test.jsonl"), "--limit", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert [row["method"] for row in json.loads(done.stdout)["methods"]] == ["bf16", "int8"]
    for arguments, message in ((["missing.jsonl"], "missing.jsonl"), ([str(tmp_path), "--limit", "0"], "limit")):
        done = CliRunner().invoke(app, [*base, "--data", *arguments])
        assert done.exit_code in (1, 2) and message in done.output and "Traceback" not in done.output
    done = CliRunner().invoke(app, [*base[:-1], "int5", "--data", str(SAMPLE)])
    assert done.exit_code == 2 and "'int5' is none of" in " ".join(done.output.replace("│", "").split())


def test_the_script_passes_its_arguments_to_the_command(tmp_path: Path) -> None:
    """The real script and package; only the set-up of the environment, which is this one, is left out."""
    scripts, bin_ = tmp_path / "scripts", tmp_path / ".venv" / "bin"
    scripts.mkdir()
    bin_.mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "run_mmlu_pro.sh", scripts)
    (scripts / "setup_env.sh").write_text("exit 0\n")
    entry = bin_ / "lynx-ascend"
    entry.write_text(f'#!/bin/sh\nexec {sys.executable} -m lynx_ascend.cli "$@"\n')
    entry.chmod(0o755)
    done = subprocess.run(
        ["bash", scripts / "run_mmlu_pro.sh", "--data", SAMPLE, "--limit", "3", "--methods", "lynx", "--json"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert [(row["method"], row["stream"]) for row in value["methods"]] == [
        ("bf16", "all"),
        ("lynx", "first"),
        ("lynx", "all"),
    ]
    assert len(value["prompts"]) == 3 and (tmp_path / "out" / "mmlu-pro" / "mmlu-pro.html").exists()
