"""One engine for the tests of a module, and prompts that its model answers at length."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def model_path() -> str:
    from lynx_ascend.evaluation.model import ensure_model

    return str(ensure_model())


@pytest.fixture(scope="session")
def engine(model_path: str) -> Iterator[object]:
    """A kv_both engine with the default options; vLLM allows one a process."""
    from tests.serving.harness import Engine

    engine = Engine(model_path)
    yield engine
    engine.llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="session")
def prompts(model_path: str) -> list[list[int]]:
    from transformers import AutoTokenizer

    from lynx_ascend.evaluation.prompts import prompts

    return prompts(AutoTokenizer.from_pretrained(model_path), 6, [300, 700, 1200, 1800, 2600, 4000])
