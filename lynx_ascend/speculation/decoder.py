"""SpecDecoder: one sans-IO coroutine a request, from waiting for the Anchor to the verified tokens."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum

from lynx_ascend.speculation.actions import (
    Action,
    Commit,
    Emit,
    Fallback,
    Park,
    Release,
    StartDraft,
    Verify,
)


class State(Enum):
    """Where a request stands; docs/spec_decoder.md has the table of states and events."""

    WAITING = "waiting"  # nothing usable has arrived
    HANDED = "handed"  # the same, and the first token is with the client
    DRAFTING = "drafting"  # decoding on the anchor
    PARKED = "parked"  # the draft is complete, the residual is not here
    VERIFYING = "verifying"  # committed; the verify pass is to run
    FALLBACK = "fallback"  # the transfer was given up; waits for a recomputation or an abort
    DONE = "done"  # an ordinary request from here on
    ABORTED = "aborted"


class Event(Enum):
    """What a driver can report; the values are the names of SpecDecoder's methods."""

    FIRST = "on_first_token"
    ANCHOR = "on_anchor_ready"
    TOKEN = "on_draft_token"
    RESIDUAL = "on_residual_ready"
    EXACT = "on_exact_ready"
    VERIFIED = "on_verified"
    ABORT = "on_abort"
    FAILURE = "on_failure"
    DEADLINE = "on_deadline"


class IllegalEvent(RuntimeError):
    """An event that cannot happen in the request's state: the driver is wrong. The decoder is left as it was."""

    def __init__(self, request_id: str, state: State, event: Event) -> None:
        super().__init__(f"request {request_id!r}: {event.value} is illegal in state {state.name}")
        self.request_id, self.state, self.event = request_id, state, event


_ENDS = {Event.ABORT, Event.FAILURE, Event.DEADLINE}
# Sources that the driver does not command (links, clock, client) can cross with the end of a request: late, no effect.
_LATE = _ENDS | {Event.ANCHOR, Event.RESIDUAL, Event.EXACT}
_LEGAL = {
    State.WAITING: _ENDS | {Event.FIRST, Event.ANCHOR, Event.EXACT},
    State.HANDED: _ENDS | {Event.ANCHOR, Event.EXACT},
    State.DRAFTING: _ENDS | {Event.TOKEN, Event.RESIDUAL, Event.EXACT},
    State.PARKED: _ENDS | {Event.RESIDUAL, Event.EXACT},
    State.VERIFYING: _ENDS | {Event.VERIFIED},
    State.FALLBACK: _LATE,
    State.DONE: _LATE,
    State.ABORTED: _LATE,
}
_TERMINAL = {State.DONE, State.ABORTED}


@dataclass(frozen=True)
class _Input:
    event: Event
    tokens: tuple[int, ...] = ()
    stop: bool = False


class _GiveUp(Exception):
    """Thrown into the coroutine: speculation ends, the request goes on without the transfer."""


class _Abort(Exception):
    """Thrown into the coroutine: the request ends."""


_Coroutine = Generator[tuple[Action, ...], _Input, tuple[Action, ...]]


