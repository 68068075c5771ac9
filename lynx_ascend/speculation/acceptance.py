"""The acceptance rules of speculative decoding: which drafts the verify pass keeps, and what follows them.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192), sections 2.2, 2.3.
Here p is the distribution on Anchor + Residual and q the one on the Anchor, both by the same model.
Plain sequences, or NumPy rows; randomness is the caller's, as uniform numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def greedy_accept(drafts: Sequence[int], targets: Sequence[int]) -> tuple[int, ...]:
    """The verified tokens under greedy decoding: the drafts that equal p's argmax, then the argmax that follows them.

    Args:
        drafts: T tokens.
        targets: T + 1 tokens, p's argmax after the prompt and after each draft.

    Raises:
        ValueError: targets is not one longer than drafts.
    """
    if len(targets) != len(drafts) + 1:
        raise ValueError(f"targets: {len(targets)} for {len(drafts)} drafts, expected {len(drafts) + 1}")
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == targets[accepted]:
        accepted += 1
    return tuple(targets[: accepted + 1])


def sampled_accept(
    drafts: Sequence[int], p: Sequence[Sequence[float]], q: Sequence[Sequence[float]], uniforms: Sequence[float]
) -> tuple[int, ...]:
    """The verified tokens under random sampling; each is distributed as p exactly.

    Draft t is accepted with probability min(1, p(t) / q(t)). The first rejected one is replaced by a sample of
    max(0, p - q), normalised; if all are accepted, a bonus token is sampled from the last p.

    Args:
        drafts: T tokens, draft i sampled from q[i].
        p: T + 1 distributions over the vocabulary; q: T distributions, each in the order of p's.
        uniforms: T + 1 independent numbers in [0, 1): one a draft, the last for the corrected or bonus token.

    Raises:
        ValueError: lengths that do not fit, or a draft to which q gives no probability.
    """
    count = len(drafts)
    if (len(p), len(q), len(uniforms)) != (count + 1, count, count + 1):
        raise ValueError(f"{count} drafts with {len(p)} p, {len(q)} q and {len(uniforms)} uniforms")
    for i, draft in enumerate(drafts):
        p_draft, q_draft = p[i][draft], q[i][draft]
        if q_draft <= 0:
            raise ValueError(f"drafts[{i}]: token {draft} has probability {q_draft} under q")
        if uniforms[i] * q_draft >= p_draft:  # u < p / q, without the division
            return (*drafts[:i], _sample(residual_weights(p[i], q[i]), uniforms[-1]))
    return (*drafts, _sample(p[count], uniforms[-1]))


def residual_weights(p: Sequence[float], q: Sequence[float]) -> list[float]:
    """max(0, p - q), not normalised: what a rejected draft is replaced from."""
    return [max(a - b, 0) for a, b in zip(p, q, strict=True)]


def _sample(weights: Sequence[float], uniform: float) -> int:
    """The token in whose share of the total weight `uniform` falls."""
    *below, total = accumulate(weights)
    point = uniform * total
    for token, bound in enumerate(below):
        if point < bound:
            return token
    # Rounding can leave `point` at the total: the last token that has any weight.
    return max(token for token, weight in enumerate(weights) if weight > 0)
