"""The Python code in docs/ runs: the blocks of one page in order, in one namespace and an empty directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(path for path in DOCS.glob("*.md") if BLOCK.search(path.read_text(encoding="utf-8")))


def run(page: Path) -> int:
    """Runs a page's blocks; returns how many there were."""
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": page.stem}
    blocks = list(BLOCK.finditer(text))
    for block in blocks:
        before = text.count("\n", 0, block.start(1))  # so that a traceback has the page's line numbers
        exec(compile("\n" * before + block[1], page, "exec"), namespace)
    return len(blocks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(page) == page.read_text(encoding="utf-8").count("```python")


def test_the_library_page_is_among_them() -> None:
    assert "library.md" in [page.name for page in PAGES]


def test_a_failing_block_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\n```\nmore\n```python\nassert x == 2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError) as caught:
        run(page)
    assert caught.traceback[-1].lineno == 7


def test_the_tests_that_the_page_of_faults_names_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (DOCS / "faults.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = [f"{file}::{test}" for file, test in named if not _defines(DOCS.parent / "tests" / file, test)]
    assert not missing


def _defines(file: Path, test: str) -> bool:
    return file.is_file() and f"\ndef {test}(" in file.read_text(encoding="utf-8")
