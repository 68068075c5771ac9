"""Is Lynx's text that of the 8-bit cache? Real servers, wire and proxy against Transformers, token for token.

    python benchmarks/equality.py                     # float32: all must be equal, else exit status 1
    python benchmarks/equality.py --dtype bfloat16    # reported, with the logits at each first difference, and
                                                      # with what differs without drafts and without a transfer

Prompts of 300 to 4,000 tokens, 64 greedy tokens each (EOS ignored): one request at a time, then four at a time on links
of different speeds. The 8-bit answer is prefilled, coded and decoded by Transformers and the codec's definition.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.demo.client import complete
from lynx_ascend.demo.measured import MeasuredCluster
from lynx_ascend.evaluation.kv import PromptKV, prefill, reconstruct
from lynx_ascend.evaluation.local_engine import greedy_text
from lynx_ascend.evaluation.model import ensure_model, load_tokenizer
from lynx_ascend.evaluation.prompts import prompts

MAX_TOKENS = 64
MODES = ("alone", "undrafted", "batch")
BATCH_LINKS = (200.0, 80.0, 40.0, 20.0)  # Mbit/s, one for each request of a batch


@dataclass(frozen=True)
class Reference:
    """Transformers' side of a prompt: exact KV, the 8-bit cache made of it, and the answer on the latter."""

    exact: PromptKV
    full: PromptKV
    answer: list[int]


@dataclass(frozen=True)
class Difference:
    """The first token that differs, at `position` of the answer, and the logits there.

    Transformers gets the last prompt token and the common tokens in one pass, as a verification does, on its 8-bit
    cache.

    Attributes:
        expected, served: the reference's token and the servers'; *_logit: theirs, in the model's dtype.
        ulps: expected_logit - served_logit in ulps of the dtype at that magnitude; 0 is a tie.
        noise: the most that any logit moves, same ulps, when Transformers gets the same tokens one by one instead. Two
            logits may move apart, so that a gap of less than twice the noise decides nothing.
    """

    position: int
    expected: int
    served: int
    expected_logit: float
    served_logit: float
    ulps: float
    noise: float


@dataclass(frozen=True)
class Request:
    """One prompt on its link, Mbit/s.

    mode: one of MODES. batch: beside others; undrafted: alone with a draft cap of 0, so without a verification pass.
    """

    mode: str
    prompt: int
    bandwidth: float


@dataclass(frozen=True)
class Row:
    """One answer. tokens: the prompt's length; difference: None where all MAX_TOKENS tokens are the reference's."""

    request: Request
    tokens: int
    drafted: int
    accepted: int
    difference: Difference | None


def main() -> None:
    arguments = _arguments()
    path = ensure_model()
    asked = prompts(load_tokenizer(path), arguments.prompts)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, arguments.dtype))
    # All tokens are to be the 8-bit cache's: none is the prefill server's own.
    with MeasuredCluster(arguments.output, arguments.dtype, policies={"first_token_handover": False}) as cluster:
        run = _Run(cluster, model, asked, noise=arguments.dtype != "float32")
        # Few prompts at a time: the prefill server then finds them in its prefix cache, and references are freed.
        stride = math.ceil(len(asked) / len(BATCH_LINKS))
        for start in range(stride):
            run.group(range(start, len(asked), stride), turn=start % len(BATCH_LINKS))
    rows = sorted(run.rows, key=lambda row: (MODES.index(row.request.mode), row.request.prompt))
    plain = [run.plain[i] for i in sorted(run.plain)]
    report = {"dtype": arguments.dtype, "max_tokens": MAX_TOKENS, "rows": [asdict(row) for row in rows], "plain": plain}
    if arguments.json:
        print(json.dumps(report))
    _print_tables(rows, plain, arguments.dtype, Console(stderr=arguments.json, width=120))
    # Equality without a single draft would prove nothing.
    if arguments.dtype == "float32" and (any(row.difference for row in rows) or not any(row.drafted for row in rows)):
        sys.exit(1)


def _reference(model: Any, ids: Sequence[int]) -> Reference:
    """As evaluation.local_engine.reference_text, with what it was computed from."""
    exact = prefill(model, ids)
    _, full = reconstruct(exact, CodecConfig())
    return Reference(exact, full, greedy_text(model, ids, full, MAX_TOKENS, ignore_eos=True))


