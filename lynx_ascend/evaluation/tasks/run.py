"""Runs a task: every method on every prompt's cache, with what is on disk reused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from rich.console import Console

from lynx_ascend.codec.baselines.method import Method
from lynx_ascend.evaluation.cases import Cache, exact_cache
from lynx_ascend.evaluation.measure import EncodedCache
from lynx_ascend.evaluation.methods import METHODS, fingerprint
from lynx_ascend.evaluation.model import MODEL_NAME
from lynx_ascend.evaluation.session import model_directory, progress_bar, versions, weights_digest
from lynx_ascend.evaluation.store import Results, digest_of
from lynx_ascend.evaluation.tasks.task import Answer, Item, Task

EXACT = "bf16"  # whose answers the others are held to


class StreamAnswer(TypedDict):
    """What a receiver has after a stream and those before it. bits: an element, K and V together."""

    bits: float
    answer: Answer


class TaskRow(TypedDict):
    """A method on a prompt: after its first stream, and after all (the same if it has only one)."""

    first: StreamAnswer
    all: StreamAnswer


@dataclass(frozen=True)
class TaskResult:
    """All prompts with their rows by method, `EXACT` among them, and what was used."""

    task: Task
    items: list[tuple[Item, Mapping[str, TaskRow]]]
    methods: Mapping[str, Method]
    setting: Mapping[str, Any]


def run_task(
    task: Task, methods: Mapping[str, Method], folder: Path, console: Console, model: Path | None = None
) -> TaskResult:
    """Measures what is missing in `folder`.

    Args:
        methods: by name; BF16 is added. model: a Transformers directory; None: the package's.

    Raises:
        ValueError, OSError: data that cannot be read or is not in its format, no prompts, one that is longer than the
            model's positions, or a model that cannot be loaded.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    path = model_directory(model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    positions: int = AutoConfig.from_pretrained(path).max_position_embeddings
    items = task.items(tokenizer, positions)
    if not items:
        raise ValueError(f"{task.name}: no prompts")
    for item in items:
        if len(item.ids) > positions:
            raise ValueError(f"{item.name}: {len(item.ids)} tokens, the model has {positions} positions")
    loaded, weights = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), weights_digest(path)
    methods = {EXACT: METHODS[EXACT], **methods}
    prints = {name: fingerprint(method) for name, method in methods.items()}
    found: list[tuple[Item, Mapping[str, TaskRow]]] = []
    with progress_bar(console) as progress:
        bar = progress.add_task("", total=len(items) * len(methods))
        for item in items:
            rows: dict[str, TaskRow] = {}
            cache: Cache | None = None
            key = digest_of([task.name, task.version, task.answer_tokens, weights, list(item.ids)])
            results = Results[TaskRow](folder / "prompts" / f"{key}.json")
            for name, method in methods.items():
                row = results.get(name, prints[name])
                if row is None:
                    cache = cache or exact_cache(loaded, item.ids[:-1])
                    row = measure_task(task, loaded, tokenizer, item, cache, method)
                    results.put(name, prints[name], row)
                rows[name] = row
                progress.update(bar, advance=1, description=f"{item.name[:60]}, {name}")
            found.append((item, rows))
    setting = {
        "model": {"name": MODEL_NAME if model is None else path.name, "weights": weights},
        "task": {"parameters": repr(task), "version": task.version},
        "compute": "fp32 on a bf16 cache, greedy",
        "threads": torch.get_num_threads(),
        "fingerprints": prints,
        "versions": versions(),
    }
    return TaskResult(task, found, methods, setting)


@torch.inference_mode()
def measure_task(task: Task, model: Any, tokenizer: Any, item: Item, cache: Cache, method: Method) -> TaskRow:
    """One row. cache: exact, of all of the item's tokens but the last."""
    encoded = EncodedCache(cache, method)

    def stream(streams: int) -> StreamAnswer:
        got = encoded.decode(streams)
        return StreamAnswer(bits=encoded.bits(streams), answer=task.answer(model, tokenizer, item, got))

    first = stream(1)
    return TaskRow(first=first, all=first if method.num_streams == 1 else stream(method.num_streams))
