"""Numbers from files and options: what is none, or out of bounds, is refused by name."""

from __future__ import annotations

from reprlib import repr as shortened

MOST_TOKENS = 10**9  # of a prompt or an answer


def number(name: str, value: object, low: float, high: float) -> float:
    """`value`, if it is a number from `low` to `high`.

    Raises:
        ValueError: it is not. NaN, a bool and a string are no numbers.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name}: {shortened(value)} is no number from {low:.10g} to {high:.10g}")
    return float(value)


def tokens(name: str, value: object) -> int:
    """`value`, if it is a whole number of tokens, from 1 to MOST_TOKENS.

    Raises:
        ValueError: it is not.
    """
    found = number(name, value, 1, MOST_TOKENS)
    if found % 1:
        raise ValueError(f"{name}: {value} is no whole number")
    return int(found)