class _Run:
    """The requests of one cluster. plain: by prompt, where plain vLLM leaves Transformers on the exact KV."""

    def __init__(self, cluster: MeasuredCluster, model: Any, asked: Sequence[Sequence[int]], *, noise: bool) -> None:
        self._cluster, self._model, self._asked = cluster, model, asked
        self._noise = noise  # ask also for what shows the noise of the dtype: undrafted and plain
        self.rows: list[Row] = []
        self.plain: dict[int, int | None] = {}

    def group(self, members: Sequence[int], turn: int) -> None:
        """All that is asked of these prompts; `turn` turns the links of the batch."""
        references = {}
        for i in members:
            _say(f"reference of prompt {i} ({len(self._asked[i])} tokens)")
            references[i] = _reference(self._model, self._asked[i])
        links = BATCH_LINKS[turn:] + BATCH_LINKS[:turn]
        # Alone, a Residual takes tens of decode steps, so that there is something to draft.
        batches = [[Request("alone", i, len(self._asked[i]) / 25)] for i in members]
        if self._noise:
            batches += [[Request("undrafted", i, len(self._asked[i]) / 5)] for i in members]
        batches += [[Request("batch", i, link) for i, link in zip(members, links, strict=False)]]
        for batch in batches:
            self._take(batch, references)
        for i in members if self._noise else ():
            # No transfer parameters: an ordinary request, in which the connector has no part.
            tokens = self._plain(i)
            exact = greedy_text(self._model, self._asked[i], references[i].exact, MAX_TOKENS, ignore_eos=True)
            self.plain[i] = _first_difference(exact, tokens)

    def _take(self, batch: Sequence[Request], references: dict[int, Reference]) -> None:
        undrafted: dict[str, int] = {"lynx_draft_cap": 0} if batch[0].mode == "undrafted" else {}
        runs = self._cluster.ask_together(
            [self._asked[request.prompt] for request in batch],
            "lynx",
            max_tokens=MAX_TOKENS,
            bandwidth=[request.bandwidth for request in batch],
            **undrafted,
        )
        for request, run in zip(batch, runs, strict=True):
            ids = self._asked[request.prompt]
            difference = _difference(self._model, ids, references[request.prompt], run.completion.token_ids)
            self.rows.append(Row(request, len(ids), run.trace.drafted, run.trace.accepted, difference))
            _say(f"{request.mode}, prompt {request.prompt}: {difference or 'equal'}")

    def _plain(self, prompt: int) -> list[int]:
        try:
            url, ids = self._cluster.prefill_url, self._asked[prompt]
            return complete(url, ids, max_tokens=MAX_TOKENS, ignore_eos=True).token_ids
        finally:
            self._cluster.check()


def _difference(model: Any, ids: Sequence[int], reference: Reference, served: Sequence[int]) -> Difference | None:
    position = _first_difference(reference.answer, served)
    if position is None:
        return None
    if position >= min(len(served), MAX_TOKENS):
        raise ValueError(f"an answer of {len(served)} tokens instead of {MAX_TOKENS}")
    tokens = [ids[-1], *served[:position]]
    one_pass = _logits(model, [tokens], reference.full.cache(len(ids) - 1))
    one_by_one = _logits(model, [[token] for token in tokens], reference.full.cache(len(ids) - 1))
    pair = reference.answer[position], served[position]
    expected, other = (float(one_pass[token]) for token in pair)
    ulp = torch.finfo(one_pass.dtype).eps * 2.0 ** math.floor(math.log2(max(abs(expected), abs(other))))
    noise = float((one_pass.float() - one_by_one.float()).abs().max())
    return Difference(position, *pair, expected, other, (expected - other) / ulp, noise / ulp)


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    if list(a) == list(b):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@torch.inference_mode()
def _logits(model: Any, passes: Sequence[Sequence[int]], cache: Any) -> torch.Tensor:
    """[vocabulary] after the last token, in the model's dtype; every element of `passes` is one forward pass."""
    for ids in passes:
        logits: torch.Tensor = model(torch.tensor([list(ids)]), past_key_values=cache, use_cache=True).logits[0, -1]
    return logits


def _print_tables(rows: Sequence[Row], plain: Sequence[int | None], dtype: str, console: Console) -> None:
    table = Table(title=f"{dtype}: Lynx against the 8-bit cache on Transformers, {MAX_TOKENS} tokens", box=box.MARKDOWN)
    columns = (
        "mode",
        "prompt",
        "tokens",
        "Mbit/s",
        "drafted",
        "accepted",
        "equal",
        "first diff.",
        "logits",
        "ulps",
        "noise",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "mode" else "right")
    for row in rows:
        cells = [
            row.request.mode,
            row.request.prompt,
            row.tokens,
            f"{row.request.bandwidth:g}",
            row.drafted,
            row.accepted,
        ]
        if row.difference is None:
            cells += ["yes", "", "", "", ""]
        else:
            d = row.difference
            cells += ["no", d.position, f"{d.expected_logit:.6g}, {d.served_logit:.6g}", f"{d.ulps:g}", f"{d.noise:g}"]
        table.add_row(*map(str, cells))
    console.print(table)
    for mode in dict.fromkeys(row.request.mode for row in rows):
        of_mode = [row for row in rows if row.request.mode == mode]
        equal = sum(row.difference is None for row in of_mode)
        drafted, accepted = (sum(getattr(row, name) for row in of_mode) for name in ("drafted", "accepted"))
        console.print(f"{mode}: {equal} of {len(of_mode)} equal; {drafted} drafted, {accepted} accepted")
    if not plain:
        return
    same = sum(position is None for position in plain)
    console.print(
        f"no transfer (exact cache, plain vLLM against Transformers): {same} of {len(plain)} equal; "
        f"first differences at {[position for position in plain if position is not None]}"
    )


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20, help="how many, lengths spread over 300 to 4,000 (20)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of compute and KV")
    parser.add_argument("--output", type=Path, default=Path("out/equality"), help="folder for logs and the trace")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout; tables go to stderr")
    return parser.parse_args()


if __name__ == "__main__":
    main()
