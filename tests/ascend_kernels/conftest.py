"""The module of the twin's own test kernels, which the build leaves in its folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def twin() -> ModuleType:
    built = list(ROOT.glob("build/*/ascend_kernels/twin/_twin_tests.*.so"))
    if not built:
        pytest.fail("no _twin_tests under build/: build with `pip install --no-build-isolation -e .`")
    path = max(built, key=lambda p: p.stat().st_mtime)
    spec = importlib.util.spec_from_file_location("_twin_tests", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
