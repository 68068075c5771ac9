"""SpecDecoder beyond its table: arguments, what verify accepts, and random event orders against the invariants."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lynx_ascend.speculation.actions import Action, Commit, Emit, Release, Verify
from lynx_ascend.speculation.decoder import IllegalEvent, SpecDecoder, State


def _verifying(drafts: list[int]) -> SpecDecoder:
    decoder = SpecDecoder("r1", cap=8)
    decoder.on_anchor_ready()
    for token in drafts:
        decoder.on_draft_token(token)
    assert decoder.on_residual_ready() == (Commit(), Verify(tuple(drafts)))
    return decoder


@pytest.mark.parametrize(
    ("drafts", "tokens", "accepted", "rejected"),
    [
        ([], [5], 0, False),
        ([1, 2, 3], [9], 0, True),
        ([1, 2, 3], [1, 9], 1, True),
        ([1, 2, 3], [1, 2, 3, 9], 3, False),
        ([1, 2, 3], [1, 2, 3], 3, False),  # trimmed: the last draft ends the request
        ([1, 2, 3], [1], 1, False),  # trimmed: the first draft ends the request
        ([1, 1, 1], [1, 1, 1, 1], 3, False),
    ],
)
def test_verified_tokens_are_emitted_and_accepted_drafts_counted(
    drafts: list[int], tokens: list[int], accepted: int, rejected: bool
) -> None:
    decoder = _verifying(drafts)
    assert (decoder.accepted, decoder.rejected) == (None, False)
    assert decoder.on_verified(tokens) == (Emit(tuple(tokens)), Release())
    assert (decoder.accepted, decoder.rejected) == (accepted, rejected)


@pytest.mark.parametrize("tokens", [[], [1, 2, 3, 4, 5], [9, 2], [2, 1, 9], [1, 2, 4, 9]])
def test_impossible_verify_results_are_refused_and_change_nothing(tokens: list[int]) -> None:
    decoder = _verifying([1, 2, 3])
    with pytest.raises(ValueError, match="'r1'"):
        decoder.on_verified(tokens)
    assert (decoder.state, decoder.drafts, decoder.accepted) == (State.VERIFYING, (1, 2, 3), None)
    assert decoder.on_verified([1, 9]) == (Emit((1, 9)), Release())


def test_an_empty_verify_result_is_refused_without_drafts_too() -> None:
    with pytest.raises(ValueError, match="no verified tokens"):
        _verifying([]).on_verified([])


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="cap"):
        SpecDecoder("r1", cap=-1)
    decoder = SpecDecoder("r1")
    with pytest.raises(ValueError, match="on_first_token: token -1 is negative"):
        decoder.on_first_token(-1)
    assert (decoder.state, decoder.first) == (State.WAITING, None)
    decoder.on_anchor_ready()
    with pytest.raises(ValueError, match="negative"):
        decoder.on_draft_token(-1)
    assert decoder.drafts == ()


def test_a_stop_token_at_the_cap_parks_once_as_stop() -> None:
    decoder = SpecDecoder("r1", cap=1)
    decoder.on_anchor_ready()
    [park] = decoder.on_draft_token(2, stop=True)
    assert park.reason == "stop"  # type: ignore[union-attr]


class RandomOrders(RuleBasedStateMachine):
    """Fires any event at any time and keeps the books on what comes back."""

    @initialize(cap=st.integers(0, 4))
    def start(self, cap: int) -> None:
        self.decoder = SpecDecoder("r1", cap=cap)
        self.reported: list[int] = []
        self.actions: list[Action] = []
        self.verified: tuple[int, ...] | None = None
        self.first: int | None = None

    def _call(self, method: str, *arguments: object, **options: object) -> bool:
        """Whether the event was legal."""
        before = (self.decoder.state, self.decoder.drafts)
        ended = self.decoder.finished
        try:
            actions = getattr(self.decoder, method)(*arguments, **options)
        except IllegalEvent:
            assert (self.decoder.state, self.decoder.drafts) == before
            return False
        assert not (ended and actions)
        self.actions += actions
        return True

    @rule(token=st.integers(0, 3), stop=st.booleans())
    def hand_over(self, token: int, stop: bool) -> None:
        if self._call("on_first_token", token, stop=stop):
            self.first = token
            assert self.decoder.finished == stop

    @rule()
    def anchor(self) -> None:
        self._call("on_anchor_ready")

    @rule(token=st.integers(0, 3), stop=st.booleans())
    def token(self, token: int, stop: bool) -> None:
        if self._call("on_draft_token", token, stop=stop):
            self.reported.append(token)

    @rule()
    def residual(self) -> None:
        self._call("on_residual_ready")

    @rule()
    def exact(self) -> None:
        self._call("on_exact_ready")

    @rule(accepted=st.integers(0, 4), corrected=st.integers(0, 3))
    def verify(self, accepted: int, corrected: int) -> None:
        tokens = (*self.decoder.drafts[:accepted], corrected)
        if self._call("on_verified", tokens):
            self.verified = tokens

    @rule(event=st.sampled_from([("on_abort",), ("on_failure", "link down"), ("on_deadline",)]))
    def end(self, event: tuple[str, ...]) -> None:
        self._call(*event)

    @invariant()
    def output_is_verified(self) -> None:
        emitted = [action.tokens for action in self.actions if isinstance(action, Emit)]
        handed = [] if self.first is None else [(self.first,)]
        assert emitted == handed + ([] if self.verified is None else [self.verified])
        assert self.decoder.first == self.first

    @invariant()
    def commit_immediately_precedes_verify(self) -> None:
        for i, action in enumerate(self.actions):
            if isinstance(action, Verify):
                assert self.actions[i - 1] == Commit()
                assert (action.drafts, action.first) == (tuple(self.reported), self.first)
        assert self.actions.count(Commit()) == sum(isinstance(action, Verify) for action in self.actions)

    @invariant()
    def release_comes_once_and_last(self) -> None:
        assert self.actions.count(Release()) == self.decoder.finished
        if self.decoder.finished:
            assert self.actions[-1] == Release()

    @invariant()
    def drafts_stay_within_the_cap(self) -> None:
        assert len(self.decoder.drafts) <= self.decoder.cap
        assert len(self.reported) <= self.decoder.cap


TestRandomOrders = RandomOrders.TestCase
TestRandomOrders.settings = settings(max_examples=400, stateful_step_count=20, deadline=None)
