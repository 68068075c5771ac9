"""Walks every cell of the table in docs/spec_decoder.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lynx_ascend.speculation.actions import Action, Commit, Emit, Fallback, Park, Release, StartDraft, Verify
from lynx_ascend.speculation.decoder import Event, IllegalEvent, SpecDecoder, State

_DOCUMENT = Path(__file__).parents[2] / "docs" / "spec_decoder.md"
_CAP = 3
_FIRST = 5
_TO_STATE = {
    State.WAITING: [],
    State.HANDED: ["on_first_token"],
    State.DRAFTING: ["on_anchor_ready (cap > 0)"],
    State.PARKED: ["on_anchor_ready (cap > 0)", "on_draft_token (stop)"],
    State.VERIFYING: ["on_anchor_ready (cap > 0)", "on_draft_token (below the cap)", "on_residual_ready"],
    State.FALLBACK: ["on_failure"],
    State.DONE: ["on_exact_ready"],
    State.ABORTED: ["on_abort"],
}


def _table() -> dict[tuple[str, State], str]:
    section = _DOCUMENT.read_text(encoding="utf-8").split("## The table", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    states = [State[name] for name in rows[0][1:]]
    return {(row[0], state): cell for row in rows[2:] for state, cell in zip(states, row[1:], strict=True)}


_TABLE = _table()


def _fire(decoder: SpecDecoder, event: str) -> tuple[Action, ...]:
    """Calls the method that an event row names, with arguments that meet the row's condition."""
    name, condition = re.fullmatch(r"(on_\w+)(?: \((.+)\))?", event).groups()  # type: ignore[union-attr]
    if name == "on_draft_token":
        if condition == "reaching the cap":
            while decoder.state is State.DRAFTING and len(decoder.drafts) < decoder.cap - 1:
                decoder.on_draft_token(7)
        return decoder.on_draft_token(9, stop=condition == "stop")
    if name == "on_first_token":
        return decoder.on_first_token(_FIRST, stop=condition == "stop")
    arguments = {"on_verified": [[9]], "on_failure": ["link down"]}
    actions: tuple[Action, ...] = getattr(decoder, name)(*arguments.get(name, []))
    return actions


def _reach(state: State, cap: int, handed: bool) -> SpecDecoder:
    """A decoder in `state`; handed: by way of HANDED."""
    decoder = SpecDecoder("r1", cap=cap)
    if handed and state is not State.HANDED:
        decoder.on_first_token(_FIRST)
    for event in _TO_STATE[state]:
        if not (cap == 0 and event.startswith("on_draft_token")):  # with no cap the anchor parks at once
            _fire(decoder, event)
    assert decoder.state is state
    return decoder


def _expected(cell: str, event: str, first: int | None, drafts: tuple[int, ...], cap: int) -> tuple[Action, ...]:
    actions: dict[str, Action] = {
        "StartDraft": StartDraft(cap, first),
        "Park(cap)": Park("cap"),
        "Park(stop)": Park("stop"),
        "Commit": Commit(),
        "Verify": Verify(drafts, first),
        "Emit": Emit((_FIRST,) if event.startswith("on_first_token") else (9,)),
        "Fallback": Fallback("deadline" if event == "on_deadline" else "link down"),
        "Release": Release(),
    }
    _, _, names = cell.partition(": ")
    return tuple(actions[name] for name in names.split(", ") if name)


def test_the_table_is_complete() -> None:
    assert {state for _, state in _TABLE} == set(State)
    assert {event.split()[0] for event, _ in _TABLE} == {event.value for event in Event}
    assert [key for key, cell in _TABLE.items() if cell == "unreachable"] == [
        ("on_anchor_ready (cap = 0)", State.DRAFTING)
    ]


@pytest.mark.parametrize(
    ("event", "state", "cell", "handed"),
    [
        (event, state, cell, handed)
        for (event, state), cell in _TABLE.items()
        for handed in (False, True)
        if cell != "unreachable" and not (handed and state is State.WAITING)
    ],
    ids=lambda value: value.name if isinstance(value, State) else str(value),
)
def test_cell(event: str, state: State, cell: str, handed: bool) -> None:
    decoder = _reach(state, 0 if "cap = 0" in event else _CAP, handed)
    first, drafts = decoder.first, decoder.drafts
    assert first == (_FIRST if handed or state is State.HANDED else None)
    if cell == "illegal":
        with pytest.raises(IllegalEvent) as error:
            _fire(decoder, event)
        assert (error.value.request_id, error.value.state, error.value.event.value) == ("r1", state, event.split()[0])
        for word in ("r1", state.name, event.split()[0]):
            assert word in str(error.value)
        assert (decoder.state, decoder.drafts) == (state, drafts)
        assert decoder.first == first
        if state in (State.VERIFYING, State.DRAFTING, State.PARKED, State.HANDED, State.WAITING):
            decoder.on_abort()  # the decoder has survived the mistake
            assert decoder.state is State.ABORTED
        return
    actions = _fire(decoder, event)
    next_state = state if cell == "late" else State[cell.partition(":")[0]]
    assert decoder.state is next_state
    assert actions == (() if cell == "late" else _expected(cell, event, decoder.first, drafts, decoder.cap))
    assert decoder.holds_output == (next_state is not State.DONE)
    assert decoder.drafting == (next_state is State.DRAFTING)
    assert decoder.finished == (next_state in (State.DONE, State.ABORTED))
    if next_state in (State.FALLBACK, State.ABORTED):
        assert decoder.drafts == ()
