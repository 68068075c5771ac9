"""What speculation would win on a measured link: the method that reaches the 64th token first, by context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lynx_ascend.doctor.finding import Finding, ok, warning
from lynx_ascend.speculation.break_even import Choice, choose
from lynx_ascend.speculation.steps import StepCosts
from lynx_ascend.speculation.survival import AcceptanceCurve

if TYPE_CHECKING:
    from lynx_ascend.doctor.link import Link

CONTEXTS = (1024, 4096, 16384, 65536)  # prompt tokens
TO_TOKEN = 64
ACCEPTANCE = 0.963  # of a draft whose predecessors hold: 23.7 of 64 drafts in the mean, as in docs/ablation.md
ASSUMPTIONS = (
    f"one request alone on link and D; time from the end of prefill to token {TO_TOKEN}; {ACCEPTANCE:.1%} of drafts "
    "hold, each given that all before it do (SmolLM2-135M on QMSum and MMLU-Pro; other models and texts differ); a "
    "verify pass costs one decode step, and a step costs at any context what it does after a short prompt; the codec "
    "costs what it did in the pull"
)


def choices(link: Link, tpot: float, longest: int) -> list[Choice]:
    """A choice for each of CONTEXTS that fits into `longest` tokens. tpot: seconds of a decode step of D."""
    survival = AcceptanceCurve(prior=ACCEPTANCE).survival
    costs = StepCosts(tpot, verify=tpot)
    fitting = [context for context in CONTEXTS if context + TO_TOKEN <= longest]
    return [choose(context, link.bandwidth, link.kv_costs(), costs, survival, n=TO_TOKEN) for context in fitting]


def findings(made: list[Choice]) -> list[Finding]:
    """A line a context; a warning where Lynx is not the fastest."""
    return [_finding(choice) for choice in made]


def _finding(choice: Choice) -> Finding:
    times = ", ".join(f"{method} {seconds:.3g} s" for method, seconds in choice.seconds.items())
    name, found = f"gain at {choice.tokens}", f"{times}: {choice.method} by {choice.won:.3g} s ({choice.drafts} drafts)"
    if choice.method == "lynx":
        return ok(name, found)
    other = {"bf16": "bf16", "8bit": "lynx with lynx_draft_cap 0"}[choice.method]
    return warning(name, found, f"method auto does so by itself; requests that name a method: ask for {other}")
