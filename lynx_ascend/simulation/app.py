"""The commands of `lynx-ascend simulate`. With --json, one JSON object goes to stdout and all else to stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from lynx_ascend.simulation.acceptance import Acceptance
    from lynx_ascend.simulation.hardware import Hardware
    from lynx_ascend.simulation.methods import Method
    from lynx_ascend.simulation.models import Model

app = typer.Typer(no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Reports = Annotated[
    list[Path] | None,
    typer.Option("--acceptance", help="fidelity.json of `lynx-ascend eval fidelity`; once for each context."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE of the hardware: hbm, flops, utilisation, tpot, prefill_rate, commit, ..."),
]


@app.callback()
def _simulate() -> None:
    """Predicts times for other models, links and loads. No figure of an NPU here was measured by us."""


@app.command()
def paper(as_json: AsJson = False) -> None:
    """The model against the paper's published times: fitted constants, predictions, relative errors."""
    from lynx_ascend.simulation.paper import compare
    from lynx_ascend.simulation.report import print_paper

    result = compare()
    print_paper(result, Console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(asdict(result)))


@app.command("map")
def break_even(
    model: Annotated[str | None, typer.Option(help="One of the models; all by default.")] = None,
    npus: Annotated[int | None, typer.Option(min=1, help="NPUs of an instance.")] = None,
    n: Annotated[int, typer.Option("--to", min=1, help="The token whose time counts.")] = 64,
    cap: Annotated[int, typer.Option(min=0, help="The most drafts.")] = 64,
    acceptance: Reports = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Which method is first, by context and link, and the rule of thumb: what a serving policy would choose."""
    from lynx_ascend.simulation.models import MODELS
    from lynx_ascend.simulation.report import print_map
    from lynx_ascend.simulation.rules import draw_map

    console = Console(stderr=as_json)
    curves, hardware = _acceptance(acceptance), _hardware(overrides)
    chosen = list(MODELS.values()) if model is None else [_model(model)]
    maps = [draw_map(_on(m, npus), hardware, curves, n=n, cap=cap) for m in chosen]
    console.print(f"Acceptance: {curves.source}", highlight=False)
    for result in maps:
        print_map(result, console)
    if as_json:
        made = [{**asdict(result), "words": result.rule.words()} for result in maps]
        typer.echo(json.dumps({"acceptance": curves.source, "hardware": asdict(hardware), "maps": made}))


@app.command("acceptance")
def accepted(
    contexts: Annotated[str, typer.Option(help="Prompt tokens, comma-separated.")] = "1024,4096,16384,32768,131072",
    acceptance: Reports = None,
    as_json: AsJson = False,
) -> None:
    """How many drafts hold by context, and where that is extrapolated from what was measured."""
    from lynx_ascend.simulation.report import print_acceptance

    curves = _acceptance(acceptance)
    try:
        wanted = [int(tokens) for tokens in contexts.split(",")]
        if min(wanted) < 1:
            raise ValueError(f"{min(wanted)} tokens")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--contexts") from None
    print_acceptance(curves, wanted, Console(stderr=as_json))
    if as_json:
        rows = [{"tokens": t, "extrapolated": curves.extrapolated(t), "survival": curves.at(t)} for t in wanted]
        typer.echo(json.dumps({"acceptance": curves.source, "contexts": rows}))


@app.command()
def load(
    model: Annotated[str, typer.Option(help="One of the models.")] = "llama-8b",
    context: Annotated[
        str, typer.Option(help="Prompt tokens, comma-separated: each request has one of them.")
    ] = "32768",
    bandwidth: Annotated[float, typer.Option(min=0.001, help="Link, Gbit/s.")] = 25,
    rate: Annotated[float, typer.Option(min=1e-6, help="Requests a second, at random times.")] = 0.3,
    requests: Annotated[int, typer.Option(min=1)] = 200,
    output: Annotated[int, typer.Option(min=1, help="Tokens that each request generates.")] = 128,
    trace: Annotated[Path | None, typer.Option(help="Arrivals from JSON lines instead: at, tokens, output.")] = None,
    methods: Annotated[str | None, typer.Option(help="Separated by semicolons. Default: all.")] = None,
    slots: Annotated[int, typer.Option(min=1, help="Requests that D serves at once.")] = 32,
    cap: Annotated[int, typer.Option(min=0, help="The most drafts.")] = 64,
    fixed: Annotated[bool, typer.Option(help="Always draft up to the cap: no adaptive window.")] = False,
    handover: Annotated[bool, typer.Option(help="P's first token goes to the client.")] = False,
    in_order: Annotated[
        bool, typer.Option(help="The link serves request after request, not all Anchors before any Residual.")
    ] = False,
    npus: Annotated[int | None, typer.Option(min=1, help="NPUs of an instance.")] = None,
    cachegen_bits: Annotated[float | None, typer.Option(help="Bits an element of CacheGen.")] = None,
    seed: int = 0,
    acceptance: Reports = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Many requests by events: one P, one link, one batching D, by every method on the same arrivals."""
    from lynx_ascend.simulation.load import N, Site, read_trace, serve
    from lynx_ascend.simulation.report import print_load
    from lynx_ascend.simulation.simulate import poisson

    console = Console(stderr=as_json)
    chosen, hardware = _on(_model(model), npus), _hardware(overrides)
    try:
        if trace is None:
            arrivals = poisson(rate, requests, [int(t) for t in context.split(",")], output, seed)
        else:
            arrivals = read_trace(trace)
        site = Site(
            chosen, hardware, bandwidth * 1e9, _acceptance(acceptance), slots, cap, not fixed, handover, in_order
        )
        rows = serve(site, _methods(methods, chosen, cachegen_bits), arrivals, seed)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    what = f"{rate:g} requests/s" if trace is None else trace.name
    print_load(rows, f"{chosen.name}, {bandwidth:g} Gbit/s, {what}, seconds", N, console)
    if as_json:
        setting = {"model": chosen.name, "hardware": asdict(hardware), "bandwidth": site.bandwidth, "seed": seed}
        typer.echo(json.dumps({**setting, "acceptance": site.acceptance.source, "rows": [asdict(r) for r in rows]}))


@app.command()
def figures(folder: Annotated[Path, typer.Argument(help="Where the PNGs of docs/simulator.md go.")]) -> None:
    """Draws the figures of docs/simulator.md again."""
    from lynx_ascend.simulation.figures import draw_all

    for path in draw_all(folder):
        typer.echo(str(path))


def _model(name: str) -> Model:
    from lynx_ascend.simulation.models import MODELS

    if name not in MODELS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(MODELS)}", param_hint="--model")
    return MODELS[name]


