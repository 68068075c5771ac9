"""Acceptance curves by context, from the paper and from a fidelity report."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lynx_ascend.simulation.acceptance import (
    PLAIN_SPLIT,
    Acceptance,
    AcceptanceError,
    from_reports,
    geometric,
    published,
    published_by_context,
)


def test_the_published_curve() -> None:
    curve = published()
    assert (curve[9], curve[19]) == pytest.approx((0.88, 0.70))
    by_context = published_by_context()
    assert by_context.at(16384) == pytest.approx(curve)
    assert by_context.at(4096) == by_context.at(16384) and by_context.extrapolated(4096)
    # 9.6 % are not accepted at 16K, 16.6 % at 128K: drafts fail 1.73 times as often.
    assert by_context.at(131072)[9] == pytest.approx(0.88 ** (0.166 / 0.096))
    assert not by_context.extrapolated(32768) and by_context.extrapolated(131073)


def test_between_and_beyond_contexts() -> None:
    known = Acceptance({1000: geometric(0.9), 4000: geometric(0.8)}, "test")
    assert known.at(4000)[:3] == pytest.approx((0.8, 0.64, 0.512))
    assert known.at(2000)[0] == pytest.approx((0.9 * 0.8) ** 0.5)
    assert known.at(16000)[0] == pytest.approx(0.8 * 0.8 / 0.9)  # as far again
    assert known.at(10) == known.at(1000)
    rising = Acceptance({1000: geometric(0.5), 2000: geometric(0.9)}, "test")
    assert rising.at(10**6) == pytest.approx(geometric(0.9))  # what rises is not extrapolated
    assert rising.at(1400)[0] > 0.5
    assert Acceptance({5: (0.5, 0.0), 50: (0.4, 0.2)}, "test").at(20)[1] == 0.0


def report(path: Path, tokens: int, curve: list[float | None], method: str = "lynx") -> Path:
    points = [None if value is None else {"value": value, "half": 0.1} for value in curve]
    value = {
        "cases": [
            {"tokens": count, "long": long}
            for count, long in ((tokens - 10, False), (tokens + 10, False), (9999, True))
        ],
        "methods": [{"name": method, "first": {"curve": points}}],
    }
    path.write_text(json.dumps(value))
    return path


def test_reports(tmp_path: Path) -> None:
    short = report(tmp_path / "a.json", 1000, [0.9, 0.8, 0.85, None, 0.5])
    known = from_reports([short, report(tmp_path / "b.json", 4000, [0.8, 0.4, 0.2, 0.1])])
    # It does not rise, and ends where no text was long enough.
    assert known.curves == {1000: (0.9, 0.8, 0.8), 4000: (0.8, 0.4, 0.2, 0.1)}
    assert len(known.at(2000)) == 3
    assert known.source == "a.json, b.json"
    with pytest.raises(AcceptanceError, match="second curve for 1000"):
        from_reports([short, short])
    for wrong in ("{}", "nonsense", '{"cases": [], "methods": []}'):
        (tmp_path / "wrong.json").write_text(wrong)
        with pytest.raises(AcceptanceError, match=r"wrong\.json: no curve of method 'lynx'"):
            from_reports([tmp_path / "wrong.json"])
    with pytest.raises(AcceptanceError, match="'int8'"):
        from_reports([short], "int8")
    with pytest.raises(AcceptanceError, match="no acceptance curve"):
        from_reports([report(tmp_path / "empty.json", 1000, [None])])
    with pytest.raises(AcceptanceError, match="context 7"):
        Acceptance({7: (1.2,)}, "test")


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 5.0, -0.1, True, "0.5"])
def test_no_value_of_a_curve_is_hidden_by_those_before(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(AcceptanceError, match=r"a\.json: .*curve\[1\]: .* is no number from 0 to 1"):
        from_reports([report(tmp_path / "a.json", 1000, [0.9, wrong, 0.5])])


@pytest.mark.parametrize("wrong", ["Infinity", "NaN", "1e300", "0", "true"])
def test_the_lengths_of_a_report_are_numbers_of_tokens(tmp_path: Path, wrong: str) -> None:
    path = report(tmp_path / "a.json", 1000, [0.9])
    path.write_text(path.read_text().replace("1010", wrong))
    with pytest.raises(AcceptanceError, match=r"a\.json: .*tokens: "):
        from_reports([path])


def test_a_curve_that_rises_steeply_stays_one_beyond_its_contexts() -> None:
    assert Acceptance({1000: (1e-300,), 2000: (0.9,)}, "test").at(10**6) == (0.9,)


def test_the_plain_split_keeps_what_was_measured() -> None:
    assert sum(PLAIN_SPLIT.at(1000)) == pytest.approx(1.8)
