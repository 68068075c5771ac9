"""The model of the soak: tokens as a function of the KV entries that are really in the blocks, and of their quality."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

VOCABULARY, MAX_MODEL_LEN, EOS = 64, 192, 0
_MASK = (1 << 64) - 1


class Quality(IntEnum):
    """Of a KV entry, or of what was computed on entries of that quality or better ones."""

    EXACT = 0  # computed here, or transferred without loss
    EIGHT = 1  # from all streams of a lossy method: what the method promises
    ANCHOR = 2  # approximate
    JUNK = 3  # left by another request, or not what the entries before it say


def _mix(x: int) -> int:
    """splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


ENTRIES = np.random.default_rng(20).integers(0, 1 << 64, (MAX_MODEL_LEN, VOCABULARY), np.uint64)
_POSITIONS = np.arange(MAX_MODEL_LEN)


def entries(tokens: Sequence[int], first: int = 0) -> np.ndarray:
    """[len(tokens)] uint64: the entries of tokens at positions `first` and on."""
    return ENTRIES[_POSITIONS[first : first + len(tokens)], np.asarray(tokens, np.int64)]


def next_token(digest: int, quality: Quality) -> int:
    """The greedy token after the entries that sum up to `digest`.

    The 8-bit cache's differs from the exact one's every eighth time, the anchor's from the 8-bit one's every fourth
    time, and on junk it is always another.
    """
    draw = _mix(digest)
    token, draw = draw % VOCABULARY, draw >> 16
    token += int(quality >= Quality.EIGHT and draw % 8 == 0)
    token += 2 * int(quality >= Quality.ANCHOR and (draw >> 3) % 4 == 0)
    return (token + 5 * int(quality == Quality.JUNK)) % VOCABULARY


def answer(tokens: Sequence[int], quality: Quality) -> int:
    """The token that must follow `tokens` on a cache of that quality, computed from the tokens alone."""
    return next_token(int(entries(tokens).sum()), quality)


class Cache:
    """[blocks, block_size] entries. Each also holds the sum of those that it was computed on, its own included."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.entry = np.zeros((blocks, block_size), np.uint64)
        self.digest = np.ones((blocks, block_size), np.uint64)
        self.quality = np.full((blocks, block_size), Quality.JUNK, np.int8)

    def write(self, blocks: Sequence[int], first: int, tokens: Sequence[int], quality: Quality, before: int) -> None:
        """Entries of tokens at positions `first` and on; `before` is the sum of those before them."""
        place = self._place(blocks, first, first + len(tokens))
        new = entries(tokens, first)
        self.entry[place] = new
        self.digest[place] = np.cumsum(new) + np.uint64(before)
        self.quality[place] = quality

    def read(self, blocks: Sequence[int], length: int) -> tuple[np.ndarray, np.ndarray]:
        """([length] running sums, [length] the quality of what is computed on entries 0 .. i)."""
        place = self._place(blocks, 0, length)
        digests = np.cumsum(self.entry[place])
        quality = np.where(digests == self.digest[place], self.quality[place], Quality.JUNK)
        return digests, np.maximum.accumulate(quality)

    def holds(self, block: int, first: int, tokens: Sequence[int]) -> bool:
        """Whether a block holds exactly these tokens' entries, from position `first` on."""
        exact = self.quality[block] == Quality.EXACT
        return bool(exact.all() and (self.entry[block] == entries(tokens, first)).all())

    def copy(self, source: int, target: int) -> None:
        for array in (self.entry, self.digest, self.quality):
            array[target] = array[source]

    def _place(self, blocks: Sequence[int], start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        positions = _POSITIONS[start:end]
        return np.asarray(blocks, np.int64)[positions // self.block_size], positions % self.block_size
