"""The demo's result as tables and plain words for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from lynx_ascend.demo.run import DemoResult, MethodResult, PromptResult
from lynx_ascend.demo.timeline import MARKS

NOTES = (
    "Drafts are never shown to the client: every token counted here was verified before it was sent, or is the first. "
    "That one was sampled by the prefill server, and comes before the transfer with every method (TTFT).",
    "Lossless means equal to decoding on the 8-bit cache (Anchor + Residual), token for token in exact arithmetic; "
    "bf16 sends the cache as it is.",
    "The link is emulated: a rate limiter in the sender, on this machine's loopback.",
    "Each prompt was computed once before (its prefill time stands above its table) and then found in the prefill "
    "server's prefix cache by every method: times start at sending the request and hold transfer and decoding.",
    "Columns: megabytes by stream, frame headers included; time to the first token and to the 2nd, 32nd and 64th; "
    "drafts and how many of them were accepted (kept); tokens that are as bf16's before the first difference. "
    "Answers run to 64 tokens: the end-of-text token is ignored.",
    "All prompts that were run are shown. They are synthetic documents with tasks on which a 135M model goes on for 64 "
    "tokens, picked also for drafts that hold for a while: acceptance on other text can be lower.",
)


def print_report(result: DemoResult, console: Console) -> None:
    """Prints a table for each prompt, where its timeline lies, and what the numbers mean."""
    console.print(
        f"{result.model}, {result.dtype}; link emulated at {result.bandwidth:g} Mbit/s; "
        f"a decode step takes {result.decode_step_s * 1e3:.0f} ms",
        highlight=False,
        soft_wrap=True,
    )
    for prompt in result.prompts:
        title = f"{prompt.name}: {prompt.tokens} tokens, prefilled in {prompt.prefill_s:.1f} s; MB on the link, seconds"
        console.print(f"\n[bold]{title}[/bold]", highlight=False)
        console.print(_table(prompt))
        if prompt.timeline is not None:
            console.print(f"timeline: {prompt.timeline}", highlight=False, soft_wrap=True)
    console.print()
    for note in NOTES:
        console.print(f"- {note}", highlight=False)


def _table(prompt: PromptResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method")
    columns = ("Anchor", "Resid.", "TTFT", *(f"to {n}" for n in MARKS), "drafts", "kept", "=bf16")
    for column in columns:
        table.add_column(column, justify="right")
    for method in prompt.methods:
        table.add_row(*_cells(method))
    return table


def _cells(method: MethodResult) -> list[str]:
    split = "residual" in method.nbytes
    return [
        method.method,
        f"{method.nbytes['anchor'] / 1e6:.2f}",
        f"{method.nbytes['residual'] / 1e6:.2f}" if split else "",
        _seconds(method.ttft_s),
        *(_seconds(method.time_to_s[str(n)]) for n in MARKS),
        str(method.drafted) if split else "",
        str(method.accepted) if split else "",
        "" if method.agreement is None else f"{method.agreement}/{method.tokens}",
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
