"""The doctor's findings as lines for a reader, or as one JSON object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from lynx_ascend.doctor import gain
from lynx_ascend.doctor.finding import Finding, Status

if TYPE_CHECKING:
    from lynx_ascend.doctor.pair import Pair

_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red"}


def show(findings: Iterable[Finding], console: Console) -> list[Finding]:
    """Prints each finding as it is made; returns them all."""
    made = []
    for finding in findings:
        line = Text(f"{finding.status:<8}", _COLOURS[finding.status])
        line.append(f" {finding.name:<24}  {finding.found}", "default")
        console.print(line, soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"{'':9}-> {finding.remedy}"), soft_wrap=True)
        made.append(finding)
    return made


def show_assumptions(console: Console) -> None:
    """What the expected gains rest on."""
    console.print(Text(f"gains: {gain.ASSUMPTIONS}", "dim"), soft_wrap=True)


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether there is no problem; a warning is none."""
    return all(finding.status is not Status.PROBLEM for finding in findings)


def to_json(findings: list[Finding], pair: Pair | None) -> dict[str, Any]:
    """Everything that was found and measured; units are in the names."""
    result: dict[str, Any] = {"healthy": healthy(findings), "findings": [asdict(finding) for finding in findings]}
    if pair is None:
        return result
    if (link := pair.link) is not None:
        result["link"] = {
            "tokens": link.tokens,
            "wire_bytes": {stream.name.lower(): nbytes for stream, nbytes in link.nbytes.items()},
            "uncompressed_bytes": link.raw,
            "seconds": link.seconds,
            "bits_per_s": link.bandwidth,
        }
    if pair.tpot is not None:
        result["decode_step_s"] = pair.tpot
    if pair.choices:
        gains = [{**asdict(c), "method": c.method, "won": c.won} for c in pair.choices]
        result["gain"] = {"assumptions": gain.ASSUMPTIONS, "choices": gains}
    return result
