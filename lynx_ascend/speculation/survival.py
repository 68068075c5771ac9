"""How far drafts hold in this engine: the probability that the first i are all accepted, learned as requests end."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from lynx_ascend.speculation.window import MAX_DRAFTS


class AcceptanceCurve:
    """The survival of drafts by position, from requests whose drafts end at different lengths.

    Each position's acceptance (given that all before it were accepted) is counted over the requests that reached it,
    which leaves out what a short draft cannot tell. Counts fade, and each position is shrunk towards the prior. The
    prior is optimistic on purpose: a position that is not reached goes back to it, so that the window tries it again.

    Args:
        prior: acceptance of a draft whose predecessors were accepted, before any is seen, in (0, 1).
        weight: drafts that the prior counts as at each position, > 0.
        memory: requests after which an observation weighs 1/e, >= 1.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(self, *, prior: float = 0.99, weight: float = 4.0, memory: float = 128.0) -> None:
        if not 0 < prior < 1:
            raise ValueError(f"prior: {prior} is outside (0, 1)")
        if not weight > 0:
            raise ValueError(f"weight: {weight} is not positive")
        if not memory >= 1:
            raise ValueError(f"memory: {memory} requests is less than 1")
        self._prior, self._weight, self._keep = prior, weight, 1 - 1 / memory
        self._reached = [0.0] * MAX_DRAFTS  # drafts at this position whose predecessors were accepted
        self._accepted = [0.0] * MAX_DRAFTS
        self._survival = self._estimate()

    @property
    def survival(self) -> tuple[float, ...]:
        """At i, the probability that the first i + 1 drafts are all accepted; MAX_DRAFTS entries, not increasing."""
        return self._survival

    def observe(self, accepted: int, *, rejected: bool) -> None:
        """One verified request: SpecDecoder's `accepted` and `rejected`.

        (0, False) is a request that had the time for a draft and made none: old counts fade by it as by any other.

        Raises:
            ValueError: more drafts than MAX_DRAFTS, or fewer than none.
        """
        decided = accepted + rejected
        if accepted < 0 or decided > MAX_DRAFTS:
            raise ValueError(f"{accepted} accepted drafts, rejected {rejected}: outside 0 .. {MAX_DRAFTS} drafts")
        for i in range(MAX_DRAFTS):
            self._reached[i] = self._reached[i] * self._keep + (i < decided)
            self._accepted[i] = self._accepted[i] * self._keep + (i < accepted)
        self._survival = self._estimate()

    def _estimate(self) -> tuple[float, ...]:
        weight, counts = self._weight, zip(self._accepted, self._reached, strict=True)
        return tuple(accumulate(((a + weight * self._prior) / (n + weight) for a, n in counts), mul))
