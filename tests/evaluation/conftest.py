"""The evaluation's model, converted once a session (and kept in the cache directory for the next)."""

from __future__ import annotations

from typing import Any

import pytest

from lynx_ascend.evaluation.model import ensure_model


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(ensure_model())


@pytest.fixture(scope="session")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(ensure_model())