def _on(model: Model, npus: int | None) -> Model:
    return model if npus is None else replace(model, npus=npus)


def _methods(names: str | None, model: Model, cachegen_bits: float | None) -> Sequence[Method]:
    from lynx_ascend.simulation.methods import CACHEGEN_BITS, methods

    known = methods(model.kv_heads, model.head_dim, CACHEGEN_BITS if cachegen_bits is None else cachegen_bits)
    chosen = list(known) if names is None else [name.strip() for name in names.split(";")]
    if unknown := [name for name in chosen if name not in known]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {'; '.join(known)}", param_hint="--methods")
    return [known[name] for name in chosen]


def _acceptance(paths: list[Path] | None) -> Acceptance:
    from lynx_ascend.simulation.acceptance import AcceptanceError, from_reports, published_by_context

    try:
        return from_reports(paths) if paths else published_by_context()
    except (OSError, AcceptanceError) as error:
        raise typer.BadParameter(str(error), param_hint="--acceptance") from None


def _hardware(overrides: list[str] | None) -> Hardware:
    from lynx_ascend.simulation.hardware import Hardware

    values: dict[str, Any] = {}
    known = {field.name: field.type for field in fields(Hardware)}
    try:
        for text in overrides or []:
            name, _, value = text.partition("=")
            if name not in known:
                raise ValueError(f"{name!r} is none of {', '.join(known)}")
            values[name] = int(value) if known[name] == "int" else float(value)
        return Hardware(**values)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from None
