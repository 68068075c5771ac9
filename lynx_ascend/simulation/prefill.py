"""P by steps: each computes up to a chunk of tokens, of the prompts in turn, and what is done of them can be sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PrefillCosts:
    """What P's steps cost.

    Args:
        token: seconds a prompt token. attention: seconds that t tokens attend to each other, divided by t².
        step: seconds of a step, whatever is in it.
        chunk: the most tokens of a step, of one prompt or of several (vLLM's max_num_batched_tokens).
        layers: equal parts of a step, after each of which a layer's cache of the step's tokens is there.

    Raises:
        ValueError: chunk or layers is less than 1.
    """

    token: float = 0.0
    attention: float = 0.0
    step: float = 0.0
    chunk: int = 8192
    layers: int = 1

    def __post_init__(self) -> None:
        if min(self.chunk, self.layers) < 1:
            raise ValueError(f"chunk {self.chunk}, layers {self.layers}: one is less than 1")

    def tokens(self, first: int, last: int) -> float:
        """Seconds for a prompt's tokens from `first` up to `last`, which attend to all before them; no step's own."""
        return self.token * (last - first) + self.attention * (last**2 - first**2)

    def alone(self, tokens: int) -> float:
        """Seconds of a prompt that P has to itself."""
        return -(-tokens // self.chunk) * self.step + self.tokens(0, tokens)


@dataclass(frozen=True)
class Part:
    """What a step computes of a prompt: from when to when (seconds), and which share of the prompt."""

    start: float
    end: float
    share: float


def schedule(prompts: Sequence[tuple[float, int]], costs: PrefillCosts) -> list[list[Part]]:
    """The parts of each prompt, (arrival in seconds, tokens), in the order of arrival.

    First come, first served, as vLLM does it: a step goes on with the prompt that the one before has begun, and gives
    what is left of its chunk to those that wait.
    """
    parts: list[list[Part]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    waiting = deque(range(len(prompts)))
    now = 0.0
    while waiting:
        now = max(now, prompts[waiting[0]][0])
        room, seconds, taken = costs.chunk, costs.step, []
        for i in waiting:
            arrival, tokens = prompts[i]
            if arrival > now or not room:
                break
            count = min(room, tokens - done[i])
            seconds += costs.tokens(done[i], done[i] + count)
            taken.append((i, count))
            room -= count
        for i, count in taken:
            parts[i].append(Part(now, now + seconds, count / prompts[i][1]))
            done[i] += count
        while waiting and done[waiting[0]] == prompts[waiting[0]][1]:
            waiting.popleft()
        now += seconds
    return parts


def releases(parts: Sequence[Part], layers: int) -> list[tuple[float, float]]:
    """(seconds, share) of a prompt's cache that is there from then on, a layer of a step at a time."""
    return [
        (part.end if i == layers else part.start + (part.end - part.start) * i / layers, part.share / layers)
        for part in parts
        for i in range(1, layers + 1)
    ]


def finished(released: Sequence[tuple[float, float]], seconds: float, free: float = 0.0) -> float:
    """When work of `seconds` for the whole is done, each share of it not before its release and all from `free` on."""
    latest, rest = free + seconds, 0.0
    for at, share in reversed(released):
        rest += share
        latest = max(latest, at + seconds * rest)
    return latest
