"""`lynx-ascend eval fidelity` on a tiny model: reports, resuming, prompts from files, errors that name the trouble."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lynx_ascend.cli import app
from lynx_ascend.codec.baselines.kivi import KIVI
from lynx_ascend.codec.baselines.uncompressed import Uncompressed
from lynx_ascend.evaluation import run as module
from lynx_ascend.evaluation import texts
from lynx_ascend.evaluation.intervals import Mean, Ratio, student
from lynx_ascend.evaluation.methods import choose
from lynx_ascend.evaluation.report import tables, to_json, write_report
from lynx_ascend.evaluation.run import CaseRows, FidelityOptions, FidelityResult, run_fidelity
from lynx_ascend.evaluation.summary import anchor_claim, full_error_claim, summarise

NAMES = "bf16,pair,int4,sparq,kivi-4"


def options(tiny: Path, report: Path, **changes: Any) -> FidelityOptions:
    small = {"prompts": 2, "tokens": 150, "long": 1, "long_tokens": 120, "model": tiny}
    return FidelityOptions(choose(NAMES), report, **(small | changes))


def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture(scope="module")
def result(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> FidelityResult:
    return run_fidelity(options(tiny, tmp_path_factory.mktemp("report")), quiet())


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def test_the_summary_is_that_of_the_rows(result: FidelityResult) -> None:
    assert [(case.name, case.tokens, case.long) for case in result.cases] == [
        ("own-0", 149, False), ("own-1", 149, False), ("own, 0", 120, True),
    ]  # fmt: skip
    rows = {summary.name: summary for summary in summarise(result)}
    assert list(rows) == NAMES.split(",")
    ours = [case.rows["pair"] for case in result.cases]
    assert rows["pair"].all.error == Mean.of(row["all"]["error"] for row in ours[:2])
    assert rows["pair"].first.long_error is not None
    assert rows["pair"].first.long_error.value == ours[2]["first"]["error"]
    assert rows["pair"].first.accepted.value == sum(row["first"]["text"]["runs"][0] for row in ours[:2]) / 2
    assert rows["bf16"].first.curve[0] == Mean(1, 0) and rows["bf16"].first is not rows["pair"].first
    for row in rows.values():
        shares = [mean.value for mean in row.first.curve if mean]
        assert len(row.first.layers) == 2 and all(0 <= share <= 1 for share in shares)
    assert rows["sparq"].dropping and not rows["pair"].dropping and rows["pair"].split


def test_claims_are_judged_where_they_apply(result: FidelityResult) -> None:
    full, anchor = full_error_claim(result), anchor_claim(result)
    assert {verdict.method for verdict in full} <= {"int4", "kivi-4"} and "int4" in {v.method for v in full}
    assert [verdict.method for verdict in anchor] == ["int4"]
    [int4] = [verdict for verdict in full if verdict.method == "int4"]
    assert int4.ratio is not None and int4.ratio.low < int4.ratio.value < int4.ratio.high
    errors = [(case.rows["int4"]["all"]["error"], case.rows["pair"]["all"]["error"]) for case in result.cases]
    assert int4.ratio.value == pytest.approx(math.prod(a / b for a, b in errors) ** (1 / 3))
    assert int4.ours == ("ahead" if int4.ratio.low > 1 else "not told apart")


def test_layers_in_which_another_method_is_better_are_counted() -> None:
    """The pooled error hides them: int4 is far behind, and ahead in the first and third of four layers."""

    def row(error: float, layers: list[float]) -> Any:
        text = {"kl": 0.1, "top1": 0.9, "runs": [1, 2], "tokens": 40}
        stream = {"bits": 8.0, "error": error, "layers": layers, "text": text}
        return {"first": stream, "all": stream}

    errors = {"pair": ([2, 2, 5, 2], [2, 2, 1, 2]), "int4": ([1, 9, 1, 2], [2, 9, 1, 2])}
    cases = [
        CaseRows(f"{i}", 9, False, {name: row(max(layers[i]), layers[i]) for name, layers in errors.items()}, "")
        for i in (0, 1)
    ]
    result = FidelityResult(cases, choose("pair,int4"), {"pair": "", "int4": ""}, {})
    [verdict] = full_error_claim(result)
    assert (verdict.method, verdict.better) == ("int4", (2, 4))
    [cells] = next(rows for caption, _, rows in tables(result) if caption.startswith("Full error"))
    assert cells[-1] == "2 of 4"


def test_the_report_is_self_contained(result: FidelityResult, tmp_path: Path) -> None:
    value = write_report(result, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"fidelity.html", "fidelity.json", "fidelity.md"}
    assert json.loads((tmp_path / "fidelity.json").read_text()) == value == to_json(result)
    assert all(math.isfinite(number) for number in _numbers(value))
    assert value["setting"]["versions"].keys() >= {"torch", "constriction"} and value["setting"]["model"]["weights"]
    assert value["setting"]["prompts"] == {
        "prompts": 2, "tokens": 150, "longest": None, "long": 1, "long_tokens": 120,
    }  # fmt: skip
    for case, measured in zip(value["cases"], result.cases, strict=True):
        for name, row in measured.rows.items():
            assert [{**case["methods"][name][s], "layers": row[s]["layers"]} for s in row] == list(row.values())
    assert len({case["digest"] for case in value["cases"]}) == 3
    [ours] = [method for method in value["methods"] if method["name"] == "pair"]
    assert ours["fingerprint"] == result.fingerprints["pair"] and "CodecConfig" in ours["parameters"]

    class Page(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.cells: list[str] = []
            self.images: list[str] = []

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            for name, content in attributes:
                if name in ("src", "href"):
                    self.images.append(content or "")

        def handle_data(self, data: str) -> None:
            self.cells.append(data)

    page = Page()
    page.feed((tmp_path / "fidelity.html").read_text())
    assert len(page.images) == 3 and all(image.startswith("data:image/png;base64,") for image in page.images)
    markdown = (tmp_path / "fidelity.md").read_text()
    for caption, _, rows in tables(result):
        assert caption in markdown and caption in page.cells
        for row in rows:
            assert "| " + " | ".join(row) + " |" in markdown
            assert all(not cell or cell in page.cells for cell in row)


def test_a_run_goes_on_where_it_was(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    real = module.measure

    def counted(yardstick: Any, case: Any, method: Any) -> Any:
        if len(measured) == 4:
            raise KeyboardInterrupt
        measured.append(repr(method))
        return real(yardstick, case, method)

    monkeypatch.setattr(module, "measure", counted)
    with pytest.raises(KeyboardInterrupt):
        run_fidelity(options(tiny, tmp_path, prompts=1), quiet())
    measured.clear()
    rest = choose("bf16,int4,sparq,kivi-4")
    run_fidelity(FidelityOptions(rest, tmp_path, prompts=1, tokens=150, long=0, model=tiny), quiet())
    assert measured == [repr(KIVI(4))]  # four of five had been measured on the first prompt
    measured.clear()
    monkeypatch.setattr(module, "fingerprint", lambda method: "new" if method == Uncompressed() else "old")
    chosen = choose("bf16,kivi-4")
    again = FidelityOptions(chosen, tmp_path, prompts=1, tokens=150, long=0, model=tiny)
    run_fidelity(again, quiet())
    assert len(measured) == 2  # other fingerprints
    measured.clear()
    monkeypatch.setattr(module, "fingerprint", lambda method: "newer" if method == Uncompressed() else "old")
    run_fidelity(again, quiet())
    assert measured == [repr(Uncompressed())]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """QMSum, MMLU-Pro and a text, small."""
    turns = [
        {"speaker": f"Speaker {i % 3}", "content": f"We met on day {i} and agreed on {i * i}."} for i in range(200)
    ]
    meeting = {
        "meeting_transcripts": turns,
        "general_query_list": [{"query": "Summarise the meeting.", "answer": "Squares."}],
        "specific_query_list": [
            {"query": query, "answer": "Squares.", "relevant_text_span": [["0", "9"]]}
            for query in ("What was agreed?", "Who spoke?")
        ],
    }
    question = {"options": [str(n) for n in range(10)], "answer": "C", "category": "math"}
    questions = [question | {"question": f"What is {n} + {n} - {2 * n - 2}, carefully counted?"} for n in range(60)]
    qmsum, mmlu, text = (tmp_path / name for name in ("qmsum.jsonl", "mmlu.jsonl", "text.txt"))
    qmsum.write_text(json.dumps(meeting) + "\n")
    mmlu.write_text("".join(json.dumps(item) + "\n" for item in questions))
    text.write_text(" ".join(turn["content"] for turn in turns))
    return qmsum, mmlu, text


def test_prompts_come_from_every_file_in_equal_parts(tokenizer: Any, files: tuple[Path, Path, Path]) -> None:
    qmsum, mmlu, text = files
    chosen = FidelityOptions({}, Path(), text, qmsum, mmlu, prompts=7, tokens=100)
    found = list(module._prompts(chosen, tokenizer))
    assert [name for name, _ in found] == ["text-0", "text-1", "text-2", "qmsum-0", "qmsum-1", "mmlu-0", "mmlu-1"]
    assert len({tuple(ids) for _, ids in found}) == 7
    said = [tokenizer.decode(ids) for _, ids in found]
    assert "Question: Summarise the meeting." in said[3] and "Question: Who spoke?" in said[4]
    assert said[5].count("Answer: (C)") > 3 and "Think step by step, then answer." in said[5]
    assert texts.TASK in said[0] and 100 < len(found[0][1]) < 180
    again = list(module._prompts(chosen, tokenizer))
    assert again == found
    [(name, ids)] = texts.long_texts(tokenizer, qmsum, 3, 1000)
    assert name == "meeting 0" and len(ids) == 1000
    assert list(texts.long_texts(tokenizer, qmsum, 3, 100_000)) == []


def test_the_command(tiny: Path, tmp_path: Path) -> None:
    base = ["eval", "fidelity", "--model", str(tiny), "--report", str(tmp_path / "report"), "--long", "0"]
    done = CliRunner().invoke(app, [*base, "--prompts", "1", "--tokens", "90", "--methods", "bf16,int8", "--json"])
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert [method["name"] for method in value["methods"]] == ["bf16", "int8"]
    assert value["methods"][0]["all"]["error"] == {"value": 0, "half": None}  # one prompt has no interval
    assert (tmp_path / "report" / "fidelity.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "int5"], "methods: 'int5' is none of bf16"),
        (["--text", "missing.txt"], "missing.txt"),
        (["--qmsum", "missing.jsonl"], "missing.jsonl"),
        (["--model", "no-model"], "model: no-model is no directory"),
        (["--prompts", "0"], "prompts"),
    ],
)
def test_the_command_names_what_is_wrong(tiny: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    base = ["eval", "fidelity", "--report", str(tmp_path), *([] if "--model" in arguments else ["--model", str(tiny)])]
    done = CliRunner().invoke(app, [*base, *arguments])
    assert done.exit_code in (1, 2)
    assert message in " ".join(done.output.replace("│", "").split())
    assert "Traceback" not in done.output


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (3, 3.182), (30, 2.042), (31, 2.040), (60, 2.000)])
def test_students_quantiles(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=0.002)
    assert student(freedom) > student(freedom + 1) > 1.96


def test_an_interval_of_four_values_holds_the_mean_in_95_of_100() -> None:
    rng = random.Random(0)
    means = [Mean.of(rng.gauss() for _ in range(4)) for _ in range(4000)]
    assert sum(abs(mean.value) <= mean.half for mean in means) / 4000 == pytest.approx(0.95, abs=0.01)


def test_means_and_ratios() -> None:
    mean = Mean.of([1.0, 2.0, 3.0])
    assert mean.value == 2 and mean.half == pytest.approx(4.303 / 3**0.5)
    assert math.isnan(Mean.of([1.0]).half) and mean.text("+") == "+2.0 ± 2.5"
    ratio = Ratio.of([2.0, 8.0], [1.0, 1.0])
    assert ratio.value == pytest.approx(4) and ratio.low * ratio.high == pytest.approx(16)
