"""The commands of `lynx-ascend bench`. With --json, one JSON object goes to stdout and all else to stderr."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Measures parts of lynx-ascend on this machine."""


@app.command()
def codec(
    codecs: Annotated[
        str | None, typer.Option("--codec", help="Comma-separated: grid, grid-a1 (alpha 1), pair, alg1. Default: all.")
    ] = None,
    isas: Annotated[
        str | None, typer.Option("--isa", help="Comma-separated instruction sets. Default: all supported here.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Largest thread count; 1, 2, 4, ... are measured too. Default: all cores.")
    ] = None,
    megabytes: Annotated[int, typer.Option(min=1, help="Size of the bf16 cache, in units of 2^20 bytes.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.0, help="Rounds of each instruction set end after this time.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Codec speed: GB/s of bf16 beside memcpy, the PyTorch reference and an INT8 quantiser in PyTorch."""
    from lynx_ascend.bench.codec import BenchError, CodecBenchOptions, run
    from lynx_ascend.bench.codec_report import print_report

    console = Console(stderr=as_json)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the measuring process is ended
    try:
        options = CodecBenchOptions.of(
            codecs=None if codecs is None else codecs.split(","),
            isas=None if isas is None else isas.split(","),
            threads=threads or len(os.sched_getaffinity(0)),
            megabytes=megabytes,
            seconds=seconds,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        result = run(options)
    except BenchError as error:
        console.print(f"bench: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    print_report(result, console)
    if as_json:
        typer.echo(json.dumps(result))


@app.command()
def kernels(
    codecs: Annotated[
        str | None, typer.Option("--codec", help="Comma-separated: grid, grid-a1 (alpha 1), pair, alg1. Default: all.")
    ] = None,
    cores: Annotated[int, typer.Option(min=1, max=254, help="Vector cores; an Atlas 800I A2 has 40.")] = 40,
    pages: Annotated[int, typer.Option(min=1, help="Pages of 256 tokens and 1024 channels.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Ascend C kernels on the host twin: cycles and bytes, estimated from a public cost table."""
    from lynx_ascend.bench.codec_works import WrongResult
    from lynx_ascend.bench.kernels import KernelBenchOptions, run
    from lynx_ascend.bench.kernels_report import print_report

    console = Console(stderr=as_json)
    try:
        options = KernelBenchOptions.of(codecs=None if codecs is None else codecs.split(","), cores=cores, pages=pages)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        result = run(options)
    except WrongResult as error:
        console.print(f"bench: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    print_report(result, console)
    if as_json:
        typer.echo(json.dumps(result))
