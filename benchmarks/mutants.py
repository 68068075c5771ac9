"""Hardness of the frame parser: damaged and re-sealed frames by the check that refuses them (docs/frame.md, Hardening).

Usage: python benchmarks/mutants.py [--count 1000000] [--seed 0] [--workers 2] [--json] [--only INDEX]
Ends with 1 if any mutant breaks the contract.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))  # the mutator lives with the tests

from tests.frame.campaign import Corpus, Tally, judge, run

COLUMNS = {
    "damaged": (False, False),
    "damaged, header known": (False, True),
    "re-sealed": (True, False),
    "re-sealed, header known": (True, True),
}


def table(tally: Tally) -> dict[str, dict[str, int]]:
    """Row -> column -> mutants: fields in the order of their names, then the kinds of acceptance, then sums."""
    rows = sorted({row for _, row in tally.counts}, key=lambda row: (row.startswith("accepted"), row))
    cells = {row: {name: tally.counts[key, row] for name, key in COLUMNS.items()} for row in rows}
    return {**cells, "all": {name: sum(cells[row][name] for row in rows) for name in COLUMNS}}


def show(index: int, seed: int) -> None:
    """One mutant, for a closer look; a broken contract ends in its traceback."""
    corpus = Corpus()
    mutant = corpus.mutant(index, seed)
    print(f"{mutant.origin.name}: {', '.join(mutant.kinds)}; {'re-sealed' if mutant.sealed else 'damaged'}")
    for frame in mutant.frames:
        print(frame.hex())
    print(judge(mutant, corpus))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--only", type=int, help="show this mutant of the run alone")
    args = parser.parse_args()
    if args.only is not None:
        show(args.only, args.seed)
        return 0
    begin = time.perf_counter()
    tally = run(args.count, args.seed, args.workers)
    facts = {
        "seed": args.seed,
        "mutants": args.count,
        "failures": len(tally.failures),
        "slowest_seconds": round(tally.slowest, 3),
        "peak_growth_bytes": tally.growth,
        "seconds": round(time.perf_counter() - begin),
    }
    for failure in tally.failures:
        print(failure, file=sys.stderr)
    if args.json:
        print(json.dumps({**facts, "table": table(tally)}))
    else:
        print("| field |" + "".join(f" {name} |" for name in COLUMNS) + "\n|---|" + "---:|" * len(COLUMNS))
        for row, cells in table(tally).items():
            print(f"| {row} |" + "".join(f" {cells[name] or ''} |" for name in COLUMNS))
        print(", ".join(f"{name} {value}" for name, value in facts.items()))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
