"""What runs of `lynx-ascend eval` share: the model's directory and digest, versions for the record, a progress bar."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import xxhash
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lynx_ascend.evaluation.model import ensure_model

_PACKAGES = ("lynx-ascend", "torch", "transformers", "constriction", "numpy")


def model_directory(path: Path | None) -> Path:
    """`path`, or the package's model. Raises FileNotFoundError if it is no directory."""
    if path is not None and not path.is_dir():
        raise FileNotFoundError(f"model: {path} is no directory")
    return path or ensure_model()


def weights_digest(path: Path) -> str:
    """Of a Transformers directory: weights, sizes and tokenizer."""
    digest = xxhash.xxh3_64()
    for file in sorted([*path.glob("*.safetensors"), path / "config.json", path / "tokenizer.json"]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of Python and the packages that results depend on."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in _PACKAGES}


def progress_bar(console: Console) -> Progress:
    """Done of all, the time, and a description."""
    bar = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*bar, TextColumn("{task.description}"), console=console)
