"""A token bucket that makes a fast link behave like a slow one; it only computes times, its user does the waiting."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

MAX_PIECE = 64 << 10  # bytes handed to the kernel at once, so that an anchor never waits behind a whole large frame
MIN_PIECE = 1460  # one Ethernet segment
PIECE_S = 2.5e-3  # on a slow link a piece is what the link carries in this time
CATCH_UP_S = 20e-3  # a sender that the OS woke late may make up for this much


class TokenBucket:
    """Tells when how many bytes may go. Not thread-safe: its owner guards it.

    Args:
        rate: bytes per second; None is unlimited.
        burst: most bytes of credit; None: what the rate gives in CATCH_UP_S, at least MAX_PIECE.
        clock: monotonic seconds.

    Raises:
        ValueError: rate or burst is not finite and positive.
    """

    def __init__(
        self, rate: float | None, burst: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if burst is not None and not (math.isfinite(burst) and burst > 0):
            raise ValueError(f"burst: {burst!r} is not a positive number of bytes")
        self._clock = clock
        self._given_burst = burst
        self._tokens = 0.0
        self._at = clock()
        self._rate: float | None = None
        self.set_rate(rate)

    @property
    def rate(self) -> float | None:
        """Bytes per second; None is unlimited."""
        return self._rate

    def set_rate(self, rate: float | None) -> None:
        """Change the rate from now on; credit and debt in bytes stay."""
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"rate: {rate!r} is neither None nor a positive number of bytes per second")
        self._refill()
        self._rate = rate
        self._burst = self._given_burst or max(float(MAX_PIECE), (rate or 0.0) * CATCH_UP_S)

    def piece(self) -> int:
        """Most bytes to send at once, so that a change of mind costs no more than about PIECE_S."""
        return MAX_PIECE if self._rate is None else int(min(MAX_PIECE, max(MIN_PIECE, self._rate * PIECE_S)))

    def restart(self) -> None:
        """Forget saved credit: called when an idle link becomes busy, so that n bytes then take n / rate as on a real
        link. Credit is for a busy sender that was woken late, not for having had nothing to send."""
        self._refill()
        self._tokens = min(self._tokens, 0.0)

    def delay(self, nbytes: int) -> float:
        """Seconds until `nbytes` may go. More than the burst may go when the bucket is full, leaving a debt."""
        if self._rate is None:
            return 0.0
        self._refill()
        return max(0.0, (min(nbytes, self._burst) - self._tokens) / self._rate)

    def take(self, nbytes: int) -> None:
        """Account for `nbytes` that went."""
        if self._rate is not None:
            self._refill()
            self._tokens -= nbytes

    def _refill(self) -> None:
        now = self._clock()
        if self._rate is None:
            self._tokens = 0.0
        else:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
