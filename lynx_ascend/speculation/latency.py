"""The latency model: when the n-th verified token is there, and what drafting wins over an int8 transfer.

Times in seconds, sizes in bytes, bandwidth in bits per second. Times count from the end of prefill, with the link free;
both methods share all that comes before. The paper's formulas are those of arXiv 2607.01831.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def kv_bytes(tokens: int, kv_heads: int, head_dim: int, layers: int, bytes_per_element: float = 2) -> float:
    """Bytes of a prompt's K and V: 2 * tokens * kv_heads * head_dim * layers * bytes_per_element (the paper's)."""
    return 2 * tokens * kv_heads * head_dim * layers * bytes_per_element


def transfer_time(nbytes: float, bandwidth: float) -> float:
    """Seconds that nbytes take at `bandwidth` bits per second."""
    return 8 * nbytes / bandwidth


def paper_gain(t_residual: float, k: int, tpot: float) -> float:
    """The paper's gain over int8, min(t_res, k * TPOT): neither extra bytes nor the verify pass cost anything."""
    return min(t_residual, k * tpot)


def paper_ttft(t_compute: float, t_anchor: float, t_residual: float, k: int, tpot: float) -> float:
    """The paper's TTFT_Lynx = t_compute + t_anc + max(0, t_res - k * TPOT); with k = 0 its TTFT_INT8.

    It credits k drafted tokens before any is verified: to be quoted, not measured.
    """
    return t_compute + t_anchor + max(0.0, t_residual - k * tpot)


def hiding_cap(t_residual: float, tpot: float) -> int:
    """The least k that hides the residual whole: k * TPOT >= t_res."""
    return math.ceil(t_residual / tpot)


@dataclass(frozen=True)
class Int8:
    """A monolithic transfer, then ordinary decoding.

    Args:
        nbytes: on the wire, headers included; tpot: seconds of one decode step.
    """

    nbytes: float
    bandwidth: float
    tpot: float

    def time_to(self, n: int) -> float:
        """Seconds until the n-th token, n >= 1: the transfer, then one step a token (the first recomputes the last
        prompt token)."""
        return transfer_time(self.nbytes, self.bandwidth) + n * self.tpot


@dataclass(frozen=True)
class Lynx:
    """Anchor, drafting while the Residual is on the wire, one verify pass, then ordinary decoding.

    Args:
        anchor_bytes, residual_bytes: on the wire, headers included; tpot: seconds of one decode step.
        verify: seconds of the commit and the verify pass.
        accepted: drafts the verify pass keeps if that many are drafted.
        cap: the most tokens drafted.
    """

    anchor_bytes: float
    residual_bytes: float
    bandwidth: float
    tpot: float
    verify: float
    accepted: int
    cap: int = 64

    @property
    def t_anchor(self) -> float:
        """Seconds that the Anchor is on the link."""
        return transfer_time(self.anchor_bytes, self.bandwidth)

    @property
    def t_residual(self) -> float:
        """Seconds that the Residual is on the link, behind the Anchor."""
        return transfer_time(self.residual_bytes, self.bandwidth)

    @property
    def drafted(self) -> int:
        """Draft steps begun before the residual is there; the last one runs to its end."""
        return min(self.cap, hiding_cap(self.t_residual, self.tpot))

    @property
    def kept(self) -> int:
        """Drafts accepted."""
        return min(self.accepted, self.drafted)

    @property
    def verify_start(self) -> float:
        """When the verify pass begins: the residual is there and no draft step runs."""
        return self.t_anchor + max(self.t_residual, self.drafted * self.tpot)

    def time_to(self, n: int) -> float:
        """Seconds until the n-th verified token, n >= 1: the accepted drafts and one more come out of one pass."""
        return self.verify_start + self.verify + max(0, n - self.kept - 1) * self.tpot


@dataclass(frozen=True)
class Gain:
    """What Lynx wins over int8 in time to the n-th verified token, term by term, in seconds. Costs are negative."""

    drafting: float  # decode steps that accepted drafts and the token after them save: min(n, kept + 1) * TPOT
    extra_bytes: float  # the two streams are a little longer than int8's one
    last_step: float  # the residual came in the middle of a draft step
    verify: float

    @property
    def total(self) -> float:
        """Seconds won; negative: lost."""
        return self.drafting + self.extra_bytes + self.last_step + self.verify


def gain(int8: Int8, lynx: Lynx, n: int) -> Gain:
    """int8.time_to(n) - lynx.time_to(n) by its terms.

    Raises:
        ValueError: n < 1, or the two are of different links or decoders.
    """
    if n < 1:
        raise ValueError(f"n: {n} is less than 1")
    if (int8.bandwidth, int8.tpot) != (lynx.bandwidth, lynx.tpot):
        raise ValueError("int8 and lynx: bandwidth and tpot differ")
    extra = lynx.anchor_bytes + lynx.residual_bytes - int8.nbytes
    return Gain(
        drafting=min(n, lynx.kept + 1) * lynx.tpot,
        extra_bytes=-transfer_time(extra, lynx.bandwidth),
        last_step=lynx.t_anchor + lynx.t_residual - lynx.verify_start,
        verify=-lynx.verify,
    )
