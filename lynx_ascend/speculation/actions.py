"""What a SpecDecoder asks its driver to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class StartDraft:
    """Decode greedily on the anchor KV, at most `cap` tokens, and report each with `on_draft_token`.

    The first step runs `first`, the token handed over, at position N; None: the last prompt token, at N - 1.
    """

    cap: int
    first: int | None = None


@dataclass(frozen=True)
class Park:
    """Stop scheduling the request: the draft is at its cap, or its last token would end the request."""

    reason: Literal["cap", "stop"]


@dataclass(frozen=True)
class Commit:
    """Have the reconstruction in place of the prompt's approximate KV before the forward pass of `Verify`.

    There is nothing left to write where pages were refined as their residual came, or the event was `on_exact_ready`.
    """


@dataclass(frozen=True)
class Verify:
    """Run `first` (None: the last prompt token) and `drafts` through one forward pass; report it with `on_verified`."""

    drafts: tuple[int, ...]
    first: int | None = None


@dataclass(frozen=True)
class Emit:
    """Give `tokens` to the client: they depend on verified KV alone, or were handed over by the prefill instance."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Fallback:
    """Cancel the transfer, drop the drafts and their KV; then recompute (`on_exact_ready`) or fail (`on_abort`).

    A token handed over is the client's already: it stays, and the recomputation goes on from it.
    """

    reason: str


@dataclass(frozen=True)
class Release:
    """Free what the transfer holds (staging, bytes in flight). Comes exactly once, last."""


Action = StartDraft | Park | Commit | Verify | Emit | Fallback | Release
