"""A link for the Consumer that drops, delays, reorders, duplicates, truncates, flips and dies, on a clock of the test.

The books (Staging), the frames and the Consumer are the real ones; only sockets and threads are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport.events import FaultKind, Item
from lynx_ascend.transport.staging import Rejected, Staging


@dataclass(frozen=True)
class Message:
    """One frame of a stream, or with `frame` None its End with the totals `count` and `nbytes`."""

    stream: Stream
    sequence: int
    frame: bytes | None
    count: int = 0
    nbytes: int = 0
    delay: float = 0.0
    transfer_id: str = ""  # another request's; "": this one's
    older: int = 0  # generations behind this one's


Script = list[Message]


def script_of(frames: dict[Stream, list[bytes]]) -> dict[Stream, Script]:
    """What an undisturbed sender says of each stream."""
    return {
        stream: [
            *(Message(stream, i, frame) for i, frame in enumerate(sent)),
            Message(stream, len(sent), None, len(sent), sum(map(len, sent))),
        ]
        for stream, sent in frames.items()
    }


def merge(scripts: dict[Stream, Script], rng: random.Random) -> Script:
    """Both streams at any pace, each in its order."""
    left, merged = {stream: list(script) for stream, script in scripts.items()}, []
    while any(left.values()):
        stream = rng.choice([stream for stream, script in left.items() if script])
        merged.append(left[stream].pop(0))
    return merged


# The faults. Each takes one stream's script and gives it back disturbed; `at` is any of its frames.


def drop(script: Script, at: int, rng: random.Random) -> Script:
    return script[:at] + script[at + 1 :]


def drop_unseen(script: Script, at: int, rng: random.Random) -> Script:
    """A sender that never noticed: sequence and totals are right, a frame is missing."""
    return _renumber(drop(script, at, rng))


def drop_the_end(script: Script, at: int, rng: random.Random) -> Script:
    return script[:-1]


def delay(script: Script, at: int, rng: random.Random) -> Script:
    """By less than a stall."""
    return [replace(m, delay=rng.uniform(0.0, 0.9)) for m in script]


def stall(script: Script, at: int, rng: random.Random) -> Script:
    return [*script[:at], replace(script[at], delay=3.0), *script[at + 1 :]]


def reorder(script: Script, at: int, rng: random.Random) -> Script:
    if at == 0:
        at = 1
    return [*script[: at - 1], script[at], script[at - 1], *script[at + 1 :]]


def reorder_unseen(script: Script, at: int, rng: random.Random) -> Script:
    """A sender that encodes in another order: every frame says what it is."""
    frames = script[:-1]
    rng.shuffle(frames)
    return _renumber([*frames, script[-1]])


def duplicate(script: Script, at: int, rng: random.Random) -> Script:
    return [*script[: at + 1], script[at], *script[at + 1 :]]


def duplicate_unseen(script: Script, at: int, rng: random.Random) -> Script:
    return _renumber(duplicate(script, at, rng))


def truncate(script: Script, at: int, rng: random.Random) -> Script:
    frame = script[at].frame or b""
    return _renumber(_with_frame(script, at, frame[: rng.randrange(len(frame))]))


def flip(script: Script, at: int, rng: random.Random) -> Script:
    frame = bytearray(script[at].frame or b"")
    bit = rng.randrange(8 * len(frame))
    frame[bit // 8] ^= 1 << bit % 8
    return _with_frame(script, at, bytes(frame))


def other_request(script: Script, at: int, rng: random.Random) -> Script:
    """Frames of a request that nobody asked for, among ours."""
    return [*script[:at], replace(script[at], transfer_id="another"), *script[at:]]


def older_generation(script: Script, at: int, rng: random.Random) -> Script:
    return [*script[:at], replace(script[at], older=1), *script[at:]]


def end_twice(script: Script, at: int, rng: random.Random) -> Script:
    return [*script, script[-1], replace(script[-1], delay=0.1)]


def wrong_totals(script: Script, at: int, rng: random.Random) -> Script:
    return [*script[:-1], replace(script[-1], nbytes=script[-1].nbytes - 1)]


HARMLESS: list[Callable[..., Script]] = [delay, reorder_unseen, other_request, older_generation, end_twice]
HARMFUL: list[Callable[..., Script]] = [
    *(drop, drop_unseen, drop_the_end, stall, reorder, duplicate, duplicate_unseen, truncate, flip, wrong_totals),
]


def _renumber(script: Script) -> Script:
    frames = [replace(m, sequence=i) for i, m in enumerate(script[:-1])]
    return [*frames, replace(script[-1], count=len(frames), nbytes=sum(len(m.frame or b"") for m in frames))]


def _with_frame(script: Script, at: int, frame: bytes) -> Script:
    return [*script[:at], replace(script[at], frame=frame), *script[at + 1 :]]


class FaultyLink:
    """In StreamClient's place: the calls that the Consumer makes, over real Staging, fed by `deliver`."""

    def __init__(self, clock: Callable[[], float], stall_s: float) -> None:
        self.staging = Staging(clock)
        self.pulled: dict[tuple[str, int], set[Stream]] = {}
        self.cancelled: list[tuple[str, int]] = []
        self._stall_s = stall_s

    # What the Consumer calls.

    def pull(
        self,
        peer: object,
        transfer_id: str,
        generation: int,
        stream: Stream,
        args: object,
        *,
        max_bytes: int,
        **_: object,
    ) -> None:
        self.staging.begin(transfer_id, generation, stream, "link", max_bytes)
        self.pulled.setdefault((transfer_id, generation), set()).add(stream)

    def cancel(self, transfer_id: str, generation: int) -> None:
        self.cancelled.append((transfer_id, generation))
        self.staging.cancel(transfer_id, generation)

    def drain(self, max_items: int | None = None) -> list[Item]:
        return self.staging.drain(max_items, None)

    def staged_bytes(self) -> int:
        return self.staging.staged_bytes()

    def close(self) -> None: ...

    # What the test does.

    def deliver(self, message: Message, transfer_id: str, generation: int) -> None:
        """As PeerConnection does with what it reads."""
        named = message.transfer_id or transfer_id, generation - message.older
        try:
            if message.frame is None:
                self.staging.end(*named, message.stream, message.count, message.nbytes, "link")
                return
            slot = self.staging.open_frame(*named, message.stream, message.sequence, len(message.frame), "link")
            if slot is None:
                self.staging.count_dropped()
                return
            slot.frame[:] = message.frame
            self.staging.commit(slot)
        except Rejected as rejected:
            self.staging.fail(*named, FaultKind.PROTOCOL, str(rejected))

    def watch(self) -> None:
        """As StreamClient's monitor does all the time."""
        for transfer in self.staging.stalled(self._stall_s):
            reason = f"no progress for {self._stall_s:g} s"
            self.staging.fail(transfer.transfer_id, transfer.generation, FaultKind.STALLED, reason)

    def die(self) -> None:
        for transfer in self.staging.carried_by("link"):
            self.staging.fail(transfer.transfer_id, transfer.generation, FaultKind.CONNECTION, "connection lost")
