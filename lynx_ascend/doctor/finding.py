"""What one check found: a name, a verdict, what was seen, and the way out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Verdicts. A warning may be meant so; a problem keeps Lynx from working."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor. `remedy`: what to do about it; empty where it is ok."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(name, Status.OK, found)


def warning(name: str, found: str, remedy: str) -> Finding:
    """Works, but perhaps not as meant."""
    return Finding(name, Status.WARNING, found, remedy)


def problem(name: str, found: str, remedy: str) -> Finding:
    """Does not work."""
    return Finding(name, Status.PROBLEM, found, remedy)
