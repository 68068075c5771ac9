"""`lynx-ascend simulate`: JSON on stdout alone, options that are honoured, bad ones that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lynx_ascend.cli import app
from tests.simulation.test_acceptance import report


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def value(*arguments: str) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_paper() -> None:
    found = value("paper")
    assert len(found["table1"]) == 8 and len(found["advantages"]) == 6
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("map", "--model", "gpt"), "none of llama-8b"),
        (("map", "--set", "speed=1"), "'speed' is none of hbm"),
        (("map", "--set", "hbm=fast"), "fast"),
        (("map", "--set", "hbm=0"), "not positive"),
        (("map", "--acceptance", "/nonexistent"), "No such file"),
        (("acceptance", "--contexts", "1k"), "1k"),
        (("acceptance", "--contexts", "0"), "0 tokens"),
        (("load", "--methods", "magic"), "'magic' is none of bf16"),
        (("load", "--context", "many"), "many"),
        (("load", "--trace", "/nonexistent"), "No such file"),
    ],
)
def test_bad_options_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lynx_ascend.simulation.figures.RATES", (0.1,))
    result = call("figures", str(tmp_path))
    assert result.exit_code == 0, result.output
    names = {"simulator-paper.png", "simulator-map.png", "simulator-load.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
