"""The latency model: when the n-th verified token is there, and what drafting wins over a monolithic transfer.

Times in seconds, sizes in bytes, bandwidth in bits per second. Times count from the end of prefill, with the link free;
all methods share what comes before. The paper's formulas are those of arXiv 2607.01831.
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


def time_left(nbytes: float, received: float, seconds: float) -> float:
    """Seconds until `nbytes` more are there, at the rate of the `received` bytes of the last `seconds`.

    Without a measurement (nothing received, or no time passed) it is infinite, if anything is left.
    """
    if nbytes <= 0:
        return 0.0
    return nbytes * seconds / received if received > 0 and seconds > 0 else math.inf


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
class CodecTimes:
    """Seconds that the codec takes for the whole cache.

    Pages are coded while others are on the wire: the slowest of link, P and D counts, not their sum. Left out are the
    one page by which a pipeline fills and what decoding adds to the draft steps between which it is done.

    Args:
        encode: on P; one pass makes both streams.
        anchor_decode, full_decode: on D, from the Anchor alone and from both streams.
    """

    encode: float = 0.0
    anchor_decode: float = 0.0
    full_decode: float = 0.0


@dataclass(frozen=True)
class Monolithic:
    """A transfer in one stream (bf16, int8, or both streams of Lynx without drafts), then ordinary decoding.

    Args:
        nbytes: on the wire, headers included; tpot: seconds of one decode step.
    """

    nbytes: float
    bandwidth: float
    tpot: float
    codec: CodecTimes = CodecTimes()

    @property
    def arrival(self) -> float:
        """Seconds until the whole cache is in place."""
        return max(transfer_time(self.nbytes, self.bandwidth), self.codec.encode, self.codec.full_decode)

    def time_to(self, n: int) -> float:
        """Seconds until the n-th token, n >= 1: the transfer, then one step a token (the first recomputes the last
        prompt token)."""
        return self.arrival + n * self.tpot


@dataclass(frozen=True)
class Lynx:
    """Anchor, drafting while the Residual is on the wire, one verify pass, then ordinary decoding.

    Args:
        anchor_bytes, residual_bytes: on the wire, headers included; tpot: seconds of one decode step.
        verify: seconds of the commit and the verify pass.
        accepted: drafts the verify pass keeps if that many are drafted; may be an expectation.
        cap: the most tokens drafted.
    """

    anchor_bytes: float
    residual_bytes: float
    bandwidth: float
    tpot: float
    verify: float
    accepted: float
    cap: int = 64
    codec: CodecTimes = CodecTimes()

    @property
    def t_anchor(self) -> float:
        """Seconds until the Anchor is in place."""
        return max(self._anchor_wire, self.codec.encode, self.codec.anchor_decode)

    @property
    def t_residual(self) -> float:
        """Seconds from there until the Residual is in place; it is on the link behind the Anchor."""
        hidden = self.t_anchor - self._anchor_wire  # the residual is on the wire while the codec finishes the anchor
        decoding = self.codec.anchor_decode + self.codec.full_decode - self.t_anchor
        return max(0.0, transfer_time(self.residual_bytes, self.bandwidth) - hidden, decoding)

    @property
    def _anchor_wire(self) -> float:
        return transfer_time(self.anchor_bytes, self.bandwidth)

    @property
    def drafted(self) -> int:
        """Draft steps begun before the residual is there; the last one runs to its end."""
        return min(self.cap, hiding_cap(self.t_residual, self.tpot))

    @property
    def kept(self) -> float:
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
    """What drafting wins in time to the n-th verified token, term by term, in seconds. Costs are negative."""

    drafting: float  # decode steps that accepted drafts and the token after them save: min(n, kept + 1) * TPOT
    extra_bytes: float  # the two streams are a little longer than the monolithic one
    last_step: float  # the residual came in the middle of a draft step
    verify: float

    @property
    def total(self) -> float:
        """Seconds won; negative: lost."""
        return self.drafting + self.extra_bytes + self.last_step + self.verify


def drafting_gain(
    kept: float, tpot: float, verify: float, *, n: int, last_step: float = 0.0, extra_bytes: float = 0.0
) -> Gain:
    """What one request won by its drafts, from what was measured of it; by default over waiting for the same bytes.

    Args:
        kept: drafts accepted; verify: seconds of the commit and the verify pass; tpot: seconds of a decode step.
        n: the token whose time counts, >= 1.
        last_step: seconds from the Residual's arrival to the verify pass.
        extra_bytes: seconds by which the two streams took longer than what they are compared with.

    Raises:
        ValueError: n < 1.
    """
    if n < 1:
        raise ValueError(f"n: {n} is less than 1")
    return Gain(drafting=min(n, kept + 1) * tpot, extra_bytes=-extra_bytes, last_step=-last_step, verify=-verify)


def gain(monolithic: Monolithic, lynx: Lynx, n: int) -> Gain:
    """monolithic.time_to(n) - lynx.time_to(n) by its terms.

    Raises:
        ValueError: n < 1, or the two are of different links or decoders.
    """
    if (monolithic.bandwidth, monolithic.tpot) != (lynx.bandwidth, lynx.tpot):
        raise ValueError("monolithic and lynx: bandwidth and tpot differ")
    residual_at = lynx.t_anchor + lynx.t_residual
    return drafting_gain(
        lynx.kept,
        lynx.tpot,
        lynx.verify,
        n=n,
        last_step=lynx.verify_start - residual_at,
        extra_bytes=residual_at - monolithic.arrival,
    )
