"""Break-even maps of context and link for a model, and the rule of thumb that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lynx_ascend.simulation.acceptance import Acceptance
from lynx_ascend.simulation.hardware import Hardware
from lynx_ascend.simulation.methods import methods
from lynx_ascend.simulation.models import Model
from lynx_ascend.speculation.break_even import Choice, KVCosts, choose
from lynx_ascend.speculation.latency import transfer_time
from lynx_ascend.speculation.steps import StepCosts

CONTEXTS = (256, 1024, 4096, 16384, 32768, 65536, 131072)
LINKS = tuple(gbit * 1e9 for gbit in (1, 5, 10, 25, 50, 100, 200, 400))
_LINK = 25e9  # of the rule
_SLOW = 1e9  # of its upper end
_STEPS = (4, 16, 32, 64)


@dataclass(frozen=True)
class Rule:
    """The rule of thumb.

    Args:
        steps: decode steps that a Residual takes where drafting begins to pay, and does for all longer prompts, on a
            link of 25 Gbit/s; None: not even for the longest prompt, of two million tokens.
        tokens_per_gbit: prompt tokens that this is for each Gbit/s of the link.
        won: by the decode steps that a Residual takes, those that Lynx wins over the same 8 bits in one stream.
        until: decode steps of a Residual from which on plain INT8, which sends fewer bytes, is ahead of Lynx, on a link
            of 1 Gbit/s; None: for no prompt that is long enough to draft.
        raw_from: the slowest link of the map, bits a second, on which raw bf16 is first for some prompt.
    """

    steps: float | None
    tokens_per_gbit: float | None
    won: dict[int, float]
    until: float | None
    raw_from: float | None

    def words(self) -> str:
        """The rule in words."""
        raw = "nowhere on this map" if self.raw_from is None else f"from {self.raw_from / 1e9:g} Gbit/s on"
        if self.steps is None:
            return f"Do not draft: it pays for no prompt on {_LINK / 1e9:g} Gbit/s. Raw bf16 is first {raw}."
        won = ", ".join(f"{won:.1f} of {steps}" for steps, won in self.won.items())
        until = "nowhere" if self.until is None else f"where it takes more than {self.until:.0f}"
        return (
            f"Draft if the Residual takes longer than {self.steps:.1f} decode steps, which is from about "
            f"{self.tokens_per_gbit:,.0f} prompt tokens for each Gbit/s of the link. Steps won, of those that the "
            f"Residual takes: {won}. Plain INT8 is ahead of that {until}. Raw bf16 is first {raw}."
        )


@dataclass(frozen=True)
class Map:
    """Choices by context (rows) and link (columns), as speculation.break_even makes them.

    rows: between raw bf16, the 8 bits of both streams without drafts, and drafts: what a serving policy chooses from.
    plain: the same with plain INT8, of fewer bytes, as "8bit". extrapolated: contexts at which acceptance was not
    measured. thumb: in how many of all cells `rule_of_thumb` says whether Lynx is first in `rows`. lost: seconds to
    the n-th token that it costs at most, where it is wrong.
    """

    model: Model
    rows: list[list[Choice]]
    plain: list[list[Choice]]
    rule: Rule
    extrapolated: list[int]
    thumb: int
    lost: float


def ahead(choice: Choice) -> float:
    """Seconds by which Lynx is ahead of the 8 bits in one stream; negative: behind."""
    return choice.seconds["8bit"] - choice.seconds["lynx"]


def rule_of_thumb(t_residual: float, costs: StepCosts) -> bool:
    """Draft if the Residual takes longer (seconds) than a verification does beyond an ordinary decode step.

    It knows nothing of acceptance: of use where drafts hold well.
    """
    return t_residual > costs.verify - costs.tpot


def kv_costs(model: Model, hardware: Hardware) -> KVCosts:
    """What a token of the prompt costs on the wire and in the codec of all NPUs of an instance.

    The 8 bits are those of both streams; `replace(..., eight_bit=...)` compares with another codec's.
    """
    found = methods(model.kv_heads, model.head_dim)
    anchor, residual = found["lynx"].nbytes(model.kv_token_bytes)
    rates = (model.npus * rate for rate in (hardware.encode, hardware.anchor_decode, hardware.full_decode))
    return KVCosts(found["bf16"].nbytes(model.kv_token_bytes)[0], anchor, residual, *rates)


def draw_map(
    model: Model,
    hardware: Hardware,
    acceptance: Acceptance,
    *,
    contexts: Sequence[int] = CONTEXTS,
    links: Sequence[float] = LINKS,
    n: int = 64,
    cap: int = 64,
) -> Map:
    """Choices for every context and link (bits a second), and the rule."""
    kv = kv_costs(model, hardware)
    plain = replace(kv, eight_bit=methods(model.kv_heads, model.head_dim)["int8"].nbytes(model.kv_token_bytes)[0])

    def cell(tokens: int, link: float, kv: KVCosts = kv) -> Choice:
        return choose(tokens, link, kv, hardware.costs(model, tokens), acceptance.at(tokens), n=n, cap=cap)

    def residual_steps(tokens: int, link: float = _LINK) -> float:
        return transfer_time(tokens * kv.residual, link) / hardware.costs(model, tokens).tpot

    def wrong(choice: Choice) -> bool:
        t_residual = transfer_time(choice.tokens * kv.residual, choice.bandwidth)
        return rule_of_thumb(t_residual, hardware.costs(model, choice.tokens)) != (choice.method == "lynx")

    rows = [[cell(tokens, link) for link in links] for tokens in contexts]
    lengths = [round(16 * 1.02**i) for i in range(600)]  # to 2.3 million tokens
    first = _first_of_all(lengths, lambda tokens: cell(tokens, _LINK).method == "lynx")
    # On a slow link the bytes that Lynx sends besides take longer than what drafts can win.
    behind = _first_of_all(lengths, lambda tokens: ahead(cell(tokens, _SLOW, plain)) < 0)
    won = {}
    for steps in _STEPS:
        tokens = _first_of_all(lengths, lambda tokens, steps=steps: residual_steps(tokens) >= steps)  # type: ignore[misc]
        if tokens is not None:
            won[steps] = ahead(cell(tokens, _LINK)) / hardware.costs(model, tokens).tpot
    return Map(
        model,
        rows,
        [[cell(tokens, link, plain) for link in links] for tokens in contexts],
        Rule(
            steps=None if first is None else residual_steps(first),
            tokens_per_gbit=None if first is None else first / (_LINK / 1e9),
            won=won,
            until=None if behind is None else residual_steps(behind, _SLOW),
            raw_from=min((c.bandwidth for row in rows for c in row if c.method == "bf16"), default=None),
        ),
        [tokens for tokens in contexts if acceptance.extrapolated(tokens)],
        thumb=sum(not wrong(choice) for row in rows for choice in row),
        lost=max((_between(choice) for row in rows for choice in row if wrong(choice)), default=0.0),
    )


def _between(choice: Choice) -> float:
    """Seconds between Lynx and the best of the others."""
    return abs(choice.seconds["lynx"] - min(choice.seconds[other] for other in ("bf16", "8bit")))


def _first_of_all(lengths: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    """The least length from which on it holds for all; None, if it does not even for the longest."""
    first = None
    for tokens in reversed(lengths):
        if not holds(tokens):
            break
        first = tokens
    return first