class SpecDecoder:
    """The speculative life of one request: events in, actions out, in order; no clock, no I/O, no model.

    A driver calls one `on_*` method per event and carries out the actions returned, in their order. The tokens of an
    engine step are reported before the transfer events of the same step. Not safe for concurrent calls.

    Args:
        request_id: names the request in errors.
        cap: the most tokens drafted, >= 0 (0: no drafts, the request waits for the residual). A token handed over is
            not among them.

    Raises:
        ValueError: cap is negative.
    """

    def __init__(self, request_id: str, *, cap: int = 64) -> None:
        if cap < 0:
            raise ValueError(f"request {request_id!r}: cap: {cap} is negative")
        self.request_id = request_id
        self.cap = cap
        self._state = State.WAITING
        self._first: int | None = None
        self._drafts: list[int] = []
        self._accepted: int | None = None
        self._rejected = False
        self._coroutine = self._life()
        next(self._coroutine)

    @property
    def state(self) -> State:
        """Where the request stands."""
        return self._state

    @property
    def first(self) -> int | None:
        """The token handed over by the prefill instance, which the client has; None: there was none."""
        return self._first

    @property
    def drafts(self) -> tuple[int, ...]:
        """The tokens drafted so far; empty after a fallback or an abort."""
        return tuple(self._drafts)

    @property
    def drafting(self) -> bool:
        """True while the driver is to decode on the anchor."""
        return self._state is State.DRAFTING

    @property
    def holds_output(self) -> bool:
        """True while nothing that the engine generates may reach the client, the prefix cache or another request."""
        return self._state is not State.DONE

    @property
    def finished(self) -> bool:
        """True in DONE and ABORTED: the driver can forget the decoder."""
        return self._state in _TERMINAL

    @property
    def accepted(self) -> int | None:
        """Drafts the verify pass accepted and the engine kept; None if no pass was reported."""
        return self._accepted

    @property
    def rejected(self) -> bool:
        """True if the verify pass rejected the draft after the accepted ones; an end of the request rejects none."""
        return self._rejected

    def on_first_token(self, token: int, *, stop: bool = False) -> tuple[Action, ...]:
        """The prefill instance handed over the first token, sampled on its exact KV; reported before anything else.

        stop: it ends the request (EOS, stop id, max_tokens): nothing is to be transferred.

        Raises:
            ValueError: a negative token.
        """
        return self._token(Event.FIRST, token, stop)

    def on_anchor_ready(self) -> tuple[Action, ...]:
        """The Anchor stream is complete and its KV is in place."""
        return self._feed(_Input(Event.ANCHOR))

    def on_draft_token(self, token: int, *, stop: bool = False) -> tuple[Action, ...]:
        """One token was decoded on the anchor. stop: it would end the request (EOS, stop id, max_tokens).

        Raises:
            ValueError: a negative token.
        """
        return self._token(Event.TOKEN, token, stop)

    def on_residual_ready(self) -> tuple[Action, ...]:
        """The Residual stream is complete. The KV holds the anchor, or was refined page by page as the stream came."""
        return self._feed(_Input(Event.RESIDUAL))

    def on_exact_ready(self) -> tuple[Action, ...]:
        """The whole prompt's KV is in place without approximation: a monolithic transfer or a local recomputation."""
        return self._feed(_Input(Event.EXACT))

    def on_verified(self, tokens: Sequence[int]) -> tuple[Action, ...]:
        """The verify pass gave `tokens`: the accepted drafts, then one corrected or bonus token.

        The engine may have cut the list where the request ends (EOS, stop id, max_tokens); the cut leaves at least one
        token and may fall on an accepted draft.

        Raises:
            ValueError: no tokens, or those before the last are no prefix of the T drafts (so there are at most T + 1).
        """
        self._require_legal(Event.VERIFIED)
        tokens = tuple(tokens)
        if not tokens:
            raise ValueError(f"request {self.request_id!r}: no verified tokens for {len(self._drafts)} drafts")
        if tokens[:-1] != self.drafts[: len(tokens) - 1]:
            raise ValueError(
                f"request {self.request_id!r}: verified tokens {tokens} leave drafts {self.drafts} before their last"
            )
        return self._feed(_Input(Event.VERIFIED, tokens=tokens))

    def on_abort(self) -> tuple[Action, ...]:
        """The client or the engine ends the request. May come twice, or after the end."""
        return self._feed(_Input(Event.ABORT))

    def on_failure(self, reason: str) -> tuple[Action, ...]:
        """The transfer failed, or the request's blocks were lost (preemption)."""
        return self._feed(_Input(Event.FAILURE), reason)

    def on_deadline(self) -> tuple[Action, ...]:
        """The time the driver allows the transfer is over."""
        return self._feed(_Input(Event.DEADLINE), "deadline")

    def _token(self, event: Event, token: int, stop: bool) -> tuple[Action, ...]:
        self._require_legal(event)
        if token < 0:
            raise ValueError(f"request {self.request_id!r}: {event.value}: token {token} is negative")
        return self._feed(_Input(event, tokens=(token,), stop=stop))

    def _require_legal(self, event: Event) -> None:
        # Checked before the coroutine sees the event: an exception raised inside would end the coroutine.
        if event not in _LEGAL[self._state]:
            raise IllegalEvent(self.request_id, self._state, event)

    def _feed(self, given: _Input, reason: str = "") -> tuple[Action, ...]:
        self._require_legal(given.event)
        if given.event is Event.ABORT and not self.finished:
            return self._coroutine.throw(_Abort())
        if given.event in (Event.FAILURE, Event.DEADLINE) and not self.finished and self._state is not State.FALLBACK:
            return self._coroutine.throw(_GiveUp(reason))
        return self._coroutine.send(given)

    def _life(self) -> _Coroutine:
        """The whole life. Each yield hands out the actions for the last event and takes the next one."""
        try:
            try:
                actions = yield from self._speculate()
            except _GiveUp as give_up:
                self._state = State.FALLBACK
                self._drafts.clear()
                given = yield (Fallback(str(give_up)),)
                while given.event is not Event.EXACT:  # late
                    given = yield ()
                actions = (Release(),)
            self._state = State.DONE
        except _Abort:
            self._state = State.ABORTED
            self._drafts.clear()
            actions = (Release(),)
        yield actions
        while True:  # late
            yield ()

    def _speculate(self) -> _Coroutine:
        """From the arrival to the verified tokens; returns the last actions."""
        given = yield ()
        if given.event is Event.FIRST:
            [self._first] = given.tokens
            if given.stop:
                return Emit(given.tokens), Release()
            self._state = State.HANDED
            given = yield (Emit(given.tokens),)
        if given.event is Event.EXACT:
            return (Release(),)
        if self.cap == 0:
            self._state = State.PARKED
            given = yield (Park("cap"),)
        else:
            self._state = State.DRAFTING
            given = yield (StartDraft(self.cap, self._first),)
            while given.event is Event.TOKEN:
                self._drafts += given.tokens
                if given.stop or len(self._drafts) == self.cap:
                    self._state = State.PARKED
                    given = yield (Park("stop" if given.stop else "cap"),)
                else:
                    given = yield ()
        self._state = State.VERIFYING
        given = yield (Commit(), Verify(self.drafts, self._first))
        # All but the last are drafts; the last is one too where the engine cut the list.
        self._accepted = sum(token == draft for token, draft in zip(given.tokens, self._drafts, strict=False))
        self._rejected = self._accepted < min(len(given.tokens), len(self._drafts))
        return Emit(given.tokens), Release()
