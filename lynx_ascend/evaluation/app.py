"""The commands of `lynx-ascend eval`. With --json, one JSON object goes to stdout and all else to stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lynx_ascend.evaluation.tasks.commands import mmlu_pro, needle, qmsum, tokens_of

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _eval() -> None:
    """Judges methods of KV transfer by what they do to a model."""


@app.command()
def fidelity(
    text: Annotated[Path | None, typer.Option(help="A plain text: prompts are windows of it.")] = None,
    qmsum: Annotated[Path | None, typer.Option(help="QMSum meetings, jsonl as published.")] = None,
    mmlu_pro: Annotated[Path | None, typer.Option(help="MMLU-Pro questions, jsonl as published.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="In all; without a file, about made-up documents.")] = 20,
    tokens: Annotated[int, typer.Option(min=16, help="Of a prompt from --text or a made-up document.")] = 1500,
    long: Annotated[int, typer.Option(min=0, help="Long texts whose attention error is taken besides.")] = 3,
    long_tokens: Annotated[int, typer.Option(min=16, help="Tokens of a long text.")] = 4096,
    methods: Annotated[str | None, typer.Option(help="Comma-separated. Default: all.")] = None,
    model: Annotated[Path | None, typer.Option(help="A Transformers directory. Default: SmolLM2-135M.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of PyTorch.")] = 1,
    report: Annotated[Path, typer.Option(help="Folder; a run that was stopped goes on there.")] = Path("out/fidelity"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Attention error, KL, accepted drafts and bytes of every method, on the same prompts."""
    import torch

    from lynx_ascend.evaluation.methods import choose
    from lynx_ascend.evaluation.page import print_tables
    from lynx_ascend.evaluation.report import tables, write_report
    from lynx_ascend.evaluation.run import FidelityOptions, run_fidelity

    console = Console(stderr=as_json)
    try:
        chosen = choose(methods)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--methods") from None
    torch.set_num_threads(threads)
    options = FidelityOptions(
        chosen, report, text, qmsum, mmlu_pro, prompts, tokens, long, long_tokens, model
    )  # fmt: skip
    try:
        result = run_fidelity(options, console)
    except (OSError, ValueError) as error:
        console.print(f"eval: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    value = write_report(result, report)
    print_tables(tables(result), console)
    console.print(f"{report / 'fidelity.html'}, fidelity.json, fidelity.md", highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(value))


@app.command()
def contexts(
    qmsum: Annotated[Path, typer.Option(help="QMSum meetings, jsonl as published.")],
    lengths: Annotated[str, typer.Option(help="Tokens of the prompts, comma-separated.")] = "1024,2048,4096,8000",
    prompts: Annotated[int, typer.Option(min=1, help="At each length, the same meetings and queries.")] = 10,
    methods: Annotated[str, typer.Option(help="Comma-separated.")] = "lynx,alg1,int8,int4",
    model: Annotated[Path | None, typer.Option(help="A Transformers directory. Default: SmolLM2-135M.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of PyTorch.")] = 1,
    report: Annotated[Path, typer.Option(help="Folder; a run that was stopped goes on there.")] = Path("out/contexts"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """How far drafts hold as the prompt grows: curves, whole drafts, proposed against accepted."""
    import torch

    from lynx_ascend.evaluation.contexts import run_contexts, tables, write_contexts
    from lynx_ascend.evaluation.methods import choose
    from lynx_ascend.evaluation.page import print_tables
    from lynx_ascend.evaluation.run import FidelityOptions

    console, wanted = Console(stderr=as_json), tokens_of(lengths)
    try:
        options = FidelityOptions(choose(methods), report, qmsum=qmsum, prompts=prompts, model=model)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--methods") from None
    torch.set_num_threads(threads)
    try:
        found = run_contexts(options, wanted, console)
    except (OSError, ValueError) as error:
        console.print(f"eval: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    value = write_contexts(found, report)
    print_tables(tables(found), console)
    console.print(f"{report / 'contexts.html'}, .json, .md, .png", highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(value))


app.command("mmlu-pro")(mmlu_pro)
app.command("needle")(needle)
app.command("qmsum")(qmsum)
