"""`lynx-ascend simulate`: JSON on stdout alone, options that are honoured, bad ones that are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lynx_ascend.cli import app
from lynx_ascend.simulation.load import read_trace
from lynx_ascend.speculation.window import MAX_DRAFTS
from tests.simulation.test_acceptance import report

GOOD = '{"at": 0, "tokens": 100, "output": 2}\n'  # a line of a trace


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def value(*arguments: str) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(arguments: tuple[str, ...], *messages: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    shown = " ".join(result.output.replace("│", " ").split())
    assert all(message in shown for message in messages), shown


def test_paper() -> None:
    found = value("paper")
    assert len(found["table1"]) == 8 and len(found["advantages"]) == 6
    each = [found, *found["variants"]]
    rows = [row for result in each for name in ("table1", "advantages") for row in result[name]]
    assert len(rows) == 14 * len(each) > 14
    assert all(row["error"] == pytest.approx(row["predicted"] / row["published"] - 1) for row in rows)
    assert "fitted" in call("paper").output


def test_map_honours_its_options(tmp_path: Path) -> None:
    found = value("map", "--model", "llama-8b")
    assert [m["model"]["name"] for m in found["maps"]] == ["LLaMA 3.1 8B"]
    assert found["maps"][0]["words"].startswith("Draft if")
    assert found["maps"][0]["rows"][3][3]["n"] == 64
    quick = value("map", "--model", "llama-8b", "--set", "commit=0", "--set", "tpot=0.1", "--npus", "2", "--to", "32")
    assert quick["hardware"]["tpot"] == 0.1 and quick["maps"][0]["model"]["npus"] == 2
    assert quick["maps"][0]["rule"]["steps"] < found["maps"][0]["rule"]["steps"]
    poor = report(tmp_path / "fidelity.json", 16384, [0.0] * 64)
    never = value("map", "--model", "llama-8b", "--acceptance", str(poor))
    assert never["acceptance"] == "fidelity.json"
    assert all(choice["drafts"] == 0 for row in never["maps"][0]["rows"] for choice in row)


def test_acceptance_marks_what_was_not_measured(tmp_path: Path) -> None:
    short = report(tmp_path / "short.json", 1000, [0.9, 0.8, 0.5])
    long = report(tmp_path / "long.json", 4000, [0.8, 0.6, 0.2])
    asked = ("acceptance", "--acceptance", str(short), "--acceptance", str(long), "--contexts", "1000,2000,16000")
    rows = value(*asked)["contexts"]
    assert [row["extrapolated"] for row in rows] == [False, False, True]
    assert rows[0]["survival"] == pytest.approx([0.9, 0.8, 0.5])
    assert rows[1]["survival"][1] == pytest.approx((0.8 * 0.6) ** 0.5)  # half-way between, in logarithms
    assert rows[2]["survival"][1] == pytest.approx(0.6 * 0.6 / 0.8)  # as far again
    shown = [line for line in call(*asked).output.splitlines() if "000" in line]
    assert ["*" in line for line in shown] == [False, False, True] and "2.2" in shown[0] and "90 %" in shown[0]


def test_load_honours_its_options(tmp_path: Path) -> None:
    asked = ("load", "--requests", "20", "--methods", "int8; lynx", "--rate", "0.05")
    found = value(*asked)
    assert [row["method"] for row in found["rows"]] == ["int8", "lynx"]
    int8, lynx = found["rows"]
    # Hardly a queue: the median is what the formula says, and Lynx drafts.
    assert int8["median"] == pytest.approx(int8["alone"], rel=0.15)
    assert int8["drafted"] == 0 < lynx["accepted"] <= lynx["drafted"] <= 64
    assert value(*asked, "--seed", "1") != found == value(*asked)
    fixed = value(*asked, "--fixed", "--cap", "5", "--handover")["rows"]
    assert fixed[1]["drafted"] == 5 and fixed[0]["first"] < int8["first"]
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 0, "tokens": 100, "output": 1}\n')
    alone = value("load", "--trace", str(trace), "--methods", "cachegen", "--cachegen-bits", "4")["rows"][0]
    assert alone["median"] == pytest.approx(alone["alone"])


def test_load_says_what_determines_it(tmp_path: Path) -> None:
    options = ("--cachegen-bits", "3", "--slots", "5", "--cap", "7", "--fixed", "--in-order", "--seed", "4")
    asked = ("load", "--methods", "cachegen", "--npus", "2", *options)
    found = value(*asked, "--context", "100,200", "--rate", "2", "--requests", "3", "--output", "6")
    drawn = {"context": [100, 200], "rate": 2, "requests": 3, "output": 6}
    served = {"slots": 5, "cap": 7, "adaptive": False, "handover": False, "in_order": True, "seed": 4, "npus": 2}
    assert found.items() >= (drawn | served).items()
    assert [(method["name"], method["first"]) for method in found["methods"]] == [("cachegen", 3)]
    (tmp_path / "trace.jsonl").write_text(GOOD * 2)
    traced = value(*asked, "--trace", str(tmp_path / "trace.jsonl"))
    assert traced["trace"] == "trace.jsonl" and not traced.keys() & drawn.keys()


def test_the_90_percent_of_two_is_the_slower_one(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(GOOD + GOOD.replace("100", "100000"))
    row = value("load", "--methods", "int8", "--trace", str(tmp_path / "trace.jsonl"))["rows"][0]
    assert row["p90"] > row["median"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *(
            (json.dumps({"at": 1, "tokens": 100, "output": 2} | {name: wrong}), rf"{name}: .*is no (whole )?number")
            for name, values in {
                "at": (math.nan, math.inf, -1, 1e17, True, "3"),
                "tokens": (100.9, 0, math.inf, 1e300, True, 10**400),
                "output": (2.5, 0, math.nan, 1e300, False, None),
            }.items()
            for wrong in values
        ),
        ("", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_a_bad_line_of_a_trace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_text(GOOD + line + "\n")
    with pytest.raises(ValueError, match=rf"^t\.jsonl, line 2: .*{message}"):
        read_trace(Path("t.jsonl"))
    refused(("load", "--trace", "t.jsonl"), "--trace: t.jsonl, line 2:")


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"t\.jsonl: no requests"):
        read_trace(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("map", "--model", "gpt"), "none of llama-8b"),
        (("map", "--set", "speed=1"), "'speed' is none of hbm"),
        (("map", "--set", "hbm=fast"), "fast"),
        (("map", "--set", "hbm=0"), "not positive"),
        (("map", "--acceptance", "/nonexistent"), "No such file"),
        (("acceptance", "--contexts", "1k"), "1k"),
        (("acceptance", "--contexts", "0"), "--contexts: tokens: 0"),
        (("acceptance", "--contexts", "1" + 400 * "0"), "--contexts: tokens: 1000"),
        (("load", "--methods", "magic"), "'magic' is none of bf16"),
        (("load", "--context", ""), "--context: invalid literal for int() with base 10: ''"),
        (("load", "--context", "many"), "--context: invalid literal for int() with base 10: 'many'"),
        (("load", "--context", "0"), "--context: tokens: 0"),
        (("load", "--rate", "inf"), "--rate: rate inf"),
        (("load", "--trace", "/nonexistent"), "No such file"),
        (("load", "--cachegen-bits", "inf"), "--cachegen-bits: cachegen_bits: inf is not positive and finite"),
        (("load", "--set", "hbm"), "--set: 'hbm' is not NAME=VALUE"),
        (("load", "--set", "hbm="), "--set: hbm: '' is no number"),
        (("load", "--set", "chunk=0.5"), "--set: chunk: '0.5' is no whole number"),
        (("load", "--set", "hbm=1e12", "--set", "hbm=1e13"), "--set: hbm is given twice"),
    ],
)
def test_bad_options_are_refused(arguments: tuple[str, ...], message: str) -> None:
    refused(arguments, message)


@pytest.mark.parametrize("command", [("load", "--requests", "2"), ("map", "--model", "llama-8b")], ids=lambda c: c[0])
@pytest.mark.parametrize("values", ["encode=1e-300", "full_decode=1e-300", "flops=1e-300"])
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_what_ends_in_no_finite_number_is_refused(command: tuple[str, ...], values: str, form: tuple[str, ...]) -> None:
    refused((*command, "--set", values, *form), "--set, --npus", "these values")


@pytest.mark.parametrize("command", ["load", "map"])
def test_more_drafts_than_vllm_verifies_are_refused(command: str) -> None:
    refused((command, "--cap", str(MAX_DRAFTS + 1)), "--cap", str(MAX_DRAFTS))


@pytest.mark.parametrize("name", ["file", "file/folder"])
def test_figures_need_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    refused(("figures", name), name)


def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lynx_ascend.simulation.figures.RATES", (0.1,))
    result = call("figures", str(tmp_path))
    assert result.exit_code == 0, result.output
    names = {"simulator-paper.png", "simulator-map.png", "simulator-load.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
