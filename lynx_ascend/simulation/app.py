"""The commands of `lynx-ascend simulate`. With --json, one JSON object goes to stdout and all else to stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from lynx_ascend.speculation.window import MAX_DRAFTS

if TYPE_CHECKING:
    from lynx_ascend.simulation.acceptance import Acceptance
    from lynx_ascend.simulation.hardware import Hardware
    from lynx_ascend.simulation.methods import Method
    from lynx_ascend.simulation.models import Model
    from lynx_ascend.simulation.paper import Comparison, Variant
    from lynx_ascend.simulation.report import LoadRow
    from lynx_ascend.simulation.rules import Map
    from lynx_ascend.speculation.break_even import Choice

app = typer.Typer(no_args_is_help=True)

Result = TypeVar("Result", "LoadRow", "Map")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Reports = Annotated[
    list[Path] | None,
    typer.Option("--acceptance", help="fidelity.json of `lynx-ascend eval fidelity`; once for each context."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE of the hardware: hbm, flops, utilisation, tpot, prefill_rate, commit, ..."),
]
Cap = Annotated[int, typer.Option(min=0, max=MAX_DRAFTS, help="The most drafts.")]


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
        variants = [_with_errors(variant) for variant in result.variants]
        typer.echo(json.dumps({**_with_errors(result), "variants": variants}, allow_nan=False))


@app.command("map")
def break_even(
    model: Annotated[str | None, typer.Option(help="One of the models; all by default.")] = None,
    npus: Annotated[int | None, typer.Option(min=1, help="NPUs of an instance.")] = None,
    n: Annotated[int, typer.Option("--to", min=1, help="The token whose time counts.")] = 64,
    cap: Cap = 64,
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
    maps = _computed(
        "--set, --npus, --to", lambda: [draw_map(_on(m, npus), hardware, curves, n=n, cap=cap) for m in chosen]
    )
    console.print(f"Acceptance: {curves.source}", highlight=False)
    for result in maps:
        print_map(result, console)
    if as_json:
        made = [{**asdict(m), "rows": _cells(m.rows), "plain": _cells(m.plain), "words": m.rule.words()} for m in maps]
        typer.echo(
            json.dumps({"acceptance": curves.source, "hardware": asdict(hardware), "maps": made}, allow_nan=False)
        )


@app.command("acceptance")
def accepted(
    contexts: Annotated[str, typer.Option(help="Prompt tokens, comma-separated.")] = "1024,4096,16384,32768,131072",
    acceptance: Reports = None,
    as_json: AsJson = False,
) -> None:
    """How many drafts hold by context, and where that is extrapolated from what was measured."""
    from lynx_ascend.simulation.report import print_acceptance

    curves = _acceptance(acceptance)
    wanted = _tokens(contexts, "--contexts")
    print_acceptance(curves, wanted, Console(stderr=as_json))
    if as_json:
        rows = [{"tokens": t, "extrapolated": curves.extrapolated(t), "survival": curves.at(t)} for t in wanted]
        typer.echo(json.dumps({"acceptance": curves.source, "contexts": rows}, allow_nan=False))


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
    cap: Cap = 64,
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
    chosen, hardware, lengths = _on(_model(model), npus), _hardware(overrides), _tokens(context, "--context")
    compared = _methods(methods, chosen, cachegen_bits)
    site = Site(chosen, hardware, bandwidth * 1e9, _acceptance(acceptance), slots, cap, not fixed, handover, in_order)
    try:
        arrivals = poisson(rate, requests, lengths, output, seed) if trace is None else read_trace(trace)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--rate" if trace is None else "--trace") from None
    rows = _computed("--set, --npus, --bandwidth, --cachegen-bits", lambda: serve(site, compared, arrivals, seed))
    what = f"{rate:g} requests/s" if trace is None else trace.name
    print_load(rows, f"{chosen.name}, {bandwidth:g} Gbit/s, {what}, seconds", N, console)
    if as_json:
        drawn = {"context": lengths, "rate": rate, "requests": requests, "output": output}
        setting = {
            "model": chosen.name,
            "npus": chosen.npus,
            "hardware": asdict(hardware),
            "bandwidth": site.bandwidth,
            "acceptance": site.acceptance.source,
            **(drawn if trace is None else {"trace": trace.name}),
            "slots": slots,
            "cap": cap,
            "adaptive": site.adaptive,
            "handover": handover,
            "in_order": in_order,
            "seed": seed,
            "methods": [asdict(method) for method in compared],
        }
        typer.echo(json.dumps({**setting, "rows": [asdict(row) for row in rows]}, allow_nan=False))


@app.command()
def figures(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="Where the PNGs of docs/simulator.md go.")],
) -> None:
    """Draws the figures of docs/simulator.md again."""
    from lynx_ascend.simulation.figures import draw_all

    try:
        paths = draw_all(folder)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="FOLDER") from None
    for path in paths:
        typer.echo(str(path))


def _model(name: str) -> Model:
    from lynx_ascend.simulation.models import MODELS

    if name not in MODELS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(MODELS)}", param_hint="--model")
    return MODELS[name]


def _cells(rows: Sequence[Sequence[Choice]]) -> list[list[dict[str, Any]]]:
    return [[{**asdict(cell), "method": cell.method, "won": cell.won} for cell in row] for row in rows]


def _with_errors(result: Comparison | Variant) -> dict[str, Any]:
    lists = {"table1": result.table1, "advantages": result.advantages}
    rows = {name: [{**asdict(row), "error": row.error} for row in found] for name, found in lists.items()}
    return {**asdict(result), **rows}


def _computed(options: str, compute: Callable[[], list[Result]]) -> list[Result]:
    """What `compute` makes of the options' values, finite throughout: each was allowed, but may be too extreme."""
    try:
        results = compute()
    except (ValueError, ArithmeticError) as error:
        raise typer.BadParameter(f"nothing can be computed with these values: {error}", param_hint=options) from None
    try:
        json.dumps([asdict(result) for result in results], allow_nan=False)
    except ValueError:
        raise typer.BadParameter("with these values a result is not finite", param_hint=options) from None
    return results


def _tokens(text: str, option: str) -> list[int]:
    from lynx_ascend.simulation import bounds

    try:
        return [bounds.tokens("tokens", int(part)) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _on(model: Model, npus: int | None) -> Model:
    return model if npus is None else replace(model, npus=npus)


def _methods(names: str | None, model: Model, cachegen_bits: float | None) -> Sequence[Method]:
    from lynx_ascend.simulation.methods import CACHEGEN_BITS, methods

    try:
        known = methods(model.kv_heads, model.head_dim, CACHEGEN_BITS if cachegen_bits is None else cachegen_bits)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--cachegen-bits") from None
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
            name, equals, value = text.partition("=")
            if not equals:
                raise ValueError(f"{text!r} is not NAME=VALUE")
            if name not in known:
                raise ValueError(f"{name!r} is none of {', '.join(known)}")
            if name in values:
                raise ValueError(f"{name} is given twice")
            values[name] = _parsed(name, value, int if known[name] == "int" else float)
        return Hardware(**values)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from None


def _parsed(name: str, value: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name}: {value!r} is no {'whole number' if kind is int else 'number'}") from None
