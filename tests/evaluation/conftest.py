"""The evaluation's model, converted once a session (and kept in the cache directory for the next)."""

from __future__ import annotations

from pathlib import Path
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


@pytest.fixture(scope="session")
def tiny(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer model with the real tokenizer, as a directory: what is measured on it means nothing."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": len(tokenizer)}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
    path = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def tiny_model(tiny: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny)
