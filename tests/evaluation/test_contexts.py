"""Accepted drafts by context: prompts that grow, shares that follow from the runs, files, the command."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lynx_ascend.cli import app
from lynx_ascend.evaluation import contexts as module
from lynx_ascend.evaluation.cases import CAP
from lynx_ascend.evaluation.contexts_figures import _shares
from lynx_ascend.evaluation.methods import choose
from lynx_ascend.evaluation.run import CaseRows, FidelityResult
from lynx_ascend.evaluation.texts import growing_prompts
from lynx_ascend.simulation.acceptance import from_reports


@pytest.fixture(scope="module")
def meetings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three meetings; the second is short."""
    path = tmp_path_factory.mktemp("meetings") / "meetings.jsonl"
    lines = []
    for number, turns in enumerate((400, 10, 200)):
        said = [{"speaker": f"S{i % 3}", "content": f"In meeting {number} we agreed on {i * i}."} for i in range(turns)]
        query = {"query": f"What of meeting {number}?", "answer": "Squares."}
        specific = query | {"relevant_text_span": [[0, 1]]}
        lines.append({"meeting_transcripts": said, "general_query_list": [query], "specific_query_list": [specific]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_prompts_grow_from_the_same_place(tokenizer: Any, meetings: Path) -> None:
    short, long = (list(growing_prompts(tokenizer, meetings, 3, tokens, 400)) for tokens in (200, 400))
    assert [name for name, _ in short] == ["meeting 0, window 0", "meeting 2, window 0", "meeting 0, window 1"]
    for (name, a), (other, b) in zip(short, long, strict=True):
        said, more = (tokenizer.decode(ids).split("\n\nQuestion: ") for ids in (a, b))
        assert (name, len(a), len(b)) == (other, 200, 400)
        assert said[1] == more[1] and f"What of meeting {name.split(',')[0][-1]}?" in said[1]
        assert more[0].startswith(said[0]) and len(more[0]) > 1.5 * len(said[0])
    starts = {tokenizer.decode(ids).split("user\n")[1][:40] for _, ids in short}
    assert len(starts) == 3
    with pytest.raises(ValueError, match=r"prompts: 9, but .*meetings\.jsonl has \d windows of 400 tokens"):
        list(growing_prompts(tokenizer, meetings, 9, 200, 400))


def row(runs: list[int], tokens: int) -> Any:
    text = {"kl": 0.1, "top1": 0.9, "runs": runs, "tokens": tokens}
    stream = {"bits": 4.0, "error": 0.1, "layers": [0.1], "text": text}
    return {"first": stream, "all": stream}


def test_proposed_against_accepted_is_counted_over_starts_then_prompts() -> None:
    rows: list[Mapping[str, Any]] = [{"lynx": row([3, 2, 1, 0], 40)}, {"lynx": row([33, 0], 40)}]
    result = FidelityResult([CaseRows(str(i), 9, False, r, "") for i, r in enumerate(rows)], choose("lynx"), {}, {})
    heat = module._heat(result, "lynx")
    assert heat[0][:2] == [(1 / 4 + 1 / 2) / 2, (3 / 4 + 1 / 2) / 2]
    assert heat[2][:4] == [(1 / 4 + 1 / 2) / 2, 1 / 8, 1 / 8, (1 / 4 + 1 / 2) / 2]
    assert heat[38][33] == 0.25  # the starts that 39 tokens of the text follow: two of either prompt
    assert heat[39][33] == 0.5 and heat[39][3] == 0.5  # 40: the first of each
    assert heat[40] == [] and all(sum(shares) == pytest.approx(1) for shares in heat[:40])
    assert module._proposal(heat[2], 3) == f"{100 * (1 / 8 + 2 / 8 + 3 * 3 / 8) / 3:.1f} / 37.5"
    assert module._proposal([], 64) == ""


def test_maps_are_empty_where_there_is_nothing() -> None:
    shares = _shares([[0.25, 0.75, *[0.0] * (CAP - 1)], *[[]] * (CAP - 1)])
    assert [shares[0][0], shares[1][0]] == [0.25, 0.75]
    assert all(math.isnan(row[0]) for row in shares[2:])  # more than the one proposed
    assert all(math.isnan(share) for row in shares for share in row[1:])


def test_the_command(tiny: Path, meetings: Path, tmp_path: Path) -> None:
    base = ["eval", "contexts", "--qmsum", str(meetings), "--model", str(tiny), "--report", str(tmp_path)]
    done = CliRunner().invoke(
        app, [*base, "--lengths", "300,120", "--prompts", "2", "--methods", "int4,lynx", "--json"]
    )
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert [context["tokens"] for context in value["contexts"]] == [120, 300]
    assert value == json.loads((tmp_path / "contexts.json").read_text())
    assert (tmp_path / "contexts.png").read_bytes().startswith(b"\x89PNG")
    assert "| lynx | 300 |" in (tmp_path / "contexts.md").read_text()
    setting = value["setting"]
    assert setting["model"]["name"] == tiny.name and setting["versions"].keys() >= {"torch", "transformers"}
    assert setting["seeds"] and setting["fingerprints"].keys() == {"int4", "lynx"}
    assert (setting["prompts"]["qmsum"], setting["prompts"]["tokens"]) == ("meetings.jsonl", [120, 300])
    assert setting["fingerprints"]["lynx"] in (tmp_path / "contexts.html").read_text()
    [_, lynx] = value["contexts"][0]["methods"]
    for k in (1, 2):  # all of k proposed drafts hold as often as the curve says
        assert lynx["heat"][k - 1][k] == pytest.approx(lynx["curve"][k - 1]["value"])
    acceptance = from_reports([tmp_path / str(tokens) / "fidelity.json" for tokens in (120, 300)])
    assert acceptance.extrapolated(301) and not acceptance.extrapolated(200)
    assert acceptance.at(119)[0] == pytest.approx(lynx["curve"][0]["value"])
    for arguments, message in ((["--lengths", "1k"], "1k"), (["--lengths", "500"], "596 tokens with the text")):
        done = CliRunner().invoke(app, [*base, "--prompts", "1", *arguments])
        assert done.exit_code in (1, 2) and message in done.output and "Traceback" not in done.output
