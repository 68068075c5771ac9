"""Runs the fuzz targets on mutated seeds: `python -m tests.fuzz.run [TARGET ...] --runs N --seed S`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from random import Random

from tests.fuzz import targets

Target = Callable[[bytes], None]
# What parsers trip over: bounds of integers and lengths, JSON's own words, names that our fields have.
WORDS = (
    b"", b"\x00", b"\xff", b"\x00" * 8, b"\xff" * 8, b"\x80\x00\x00\x00", b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\x00" * 7, b"\xdd\xff\xff\xff\xff", b"\xc0", b"\xa0", b"null", b"true", b"-1", b"0", b"1e999",
    b"-0.0", b"18446744073709551616", b'""', b"{}", b"[]", b'"\\ud800"', b"[" * 2000, b'"x":', b"0.5", b"127", b"128",
    b"65535", b"65536",
)  # fmt: skip
MAX_INPUT = 1 << 17


class Defect(AssertionError):
    """An input that a target did not return from; the message has it, so that it can be tried again."""


def mutant(rng: Random, corpus: list[bytes]) -> bytes:
    """A seed, changed in one place to five."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 5)):
        at, stop = rng.randint(0, len(data)), rng.randint(0, len(data))
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.randrange(256)
            case 2:
                data[at:at] = rng.choice(WORDS)
            case 3:
                data[min(at, stop) : max(at, stop)] = rng.choice(WORDS)
            case 4:
                other = rng.choice(corpus)
                cut = rng.randint(0, len(other))
                data[at:] = other[cut:]
            case 5:
                del data[min(at, stop) : min(max(at, stop), min(at, stop) + 8)]
    return bytes(data[:MAX_INPUT])


def fuzz(target: Target, corpus: list[bytes], runs: int, seed: int) -> None:
    """Raises Defect at the first input that the target does not return from."""
    rng = Random(f"{target.__name__} {seed}")
    inputs = [*corpus, *(mutant(rng, corpus) for _ in range(runs))]
    for data in inputs:
        try:
            target(data)
        except Exception as error:
            raise Defect(f"{target.__name__}({data!r}): {type(error).__name__}: {error}") from error


def main() -> None:
    seeds = {target.__name__: (target, corpus) for target, corpus in targets.seeds().items()}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", choices=[[], *seeds], default=[])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        for name in args.target or seeds:
            fuzz(*seeds[name], args.runs, args.seed)
            print(f"{name}: {args.runs} inputs, no defect", flush=True)
    except Defect as defect:
        sys.exit(str(defect))
    finally:
        targets.close()


if __name__ == "__main__":
    main()
