"""Are randomly sampled answers with drafts distributed as those without, and what do the kept distributions win?

    python benchmarks/sampling.py                     # 2,000 requests; exit status 1 where p is 0.01 or less

A random Llama with two layers and 64 tokens on one engine that is both P and D (tests/serving/random_sampling.py). The
second half runs the same requests without what their drafts were sampled from.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tests.serving.random_sampling import Sampler, measure, tiny_model, without_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="with drafts, and as many without")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(tiny_model(Path(folder)))
        kept = measure(sampler, arguments.requests)
        missing = without_rows(sampler, arguments.requests)
        sampler.engine.core.shutdown()
    table = Table("distributions", "requests", "drafted", "accepted", box=box.MARKDOWN)
    for group in kept["answers"]:
        table.add_column(f"{group}: chi2 / degrees")
        table.add_column("p")
    for name, result in (("kept", kept), ("missing", missing)):
        cells = [f"{result['drafted']:.2f}", f"{result['accepted']:.2f}"]
        for test in result["answers"].values():
            cells += [f"{test['statistic']:.1f} / {test['degrees']}", f"{test['p']:.3f}"]
        table.add_row(name, str(result["requests"]), *cells)
    cells = [f"{test['statistic']:.1f} / {test['degrees']}" for test in kept["drafts"].values()]
    ps = [f"{test['p']:.0e}" for test in kept["drafts"].values()]
    table.add_row("the drafts", "", "", "", *(cell for pair in zip(cells, ps, strict=True) for cell in pair))
    Console(width=160).print(table)
    if any(test["p"] <= 0.01 for result in (kept, missing) for test in result["answers"].values()):
        sys.exit("p is 0.01 or less")


if __name__ == "__main__":
    main()
