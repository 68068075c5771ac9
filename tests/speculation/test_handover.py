"""First-token handover: a driver over a language of sums, whose client must get the 8-bit continuation of the token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.speculation.acceptance import greedy_accept
from lynx_ascend.speculation.actions import Action, Emit, StartDraft, Verify
from lynx_ascend.speculation.decoder import SpecDecoder, State
from lynx_ascend.speculation.window import FixedWindow

EOS = 0
PROMPT = (5, 3, 8)


def exact(context: tuple[int, ...]) -> int:
    """The token after a context, on the 8-bit cache: depends on all of it."""
    return sum((i + 1) * token for i, token in enumerate(context)) * 7 % 13


def approximate(context: tuple[int, ...]) -> int:
    """The same on the anchor: now and then another token."""
    return (exact(context) + (sum(context) % 4 == 0)) % 13


def ended(output: tuple[int, ...], max_tokens: int) -> bool:
    return len(output) >= max_tokens or (bool(output) and output[-1] == EOS)


def continuation(output: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
    """Greedy on the 8-bit cache after `output`, as far as the request goes."""
    while not ended(output, max_tokens):
        output += (exact(PROMPT + output),)
    return output


class Driver:
    """One request: `first` is handed over, or computed here if there is none."""

    def __init__(self, first: int | None, cap: int, max_tokens: int) -> None:
        self.client: tuple[int, ...] = ()
        self.transfers = 0
        self.max_tokens = max_tokens
        handed = first is not None
        remaining = max_tokens - handed
        self.decoder = SpecDecoder("r1", cap=FixedWindow(cap).draft_cap(remaining) if remaining else 0)
        if first is not None:
            self.carry_out(self.decoder.on_first_token(first, stop=ended((first,), max_tokens)))

    def carry_out(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case Emit(tokens):
                    self.client += tokens
                case StartDraft(_, first):
                    assert (first,) == (self.client or (None,))
                case Verify(drafts, first):
                    base = PROMPT if first is None else (*PROMPT, first)
                    targets = [exact(base + drafts[:i]) for i in range(len(drafts) + 1)]
                    self.verified: tuple[int, ...] = ()
                    for token in greedy_accept(drafts, targets):
                        if not ended(self.client + self.verified, self.max_tokens):
                            self.verified += (token,)

    def run(self, steps: int) -> None:
        """The residual takes `steps` draft steps."""
        if self.decoder.state is not State.DONE:
            self.transfers += 1
            self.carry_out(self.decoder.on_anchor_ready())
            for _ in range(steps):
                if self.decoder.drafting:
                    held = self.client + self.decoder.drafts
                    token = approximate(PROMPT + held)
                    self.carry_out(self.decoder.on_draft_token(token, stop=ended((*held, token), self.max_tokens)))
            self.carry_out(self.decoder.on_residual_ready())
            self.carry_out(self.decoder.on_verified(self.verified))
        self.client = continuation(self.client, self.max_tokens)


@given(st.none() | st.integers(0, 12), st.integers(0, 8), st.integers(1, 20), st.integers(0, 12))
def test_the_client_gets_the_8_bit_continuation(first: int | None, cap: int, max_tokens: int, steps: int) -> None:
    driver = Driver(first, cap, max_tokens)
    given_at_once = () if first is None else (first,)
    assert driver.client == given_at_once
    driver.run(steps)
    assert driver.client == continuation(given_at_once, max_tokens)
    assert driver.transfers == (first != EOS and not (first is not None and max_tokens == 1))


def test_drafts_are_accepted_and_rejected_on_the_way() -> None:
    counts = set()
    for first in range(1, 13):
        driver = Driver(first, cap=8, max_tokens=20)
        driver.run(8)
        counts.add((driver.decoder.accepted, driver.decoder.rejected))
    assert {accepted for accepted, _ in counts} > {0, 1} and {rejected for _, rejected in counts} == {True, False}
