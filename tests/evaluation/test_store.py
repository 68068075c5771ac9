"""What a kept row counts for, and rows of two runs in one folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lynx_ascend.evaluation import run as fidelity
from lynx_ascend.evaluation.methods import choose
from lynx_ascend.evaluation.run import FidelityOptions, run_fidelity
from lynx_ascend.evaluation.session import runtime, weights_digest
from lynx_ascend.evaluation.store import Results
from lynx_ascend.evaluation.tasks import run as tasks
from lynx_ascend.evaluation.tasks.needle import Needle


def test_two_runs_in_one_folder_keep_each_others_rows(tmp_path: Path) -> None:
    path = tmp_path / "cases" / "case.json"
    one, other = Results[int](path), Results[int](path)
    one.put("int8", "a", 1)
    other.put("int4", "b", 2)
    assert one.get("int8", "a") == 1 and one.get("int8", "b") is None
    again = Results[int](path)
    assert (again.get("int8", "a"), again.get("int4", "b")) == (1, 2)
    assert not list(path.parent.glob("*.part"))


def test_a_file_of_rows_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text("{")
    with pytest.raises(ValueError, match=r"case\.json: not JSON"):
        Results[int](tmp_path / "case.json")


@pytest.mark.parametrize("kind", ["fidelity", "needle"])
def test_rows_count_for_the_threads_and_versions_that_made_them(
    kind: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = (fidelity, "measure") if kind == "fidelity" else (tasks, "measure_task")
    real, measured = getattr(module, name), []

    def counted(*arguments: Any) -> Any:
        measured.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(module, name, counted)
    chosen, quiet = choose("bf16"), Console(quiet=True)

    def times() -> int:
        if kind == "fidelity":
            run_fidelity(FidelityOptions(chosen, tmp_path, prompts=1, tokens=90, long=0, model=tiny), quiet)
        else:
            tasks.run_task(Needle((120,), (50,), 1, 2), chosen, tmp_path, quiet, tiny)
        return len(measured)

    now = runtime()
    assert now["threads"] > 0 and now["versions"].keys() >= {"torch", "transformers", "constriction"}
    assert times() == 1
    monkeypatch.setattr(module, "runtime", lambda: now | {"threads": 99})
    assert times() == 2


def test_a_models_digest_is_of_all_that_changes_its_texts(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny, copy)
    before = weights_digest(copy)
    assert before == weights_digest(tiny)
    config = copy / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token_id": 5}))
    other = weights_digest(copy)
    config.unlink()
    assert len({before, other, weights_digest(copy)}) == 3
    for file in copy.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"model: .*model has no \*\.safetensors"):
        weights_digest(copy)
