"""The demo itself: the same prompts by every method, one request at a time, through two real servers and a proxy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lynx_ascend.demo.measured import MeasuredCluster, Run
from lynx_ascend.demo.timeline import MARKS, draw
from lynx_ascend.evaluation.model import MODEL_NAME, ensure_model, load_tokenizer
from lynx_ascend.evaluation.prompts import prompts

PROMPT_NAMES = ("meeting", "incidents", "field notes")  # what evaluation.prompts makes of its first three
MAX_TOKENS = 64
RESIDUAL_STEPS = 32  # the default link carries a Residual in this many decode steps

Progress = Callable[[str], None]


@dataclass(frozen=True)
class DemoOptions:
    """What is shown. bandwidth: Mbit/s; None: the Residual takes RESIDUAL_STEPS decode steps of this machine.

    context: prompt length in tokens; prompt_count: how many of PROMPT_NAMES.
    """

    output: Path
    dtype: str
    context: int
    bandwidth: float | None
    methods: tuple[str, ...]
    prompt_count: int


@dataclass
class MethodResult:
    """One request. nbytes: on the wire by stream, frame headers included. Times: seconds from sending the request.

    agreement: tokens that the answer has in common with bf16's before the first difference; None without bf16.
    """

    method: str
    nbytes: dict[str, int]
    ttft_s: float | None
    time_to_s: dict[str, float | None]
    drafted: int
    accepted: int
    tokens: int
    text: str
    token_ids: list[int]
    agreement: int | None = None


@dataclass
class PromptResult:
    """One prompt by all methods. prefill_s: computing it once, before any of them; timeline: a PNG, if drawn."""

    name: str
    tokens: int
    prefill_s: float
    methods: list[MethodResult] = field(default_factory=list)
    timeline: str | None = None


@dataclass
class DemoResult:
    """All of it; times in seconds, bandwidth in Mbit/s."""

    model: str
    dtype: str
    context: int
    bandwidth: float
    decode_step_s: float
    prompts: list[PromptResult] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The one object that --json prints."""
        return asdict(self)


def run_demo(options: DemoOptions, progress: Progress) -> DemoResult:
    """Starts the servers, runs every method on every prompt, draws the timelines, stops the servers.

    Every prompt is computed once before it is measured, and stays in the prefill server's prefix cache: all methods
    then find the same state. The first token is the prefill server's, of one short step; a time to the second one is
    transfer and decoding besides.

    Raises:
        ServiceError, CompletionError, TraceError, ValueError: what went wrong, by name.
    """
    progress("preparing the model")
    tokenizer = load_tokenizer(ensure_model())
    asked = prompts(tokenizer, options.prompt_count, [options.context] * options.prompt_count)
    progress("starting a prefill server, a decode server and the proxy")
    with MeasuredCluster(options.output, options.dtype, policies={}) as cluster:
        demo = _Demo(options, cluster, progress)
        for name, prompt in zip(PROMPT_NAMES, asked, strict=False):
            demo.run_prompt(name, prompt)
        progress("stopping the servers")
    assert demo.result is not None
    return demo.result


class _Demo:
    """The requests of one demo; the first warm-up sets the link's speed."""

    def __init__(self, options: DemoOptions, cluster: MeasuredCluster, progress: Progress) -> None:
        self._options, self._cluster, self._progress = options, cluster, progress
        self.result: DemoResult | None = None

    def run_prompt(self, name: str, prompt: list[int]) -> None:
        self._progress(f"{name}: prefilling {len(prompt)} tokens")
        warm = self._request(prompt, "lynx", None)
        if self.result is None:
            self.result = self._calibrated(warm)
        result = PromptResult(name, len(prompt), _prefill_s(warm))
        runs: dict[str, Run] = {}
        for method in self._options.methods:
            self._progress(f"{name}: {method}")
            runs[method] = self._request(prompt, method, self.result.bandwidth)
            result.methods.append(_measured(method, runs[method]))
        _compare(result.methods)
        if "lynx" in runs:
            shown = [runs[method] for method in ("lynx", "int8") if method in runs]
            path = self._options.output / f"timeline-{name.replace(' ', '-')}.png"
            draw(shown, path, self._title(name, len(prompt)))
            result.timeline = str(path)
        self.result.prompts.append(result)

    def _request(self, prompt: Sequence[int], method: str, bandwidth: float | None) -> Run:
        return self._cluster.ask(prompt, method, bandwidth=bandwidth, max_tokens=MAX_TOKENS)

    def _calibrated(self, warm: Run) -> DemoResult:
        step = warm.completion.decode_step()
        bandwidth = self._options.bandwidth
        if bandwidth is None:
            bandwidth = round(warm.trace.nbytes["residual"] * 8 / 1e6 / (RESIDUAL_STEPS * step), 1)
        return DemoResult(MODEL_NAME, self._options.dtype, self._options.context, bandwidth, step)

    def _title(self, name: str, tokens: int) -> str:
        assert self.result is not None
        return f"{name}, {tokens} tokens, {self._options.dtype} KV, link emulated at {self.result.bandwidth:g} Mbit/s"


def _prefill_s(warm: Run) -> float:
    assert warm.trace.prefilled_at is not None
    return warm.trace.prefilled_at - warm.completion.sent_at


def _measured(method: str, run: Run) -> MethodResult:
    completion, trace = run.completion, run.trace
    return MethodResult(
        method=method,
        nbytes=trace.nbytes,
        ttft_s=completion.ttft,
        time_to_s={str(n): completion.time_to(n) for n in MARKS},
        drafted=trace.drafted,
        accepted=trace.accepted,
        tokens=len(completion.token_ids),
        text=completion.text,
        token_ids=completion.token_ids,
    )


def _compare(methods: list[MethodResult]) -> None:
    reference = next((m.token_ids for m in methods if m.method == "bf16"), None)
    if reference is None:
        return
    for method in methods:
        same = (a == b for a, b in zip(method.token_ids, reference, strict=False))
        method.agreement = next((i for i, equal in enumerate(same) if not equal), min(method.tokens, len(reference)))
