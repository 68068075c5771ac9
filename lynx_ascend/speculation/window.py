"""How many tokens a request drafts at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FixedWindow:
    """The paper's policy: the same cap for every request.

    Raises:
        ValueError: cap is negative.
    """

    cap: int = 64

    def __post_init__(self) -> None:
        if self.cap < 0:
            raise ValueError(f"cap: {self.cap} is negative")

    def draft_cap(self, remaining: int) -> int:
        """The cap of a request that may still generate `remaining` >= 1 tokens.

        One less than that: the verify pass adds a token to the accepted drafts.

        Raises:
            ValueError: remaining is less than 1.
        """
        if remaining < 1:
            raise ValueError(f"remaining: {remaining} tokens leave nothing to generate")
        return min(self.cap, remaining - 1)
