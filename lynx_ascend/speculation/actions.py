"""What a SpecDecoder asks its driver to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class StartDraft:
    """Decode greedily on the anchor KV, at most `cap` tokens, and report each with `on_draft_token`."""

    cap: int


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
    """Run the last prompt token and `drafts` through one forward pass; report what it gives with `on_verified`."""

    drafts: tuple[int, ...]


@dataclass(frozen=True)
class Emit:
    """Give `tokens` to the client: they depend on verified KV alone."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Fallback:
    """Cancel the transfer, drop the drafts and their KV; then recompute (`on_exact_ready`) or fail (`on_abort`)."""

    reason: str


@dataclass(frozen=True)
class Release:
    """Free what the transfer holds (staging, bytes in flight). Comes exactly once, last."""


Action = StartDraft | Park | Commit | Verify | Emit | Fallback | Release
