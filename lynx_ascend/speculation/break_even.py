"""Break-even: which method reaches the n-th token first, for a prompt on a link, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal

from lynx_ascend.speculation.latency import CodecTimes, Lynx, Monolithic
from lynx_ascend.speculation.steps import StepCosts
from lynx_ascend.speculation.window import FixedWindow, worth_drafting

Method = Literal["bf16", "8bit", "lynx"]


@dataclass(frozen=True)
class KVCosts:
    """What a token of the prompt costs on the wire and in the codec.

    Args:
        bf16: bytes of its uncompressed cache, on which the codec's rates count.
        anchor, residual: bytes on the wire; both together are the 8-bit cache.
        encode, anchor_decode, full_decode: uncompressed bytes a second; infinite where it costs no time.
        eight_bit: bytes of the 8-bit cache without drafts, where another codec makes it; None: anchor + residual, the
            very same cache.

    Raises:
        ValueError: a value is not positive, or bytes are not finite.
    """

    bf16: float
    anchor: float
    residual: float
    encode: float = math.inf
    anchor_decode: float = math.inf
    full_decode: float = math.inf
    eight_bit: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_rate = field.name in ("encode", "anchor_decode", "full_decode")
            if value is not None and not (value > 0 and (is_rate or value < math.inf)):
                raise ValueError(f"{field.name}: {value} is not positive{'' if is_rate else ' and finite'}")


@dataclass(frozen=True)
class Choice:
    """The methods' expected seconds to the n-th token for one prompt on one link (bandwidth in bits a second)."""

    tokens: int
    bandwidth: float
    n: int
    seconds: dict[Method, float]
    drafts: int  # that Lynx would make

    @property
    def method(self) -> Method:
        """The fastest; the simpler one of two that are equally fast."""
        return min(self.seconds, key=self.seconds.__getitem__)

    @property
    def won(self) -> float:
        """Seconds by which it beats the next one."""
        best, second, *_ = sorted(self.seconds.values())
        return second - best


def choose(
    tokens: int,
    bandwidth: float,
    kv: KVCosts,
    costs: StepCosts,
    survival: tuple[float, ...],
    *,
    n: int = 64,
    cap: int = 64,
) -> Choice:
    """Compares raw bf16, the 8-bit cache without drafts, and Lynx with the window of worth_drafting.

    Args:
        tokens: of the prompt, >= 1. bandwidth: bits a second that this request gets.
        survival: AcceptanceCurve.survival.
        n: the token whose time counts, >= 1; one less where the prefill instance hands over the first.
        cap: the most drafts.

    Raises:
        ValueError: tokens, bandwidth or n is not positive.
    """
    if tokens < 1:
        raise ValueError(f"tokens: {tokens} is less than 1")
    if not 0 < bandwidth < math.inf:
        raise ValueError(f"bandwidth: {bandwidth} bits a second is not positive and finite")
    raw = tokens * kv.bf16
    codec = CodecTimes(raw / kv.encode, raw / kv.anchor_decode, raw / kv.full_decode)
    eight_bit = tokens * (kv.anchor + kv.residual if kv.eight_bit is None else kv.eight_bit)
    lynx = Lynx(tokens * kv.anchor, tokens * kv.residual, bandwidth, costs.tpot, costs.verify, accepted=0, codec=codec)
    limit = FixedWindow(cap).draft_cap(n)
    drafts = worth_drafting(survival, costs, t_residual=lynx.t_residual, limit=limit)
    return Choice(
        tokens,
        bandwidth,
        n,
        seconds={
            "bf16": Monolithic(raw, bandwidth, costs.tpot).time_to(n),
            "8bit": Monolithic(eight_bit, bandwidth, costs.tpot, codec).time_to(n),
            "lynx": expected(lynx, costs, survival, cap=drafts, n=n).time_to(n),
        },
        drafts=drafts,
    )


def expected(lynx: Lynx, costs: StepCosts, survival: tuple[float, ...], *, cap: int, n: int) -> Lynx:
    """`lynx` with a cap and what is then to be expected: time_to(n) of it is the mean, as accepted drafts add up.

    Drafts beyond the n-th token's save it nothing.
    """
    drafted = replace(lynx, cap=cap).drafted
    kept = sum(survival[: min(drafted, n - 1)])
    return replace(lynx, cap=cap, verify=costs.verify + drafted * costs.verify_draft, accepted=kept)
