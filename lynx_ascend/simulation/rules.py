"""Break-even maps of context and link for a model, and the rule of thumb that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
_STEPS = (4, 16, 32, 64)


@dataclass(frozen=True)
class Rule:
    """The rule of thumb, at 25 Gbit/s.

    Args:
        steps: decode steps that a Residual takes where Lynx begins to be first, and is for all longer prompts.
        tokens_per_gbit: prompt tokens that this is for each Gbit/s of the link.
        won: by the decode steps that a Residual takes, those that Lynx wins over 8 bits in one stream.
        raw_from: the slowest link of the map, bits a second, on which raw bf16 is first for some prompt.
    """

    steps: float
    tokens_per_gbit: float
    won: dict[int, float]
    raw_from: float | None

    def words(self) -> str:
        """The rule in words."""
        raw = "nowhere on this map" if self.raw_from is None else f"from {self.raw_from / 1e9:g} Gbit/s on"
        won = ", ".join(f"{won:.1f} of {steps}" for steps, won in self.won.items())
        return (
            f"Draft if the Residual takes longer than {self.steps:.1f} decode steps, which is from about "
            f"{self.tokens_per_gbit:,.0f} prompt tokens for each Gbit/s of the link. Steps won, of those that the "
            f"Residual takes: {won}. Raw bf16 is first {raw}."
        )


@dataclass(frozen=True)
class Map:
    """Choices by context (rows) and link (columns), as speculation.break_even makes them.

    extrapolated: contexts at which acceptance was not measured. thumb: in how many of all cells `rule_of_thumb` says
    whether Lynx is first. lost: seconds to the n-th token that it costs at most, where it is wrong.
    """

    model: Model
    rows: list[list[Choice]]
    rule: Rule
    extrapolated: list[int]
    thumb: int
    lost: float


def rule_of_thumb(t_residual: float, costs: StepCosts) -> bool:
    """Draft if the Residual takes longer (seconds) than a verification does beyond an ordinary decode step.

    It knows nothing of acceptance: of use where drafts hold well.
    """
    return t_residual > costs.verify - costs.tpot


def kv_costs(model: Model, hardware: Hardware) -> KVCosts:
    """What a token of the prompt costs on the wire and in the codec of all NPUs of an instance."""
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

    def cell(tokens: int, link: float) -> Choice:
        return choose(tokens, link, kv, hardware.costs(model, tokens), acceptance.at(tokens), n=n, cap=cap)

    def residual_steps(tokens: int) -> float:
        return transfer_time(tokens * kv.residual, _LINK) / hardware.costs(model, tokens).tpot

    def wrong(choice: Choice) -> bool:
        t_residual = transfer_time(choice.tokens * kv.residual, choice.bandwidth)
        return rule_of_thumb(t_residual, hardware.costs(model, choice.tokens)) != (choice.method == "lynx")

    rows = [[cell(tokens, link) for link in links] for tokens in contexts]
    lengths = [round(16 * 1.02**i) for i in range(600)]  # to 2.3 million tokens
    first = _first_of_all(lengths, lambda tokens: cell(tokens, _LINK).method == "lynx")
    won = {}
    for steps in _STEPS:
        tokens = _first_of_all(lengths, lambda tokens, steps=steps: residual_steps(tokens) >= steps)  # type: ignore[misc]
        choice = cell(tokens, _LINK)
        won[steps] = (choice.seconds["8bit"] - choice.seconds["lynx"]) / hardware.costs(model, tokens).tpot
    return Map(
        model,
        rows,
        Rule(
            steps=residual_steps(first),
            tokens_per_gbit=first / (_LINK / 1e9),
            won=won,
            raw_from=min((c.bandwidth for row in rows for c in row if c.method == "bf16"), default=None),
        ),
        [tokens for tokens in contexts if acceptance.extrapolated(tokens)],
        thumb=sum(not wrong(choice) for row in rows for choice in row),
        lost=max((_between(choice) for row in rows for choice in row if wrong(choice)), default=0.0),
    )


def _between(choice: Choice) -> float:
    """Seconds between Lynx and the best of the others."""
    return abs(choice.seconds["lynx"] - min(choice.seconds[other] for other in ("bf16", "8bit")))


def _first_of_all(lengths: Sequence[int], holds: Callable[[int], bool]) -> int:
    """The least length from which on it holds for all; the longest, if it does not even there."""
    first = lengths[-1]
    for tokens in reversed(lengths):
        if not holds(tokens):
            break
        first = tokens
    return first
