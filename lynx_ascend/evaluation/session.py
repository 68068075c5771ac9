"""What runs of `lynx-ascend eval` share: the model's directory and digest, what else roundings depend on, files that
appear whole, a progress bar."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
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
    """Of a Transformers directory: weights, sizes, tokenizer, and the generation config, whose EOS ids end texts.

    Raises:
        OSError: a file of them is missing; only the generation config may be.
    """
    files = [*path.glob("*.safetensors"), path / "config.json", path / "tokenizer.json"]
    if len(files) == 2:
        raise FileNotFoundError(f"model: {path} has no *.safetensors")
    digest, generation = xxhash.xxh3_64(), path / "generation_config.json"
    for file in sorted([*files, generation] if generation.exists() else files):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def runtime() -> dict[str, Any]:
    """Threads and versions: with others the same model may round otherwise, so that a row counts for them alone."""
    return {"threads": torch.get_num_threads(), "versions": versions()}


def versions() -> dict[str, str]:
    """Of Python and the packages that results depend on."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in _PACKAGES}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file of this process's own to write, which then takes the place of `path` in one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def progress_bar(console: Console) -> Progress:
    """Done of all, the time, and a description."""
    bar = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*bar, TextColumn("{task.description}"), console=console)
