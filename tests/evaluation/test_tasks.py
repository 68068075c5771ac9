"""The needle and QMSum: where the needle is, which turns are read, ROUGE-L, greedy text on any cache, the commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from lynx_ascend.cli import app
from lynx_ascend.evaluation.cases import exact_cache, exact_kv
from lynx_ascend.evaluation.fidelity import Reconstruction, forced_logits, greedy_ids
from lynx_ascend.evaluation.intervals import Interval
from lynx_ascend.evaluation.local_engine import greedy_text
from lynx_ascend.evaluation.methods import choose
from lynx_ascend.evaluation.tasks.figures import draw_agreement
from lynx_ascend.evaluation.tasks.needle import Needle
from lynx_ascend.evaluation.tasks.qmsum import QMSum
from lynx_ascend.evaluation.tasks.report import scores, tables, write_report
from lynx_ascend.evaluation.tasks.rouge import rouge_l
from lynx_ascend.evaluation.tasks.run import measure_task, run_task
from lynx_ascend.evaluation.tasks.task import Answer

TURNS = [{"speaker": f"Speaker {i % 3}", "content": f"On day {i} we agreed on {i * i}."} for i in range(40)]
MEETING: dict[str, Any] = {
    "meeting_transcripts": TURNS,
    "general_query_list": [{"query": "Summarise it.", "answer": "They agreed on squares."}],
    "specific_query_list": [
        {"query": "Day 5?", "answer": "They agreed on 25.", "relevant_text_span": [["5", "5"], ["7", "8"]]},
        {"query": "Day 9?", "answer": "They agreed on 81.", "relevant_text_span": [["9", "9"]]},
    ],
}


def quiet() -> Console:
    return Console(quiet=True)


def test_greedy_text_is_that_of_the_local_engine_and_obeys_what_is_visible(tokenizer: Any, tiny_model: Any) -> None:
    ids = tokenizer("The council met on Monday to speak about the harbour wall and the night bus.").input_ids
    kv = exact_kv(exact_cache(tiny_model, ids[:-1]))
    plain = Reconstruction(kv)
    [said] = greedy_ids(tiny_model, [plain], ids[-1], 12, frozenset())
    assert said == greedy_text(tiny_model, ids, kv, 12, ignore_eos=True)

    def half(layer: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (torch.arange(key.shape[1]) < key.shape[1] // 2)[None, None]

    hidden = Reconstruction(kv, half)
    [masked] = greedy_ids(tiny_model, [hidden], ids[-1], 12, frozenset())
    # In one pass over that text, each of its tokens is the most likely one under the same mask.
    assert forced_logits(tiny_model, [hidden], [ids[-1], *masked[:-1]])[0].argmax(-1).tolist() == masked
    assert masked != said
    # In a batch each row goes on by itself, to a stop of its own.
    stop = next(token for token in said if token not in masked)
    both = greedy_ids(tiny_model, [plain, hidden, plain], ids[-1], 12, {stop})
    assert both == [said[: said.index(stop)], masked, said[: said.index(stop)]]
    assert greedy_ids(tiny_model, [plain, plain], ids[-1], 12, {said[0]}) == [[], []]


@pytest.mark.parametrize(
    ("text", "reference", "score"),
    [
        ("police killed the gunman", "police kill the gunman", 3 / 4),  # Lin (2004), where it is ROUGE-L of S2 ...
        ("the gunman kill police", "police killed the gunman", 1 / 2),  # ... and of S3
        ("w1 w2 w3", "W1, w9 w2 w8 w3!", 2 * (3 / 3) * (3 / 5) / (3 / 3 + 3 / 5)),
        ("a b c", "c b a", 1 / 3),
        ("the same", "The same.", 1),
        ("nothing", "shared here", 0),
        ("", "words", 0),
        ("?!", "?!", 0),
    ],
)
def test_rouge_l_on_worked_examples(text: str, reference: str, score: float) -> None:
    assert rouge_l(text, reference) == pytest.approx(score)
    assert rouge_l(reference, text) == pytest.approx(score)


def test_wilson_intervals() -> None:
    # By hand: centre (p + z²/2n) / (1 + z²/n), half z sqrt(p(1-p)/n + z²/4n²) / (1 + z²/n), z = 1.96.
    assert Interval.of_share([1] * 4 + [0] * 6) == pytest.approx((0.4, 0.168, 0.687), abs=5e-4)
    assert Interval.of_share([0] * 10) == pytest.approx((0, 0, 0.278), abs=5e-4)
    assert Interval.of_share([1] * 10).text() == "100.0 (72.2 .. 100.0)"
    assert Interval.of_mean([0.5, 0.52]) == pytest.approx((0.51, 0.51 - 0.12706, 0.51 + 0.12706))
    assert Interval.of_mean([0.5]).text() == "50.0"
    assert Interval.of_mean([0.0, 1.0]) == (0.5, 0, 1)
    for wrong in ([], [0.5]):
        with pytest.raises(ValueError, match="held"):
            Interval.of_share(wrong)


def test_the_needle_is_at_its_depth(tokenizer: Any) -> None:
    items = Needle((300, 600), (0, 50, 100), 3).items(tokenizer, 8192)
    assert len(items) == 18 and len({tuple(item.ids) for item in items}) == 18
    for item in items:
        text, length = tokenizer.decode(item.ids), int(item.name.split()[0])
        assert len(item.ids) == length and text.count(item.wanted) == 1
        document = text.split("<|im_start|>user\n")[1].split("\n\nWhat is the code")[0]
        at, depth = document.index("The code of the") / len(document), float(item.group.split()[-2])
        # A piece of a document is at most a quarter of the shorter one.
        assert depth / 100 - 0.35 < at <= depth / 100 + 0.02, item.name
    assert items == Needle((300, 600), (0, 50, 100), 3).items(tokenizer, 8192)
    with pytest.raises(ValueError, match="lengths: 40 tokens leave no room"):
        Needle((40,), (0,)).items(tokenizer, 8192)
    with pytest.raises(ValueError, match=r"depths: 101 is not 0 \.\. 100"):
        Needle((300,), (101,)).items(tokenizer, 8192)


def test_smollm2_finds_needles(tokenizer: Any, model: Any) -> None:
    task = Needle((300,), (50,), 2)
    for item in task.items(tokenizer, 8192):
        cache = exact_cache(model, item.ids[:-1])
        [row] = measure_task(task, model, tokenizer, item, cache, choose("lynx")).values()
        assert task.score(item, row["all"]["answer"]) == 1, row
    assert task.score(item, Answer(text="It is 12.")) == 0


def test_a_needle_run(tiny: Path, tmp_path: Path) -> None:
    result = run_task(Needle((150, 200), (0, 100), 1), choose("lynx,sparq"), tmp_path, quiet(), tiny)
    assert scores(result)[0].groups.keys() == {f"{n} at {d} %" for n in (150, 200) for d in (0, 100)}
    write_report(result, tmp_path)
    markdown, page = ((tmp_path / f"needle.{suffix}").read_text() for suffix in ("md", "html"))
    assert "**found / %, lynx, first**\n\n| depth / % \\ tokens | 150 | 200 |\n" in markdown
    assert page.count("data:image/png;base64,") == 1
    caption, heads, rows = tables(result)[-1]
    assert (caption, len(heads)) == ("found / %, sparq *", 3) and [row[0] for row in rows] == ["0", "100"]
    with pytest.raises(ValueError, match=r"lengths: 489 tokens and the answer's, the model has 512 positions"):
        run_task(Needle((489,), (0,), 1), {}, tmp_path, quiet(), tiny)


def test_agreement_is_drawn_with_any_interval() -> None:
    every = [Interval.of_share([1.0] * n) for n in range(1, 30)]
    assert any(share.high < 1 for share in every)  # by a rounding
    assert draw_agreement([("int8", share) for share in [*every, Interval.of_mean([0.5])]]).startswith(b"\x89PNG")


def test_a_needle_that_is_asked_for_twice_counts_once(tokenizer: Any) -> None:
    assert len(Needle((120, 120, 150), (0, 50, 0.0), 1).items(tokenizer, 8192)) == 4


def write_meetings(path: Path, meetings: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(meeting) + "\n" for meeting in meetings))
    return path


def test_a_meeting_leaves_room_for_its_answer(tiny: Path, tmp_path: Path) -> None:
    path = write_meetings(tmp_path / "meetings.jsonl", [MEETING])
    with pytest.raises(ValueError, match=r"meeting 0, Summarise it.: 5\d\d tokens with the answer, .* 512 positions"):
        run_task(QMSum(path, 1, tokens=410), {}, tmp_path, quiet(), tiny)


@pytest.mark.parametrize("command", ["needle", "contexts --qmsum none"])
@pytest.mark.parametrize("lengths", ["", "1e3", "-5", "0", "500,", "1k"])
def test_lengths_are_whole_numbers(command: str, lengths: str) -> None:
    done = CliRunner().invoke(app, ["eval", *command.split(), f"--lengths={lengths}"])
    said = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2 and "--lengths" in said
    assert f"{lengths!r}: whole numbers of tokens wanted, such as 500,1000" in said


@pytest.mark.parametrize("depths", ["", "half", "0,"])
def test_depths_are_numbers(depths: str) -> None:
    done = CliRunner().invoke(app, ["eval", "needle", f"--depths={depths}"])
    said = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2 and "--depths" in said and f"{depths!r}: per cent wanted, such as 0,50,100" in said


def test_queries_are_asked_about_their_turns(tokenizer: Any, tmp_path: Path) -> None:
    path = write_meetings(tmp_path / "meetings.jsonl", [MEETING, MEETING])
    items = QMSum(path, tokens=200).items(tokenizer, 8192)
    assert [item.name for item in items[:3]] == [
        "meeting 0, Summarise it.",
        "meeting 1, Summarise it.",
        "meeting 0, Day 5?",
    ]
    assert len(items) == 6 and QMSum(path, 3, tokens=200).items(tokenizer, 8192) == items[:3]
    general, specific = (tokenizer.decode(item.ids) for item in (items[0], items[2]))
    assert "On day 0 we" in general and "On day 39 we" not in general and items[0].wanted == "They agreed on squares."
    assert [f"On day {i} we" in specific for i in range(4, 10)] == [False, True, False, True, True, False]
    assert "Question: Day 5? Answer in one paragraph." in specific and 200 < len(items[0].ids) < 260


def test_a_qmsum_run(tiny: Path, tmp_path: Path) -> None:
    task = QMSum(write_meetings(tmp_path / "meetings.jsonl", [MEETING]), 3, tokens=100, answer_tokens=6)
    result = run_task(task, choose("int4,scissorhands-50%"), tmp_path, quiet(), tiny)
    value = write_report(result, tmp_path)
    assert (tmp_path / "qmsum.html").read_text().count("data:image/png;base64,") == 1
    said = [
        [prompt["methods"][name]["all"]["answer"]["text"] for prompt in value["prompts"]] for name in ("int4", "bf16")
    ]
    [row] = [row for row in scores(result) if row.method == "int4"]
    agreed = [1.0 if a == b else rouge_l(a, b) for a, b in zip(*said, strict=True)]
    assert row.agreement.value == pytest.approx(sum(agreed) / 3)
    assert row.score.value == pytest.approx(
        sum(rouge_l(a, p["wanted"]) for a, p in zip(said[0], value["prompts"], strict=True)) / 3
    )


def test_the_commands(tiny: Path, tmp_path: Path) -> None:
    meetings = write_meetings(tmp_path / "meetings.jsonl", [MEETING])
    shared = ["--model", str(tiny), "--methods", "int8", "--json"]
    for arguments, name in (
        (["needle", "--lengths", "120", "--depths", "50", "--repeats", "1"], "needle"),
        (["qmsum", "--data", str(meetings), "--limit", "1", "--tokens", "50"], "qmsum"),
    ):
        done = CliRunner().invoke(app, ["eval", *arguments, *shared, "--report", str(tmp_path / name)])
        assert done.exit_code == 0, done.output
        assert len(json.loads(done.stdout)["prompts"]) == 1 and (tmp_path / name / f"{name}.html").exists()
    for arguments, message in ((["qmsum", "--data", "none.jsonl"], "none.jsonl"),):
        done = CliRunner().invoke(app, ["eval", *arguments, *shared, "--report", str(tmp_path)])
        assert done.exit_code in (1, 2) and message in done.output and "Traceback" not in done.output
