"""`lynx-ascend eval mmlu-pro`, `needle` and `qmsum`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from lynx_ascend.evaluation.tasks.run import TaskResult
    from lynx_ascend.evaluation.tasks.task import Task

Methods = Annotated[str | None, typer.Option(help="Comma-separated. Default: all. BF16 is measured besides.")]
Model = Annotated[Path | None, typer.Option(help="A Transformers directory. Default: SmolLM2-135M.")]
Threads = Annotated[int, typer.Option(min=1, help="Of PyTorch.")]
Report = Annotated[Path | None, typer.Option(help="Folder; a stopped run goes on there. Default: out/<task>.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Limit = Annotated[int | None, typer.Option(min=1, help="How many prompts. Default: all.")]


def mmlu_pro(
    data: Annotated[Path, typer.Option(help="jsonl as published, or a folder with test*.jsonl, validation*.jsonl.")],
    limit: Limit = None,
    cot: Annotated[int, typer.Option(min=0, help="Tokens to reason in. 0: the letters' log-probabilities.")] = 0,
    context: Annotated[int, typer.Option(min=0, help="Tokens of a prompt at least: made-up text before it.")] = 0,
    methods: Methods = None,
    model: Annotated[
        str | None, typer.Option(help="A Transformers directory, or a served name. Default: SmolLM2-135M.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="Base URL of an OpenAI endpoint that serves --model.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions under way at once at the endpoint.")] = 8,
    threads: Threads = 1,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Multiple-choice questions: accuracy and agreement with BF16 of every method."""
    from lynx_ascend.evaluation.tasks.mmlu_pro import MMLUPro

    task = MMLUPro(data, limit, cot, context)
    if endpoint is None:
        _run(task, methods, None if model is None else Path(model), threads, report, as_json)
        return
    from lynx_ascend.evaluation.tasks.endpoint import Endpoint, choose_served, run_served

    if model is None:
        raise typer.BadParameter("the name under which the endpoint serves its model is needed", param_hint="--model")
    try:
        served, where = choose_served(methods), Endpoint(endpoint, model, concurrency)
    except ValueError as error:  # which names one of them
        raise typer.BadParameter(str(error), param_hint="--methods, --endpoint") from None
    _report(task, report, as_json, lambda folder, console: run_served(task, where, served, folder, console))


def needle(
    lengths: Annotated[str, typer.Option(help="Tokens of the prompts, comma-separated.")] = "500,1000,2000,4000",
    depths: Annotated[str, typer.Option(help="Of the needle, % of the document.")] = "0,25,50,75,100",
    repeats: Annotated[int, typer.Option(min=1, help="Documents a cell.")] = 2,
    methods: Methods = None,
    model: Model = None,
    threads: Threads = 1,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """A sentence hidden in made-up documents: whether the answer holds it, by length and depth."""
    from lynx_ascend.evaluation.tasks.needle import Needle

    try:
        percent = [float(depth) for depth in depths.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{depths!r}: per cent wanted, such as 0,50,100", param_hint="--depths") from None
    _run(Needle(tokens_of(lengths), percent, repeats), methods, model, threads, report, as_json)


def qmsum(
    data: Annotated[Path, typer.Option(help="Meetings, jsonl as published.")],
    limit: Limit = None,
    tokens: Annotated[int, typer.Option(min=16, help="Of a meeting, at most.")] = 2000,
    methods: Methods = None,
    model: Model = None,
    threads: Threads = 1,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Queries about meetings: ROUGE-L of every method's answers, to the published ones and to BF16's."""
    from lynx_ascend.evaluation.tasks.qmsum import QMSum

    _run(QMSum(data, limit, tokens), methods, model, threads, report, as_json)


def tokens_of(lengths: str) -> list[int]:
    """The value of --lengths. Raises typer.BadParameter unless it is whole numbers from 1, comma-separated."""
    try:
        found = [int(length) for length in lengths.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise typer.BadParameter(
            f"{lengths!r}: whole numbers of tokens wanted, such as 500,1000", param_hint="--lengths"
        )
    return found


def _run(task: Task, methods: str | None, model: Path | None, threads: int, report: Path | None, as_json: bool) -> None:
    import torch

    from lynx_ascend.evaluation.methods import choose
    from lynx_ascend.evaluation.tasks.run import run_task

    try:
        chosen = choose(methods)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--methods") from None
    torch.set_num_threads(threads)
    _report(task, report, as_json, lambda folder, console: run_task(task, chosen, folder, console, model))


def _report(task: Task, report: Path | None, as_json: bool, measured: Callable[[Path, Console], TaskResult]) -> None:
    from lynx_ascend.evaluation.page import print_tables
    from lynx_ascend.evaluation.tasks.report import tables, write_report

    console, folder = Console(stderr=as_json), report or Path("out") / task.name
    try:
        result = measured(folder, console)
    except (OSError, ValueError) as error:
        console.print(f"eval: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    value = write_report(result, folder)
    print_tables(tables(result)[:1], console)
    console.print(f"{folder / task.name}.html, .json, .md", highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(value))
