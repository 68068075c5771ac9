"""The command line, `lynx-ascend COMMAND`. With --json, one JSON object goes to stdout and all else to stderr."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lynx_ascend.bench.app import app as bench
from lynx_ascend.evaluation.app import app as evaluation
from lynx_ascend.simulation.app import app as simulation

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(bench, name="bench")
app.add_typer(evaluation, name="eval")
app.add_typer(simulation, name="simulate")


@app.callback()
def _root() -> None:
    """Progressive speculative KV transfer for disaggregated LLM serving."""


@app.command()
def demo(
    bandwidth: Annotated[
        float | None, typer.Option(min=0.1, help="Emulated link, Mbit/s; by default a Residual takes 32 decode steps.")
    ] = None,
    context: Annotated[int, typer.Option(min=300, max=8000, help="Tokens of each prompt.")] = 3500,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; by default what this CPU can serve.")] = None,
    methods: Annotated[str, typer.Option(help="Comma-separated, in this order.")] = "bf16,int8,int4,lynx",
    prompts: Annotated[int, typer.Option(min=1, max=3, help="How many of the three prompts.")] = 3,
    output: Annotated[Path, typer.Option(help="Folder for timelines, logs and the trace.")] = Path("out/demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Serves the same prompts by every method, through two real vLLM servers, and compares."""
    from lynx_ascend.demo.client import CompletionError
    from lynx_ascend.demo.report import print_report
    from lynx_ascend.demo.run import DemoOptions, run_demo
    from lynx_ascend.demo.services import ServiceError
    from lynx_ascend.demo.trace import TraceError

    console = Console(stderr=as_json)
    chosen = _dtype(dtype, console)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the servers are ended
    options = DemoOptions(output, chosen, context, bandwidth, _methods(methods), prompts)
    started = time.monotonic()
    with console.status("starting") as status:

        def progress(step: str) -> None:
            console.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {step}", highlight=False)
            status.update(step)

        try:
            result = run_demo(options, progress)
        except (ServiceError, CompletionError, TraceError, ValueError) as error:
            console.print(f"demo: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None
    print_report(result, console)
    if as_json:
        typer.echo(json.dumps(result.to_json()))


@app.command()
def doctor(
    prefill: Annotated[str | None, typer.Option(help="URL of a running prefill server.")] = None,
    decode: Annotated[str | None, typer.Option(help="URL of its decode server.")] = None,
    proxy: Annotated[str | None, typer.Option(help="URL of the proxy in front of both.")] = None,
    tokens: Annotated[int, typer.Option(min=64, help="Tokens of the prompt that is fetched from P.")] = 2048,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each step.")] = 30,
    api_key: Annotated[str | None, typer.Option(envvar="VLLM_API_KEY", help="That of the servers.")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="Where P serves by TLS: a certificate that it accepts,")] = None,
    tls_key: Annotated[str | None, typer.Option(help="its private key,")] = None,
    tls_ca: Annotated[str | None, typer.Option(help="and the CA of P's certificate.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Examines this installation or, with --prefill and --decode, a running pair. Exit status 1: a problem."""
    from lynx_ascend.doctor import installation, report

    console = Console(stderr=as_json)
    pair = None
    if prefill is not None and decode is not None:
        try:
            from lynx_ascend.doctor.link import tls_files
            from lynx_ascend.doctor.pair import Pair
            from lynx_ascend.doctor.servers import Server

            tls = tls_files(tls_cert, tls_key, tls_ca)
            servers = Server(prefill, timeout, api_key), Server(decode, timeout, api_key)
            pair = Pair(*servers, None if proxy is None else Server(proxy, timeout, api_key), tokens, timeout, tls)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        except ImportError as error:  # the codec's, without which nothing can be fetched
            console.print(f"doctor: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None
    elif prefill or decode or proxy:
        raise typer.BadParameter("a pair is examined with both --prefill and --decode")
    findings = report.show(installation.examine() if pair is None else pair.examine(), console)
    if pair is not None and pair.choices:
        report.show_assumptions(console)
    if as_json:
        typer.echo(json.dumps(report.to_json(findings, pair)))
    if not report.healthy(findings):
        raise typer.Exit(1)


def _dtype(asked: str | None, console: Console) -> str:
    from lynx_ascend.demo.cluster import default_dtype

    default = default_dtype()
    if asked is None:
        if default == "float32":
            console.print(
                "This CPU has AMX tiles, for which vLLM packs bf16 keys in a way that cannot be read: float32."
            )
        return default
    if asked not in ("float32", "bfloat16"):
        raise typer.BadParameter(f"{asked!r} is neither float32 nor bfloat16", param_hint="--dtype")
    if asked == "bfloat16" != default:
        raise typer.BadParameter(
            "bfloat16 keys cannot be read on a CPU with AMX tiles: use float32", param_hint="--dtype"
        )
    return asked


def _methods(text: str) -> tuple[str, ...]:
    from lynx_ascend.methods import METHODS

    methods = tuple(text.split(","))
    if unknown := [method for method in methods if method not in METHODS]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(METHODS)}", param_hint="--methods")
    return methods


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
