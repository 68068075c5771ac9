"""ROUGE-L between two texts: the F-measure of their longest common subsequence of words (Lin, 2004)."""

from __future__ import annotations

import re


def rouge_l(text: str, reference: str) -> float:
    """0 .. 1, over lower-case runs of letters and digits, without stemming; 0 if either has none."""
    ours, theirs = (re.findall(r"[a-z0-9]+", side.lower()) for side in (text, reference))
    common = _common(ours, theirs)
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0  # 2PR / (P + R), P and R of the same numerator


def _common(a: list[str], b: list[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for word in a:
        diagonal = 0
        for j, other in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if word == other else max(row[j], row[j - 1])
    return row[-1]
