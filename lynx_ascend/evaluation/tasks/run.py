"""Runs a task: every method on every prompt's cache, with what is on disk reused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict

import torch
from rich.console import Console

from lynx_ascend.codec.baselines.method import Method
from lynx_ascend.evaluation.cases import Cache, exact_cache
from lynx_ascend.evaluation.measure import EncodedCache
from lynx_ascend.evaluation.methods import METHODS, fingerprint
from lynx_ascend.evaluation.model import MODEL_NAME
from lynx_ascend.evaluation.session import model_directory, progress_bar, runtime, weights_digest
from lynx_ascend.evaluation.store import Results, digest_of
from lynx_ascend.evaluation.tasks.task import Answer, Item, Task

EXACT = "bf16"  # whose answers the others are held to
BATCH_TOKENS = 16_384  # of the caches on which the model answers at once; one of SmolLM2 in fp32 takes 46 KB


class StreamAnswer(TypedDict):
    """What a receiver has after a stream and those before it. bits: an element, K and V together; NaN if unknown."""

    bits: float
    answer: Answer


class TaskRow(TypedDict):
    """A method on a prompt: after its first stream, and after all (the same if it has only one)."""

    first: StreamAnswer
    all: StreamAnswer


class Described(Protocol):
    """What a report says of a method: a Method, or one that an endpoint serves."""

    @property
    def num_streams(self) -> int: ...

    @property
    def source(self) -> str: ...


@dataclass(frozen=True)
class TaskResult:
    """All prompts with their rows by method, `exact` among them, to whose answers the others are held."""

    task: Task
    items: list[tuple[Item, Mapping[str, TaskRow]]]
    methods: Mapping[str, Described]
    setting: Mapping[str, Any]
    exact: str = EXACT


def run_task(
    task: Task, methods: Mapping[str, Method], folder: Path, console: Console, model: Path | None = None
) -> TaskResult:
    """Measures what is missing in `folder`.

    Args:
        methods: by name; BF16 is added. model: a Transformers directory; None: the package's.

    Raises:
        ValueError, OSError: data that cannot be read or is not in its format, no prompts, one that is with its answer
            longer than the model's positions, or a model that cannot be loaded.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    path = model_directory(model)
    weights, around = weights_digest(path), runtime()
    tokenizer = AutoTokenizer.from_pretrained(path)
    positions: int = AutoConfig.from_pretrained(path).max_position_embeddings
    items = task.items(tokenizer, positions)
    if not items:
        raise ValueError(f"{task.name}: no prompts")
    for item in items:
        if (needed := len(item.ids) + task.answer_tokens) > positions:
            raise ValueError(f"{item.name}: {needed} tokens with the answer, the model has {positions} positions")
    loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    methods = {EXACT: METHODS[EXACT], **methods}
    prints = {name: fingerprint(method) for name, method in methods.items()}
    found: list[tuple[Item, Mapping[str, TaskRow]]] = []
    with progress_bar(console) as progress:
        bar = progress.add_task("", total=len(items) * len(methods))
        for item in items:
            key = digest_of([task.name, task.version, task.answer_tokens, weights, around, list(item.ids)])
            results = Results[TaskRow](folder / "prompts" / f"{key}.json")
            progress.update(bar, description=item.name[:60])
            rows = {name: row for name in methods if (row := results.get(name, prints[name])) is not None}
            if missing := {name: method for name, method in methods.items() if name not in rows}:
                cache = exact_cache(loaded, item.ids[:-1])
                for name, row in measure_task(task, loaded, tokenizer, item, cache, missing).items():
                    results.put(name, prints[name], row)
                    rows[name] = row
            progress.update(bar, advance=len(methods))
            found.append((item, {name: rows[name] for name in methods}))
    setting = {
        "model": {"name": MODEL_NAME if model is None else path.name, "weights": weights},
        "task": {"parameters": repr(task), "version": task.version},
        "compute": "fp32 on a bf16 cache, greedy",
        "fingerprints": prints,
        **around,
    }
    return TaskResult(task, found, methods, setting)


@torch.inference_mode()
def measure_task(
    task: Task, model: Any, tokenizer: Any, item: Item, cache: Cache, methods: Mapping[str, Method]
) -> dict[str, TaskRow]:
    """A row for each method. cache: exact, of all of the item's tokens but the last.

    The model answers on several caches in one batch, in which it reads its weights once; logits of a batch of another
    size differ by roundings.
    """
    streams = list(_streams(cache, methods))
    size = max(1, BATCH_TOKENS // len(item.ids))
    found: dict[str, list[StreamAnswer]] = {}
    for start in range(0, len(streams), size):
        some = streams[start : start + size]
        caches = [encoded.decode(count) for _, count, encoded in some]
        answers = task.answers(model, tokenizer, item, caches)
        for (name, count, encoded), answer in zip(some, answers, strict=True):
            found.setdefault(name, []).append(StreamAnswer(bits=encoded.bits(count), answer=answer))
    return {name: TaskRow(first=rows[0], all=rows[-1]) for name, rows in found.items()}


def _streams(cache: Cache, methods: Mapping[str, Method]) -> Iterator[tuple[str, int, EncodedCache]]:
    """(method, streams received, the cache in its streams): after the first, and after all."""
    for name, method in methods.items():
        encoded = EncodedCache(cache, method)
        for count in sorted({1, method.num_streams}):
            yield name, count, encoded
