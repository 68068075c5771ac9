"""The model against the paper's published times (arXiv 2607.01831): three constants are fitted, the rest predicted."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from lynx_ascend.simulation.acceptance import Survival, published, published_by_context
from lynx_ascend.simulation.alone import Alone, Policy, alone
from lynx_ascend.simulation.hardware import KERNELS, Hardware, Work
from lynx_ascend.simulation.methods import Method
from lynx_ascend.simulation.models import MODELS, Model
from lynx_ascend.simulation.prefill import PrefillCosts
from lynx_ascend.speculation.latency import transfer_time
from lynx_ascend.speculation.steps import StepCosts

# Table 1: MMLU-Pro, 16K tokens, Qwen 32B, a link of 25 Gbit/s. Seconds to the first token and to 32 tokens.
TABLE1 = {"bf16": (4.4, 5.9), "int8": (2.3, 3.8), "int4": (1.4, 2.9), "lynx": (1.6, 3.4)}
TABLE1_MODEL, TABLE1_TOKENS, TABLE1_LINK, TABLE1_N = MODELS["qwen3-32b"], 16384, 25e9, 32
# Seconds by which Lynx reaches 64 tokens before INT8, LLaMA 3.1 8B: (thousands of tokens, Gbit/s) of two series.
ADVANTAGES = [(32, 25, 0.22), (64, 25, 0.46), (128, 25, 0.84), (64, 10, 0.86), (64, 25, 0.46), (64, 50, 0.18)]
ADVANTAGES_MODEL, ADVANTAGES_N = MODELS["llama-8b"], 64

# As published: no metadata counted, no headers.
PAPER = {
    "bf16": Method("bf16", 16, coded=False),
    "int8": Method("int8", 8),
    "int4": Method("int4", 4),
    "lynx": Method("lynx", 4, 4),
}
# Algorithm 1 has 18 scalars for a channel and page of 256 tokens: 1.125 bits an element if each takes 2 bytes.
FP16_METADATA = Method("lynx, fp16 metadata", 4 + 18 * 16 / 256, 4)


@dataclass(frozen=True)
class Constants:
    """What is fitted, on the rows of Table 1 without drafts.

    Args:
        link: bits a second that Table 1's cache really got.
        before: seconds before the transfer: prefill, queues, proxies.
        layer_overhead: Hardware.layer_overhead.
    """

    link: float
    before: float
    layer_overhead: float


def fit() -> Constants:
    """Least squares.

    The times to the first token are a line over the bytes sent: its slope is the link's inverse, and what is left at no
    bytes is `before` and one step. A step is the mean of (time to 32 - time to the first) / 31; what it takes beyond
    reading weights and cache is shared evenly by the layers.
    """
    plain = ["bf16", "int8", "int4"]
    nbytes = [PAPER[name].nbytes(TABLE1_TOKENS * TABLE1_MODEL.kv_token_bytes)[0] for name in plain]
    slope, left = statistics.linear_regression(nbytes, [TABLE1[name][0] for name in plain])
    step = statistics.mean((TABLE1[name][1] - TABLE1[name][0]) / (TABLE1_N - 1) for name in plain)
    tiny = Hardware(layer_overhead=0)
    overhead = (step - tiny.costs(TABLE1_MODEL, TABLE1_TOKENS).tpot) / TABLE1_MODEL.layers
    return Constants(8 / slope, left - step, overhead)


@dataclass(frozen=True)
class Row:
    """One published number in seconds. fitted: it was used for the constants."""

    what: str
    predicted: float
    published: float
    fitted: bool = False

    @property
    def error(self) -> float:
        """Relative to what was published."""
        return self.predicted / self.published - 1


@dataclass(frozen=True)
class Assumptions:
    """What the predictions rest on beside the constants; the defaults are the comparison, others explain misses.

    Args:
        kernels: seconds of Lynx's kernels, all of them before its transfer.
        link_share: of the nominal link that the advantages' transfers get.
        by_context: acceptance as published_by_context(), not one curve for all.
        tpot: seconds of LLaMA's decode step; None: as Hardware estimates it.
    """

    lynx: Method = PAPER["lynx"]
    kernels: float = KERNELS
    link_share: float = 1.0
    by_context: bool = False
    tpot: float | None = None


_PUBLISHED = Assumptions()


def _alone(method: Method, model: Model, tokens: int, link: float, before: float, costs: StepCosts, n: int,
           survival: Survival, kernels: float) -> Alone:  # fmt: skip
    if method.split:
        before += kernels
    work = Work(tokens, tokens * model.kv_token_bytes, PrefillCosts(step=before, chunk=tokens), costs)
    return alone(method, work, link, Policy(survival, adaptive=False), output=n)


def table1(constants: Constants, assumed: Assumptions = _PUBLISHED) -> list[Row]:
    """Time to the first token and to 32, by method. The paper counts a draft as Lynx's first token."""
    hardware = Hardware(layer_overhead=constants.layer_overhead, commit=0)
    costs = hardware.costs(TABLE1_MODEL, TABLE1_TOKENS)
    rows = []
    for name, (first, later) in TABLE1.items():
        split = name == "lynx"
        method = assumed.lynx if split else PAPER[name]
        request = _alone(
            method, TABLE1_MODEL, TABLE1_TOKENS, constants.link, constants.before,
            costs, TABLE1_N, published(), assumed.kernels,
        )  # fmt: skip
        ttft = request.first_draft if split else request.time_to(1)
        rows.append(Row(f"{name}, first token", ttft, first, fitted=not split))
        rows.append(Row(f"{name}, 32 tokens", request.time_to(TABLE1_N), later, fitted=not split))
    return rows


def advantages(constants: Constants, assumed: Assumptions = _PUBLISHED) -> list[Row]:
    """Seconds by which Lynx beats INT8 in time to 64 tokens. Nothing is fitted to them."""
    hardware = Hardware(layer_overhead=constants.layer_overhead, commit=0, tpot=assumed.tpot)
    rows = []
    for thousands, gbit, seconds in ADVANTAGES:
        tokens, link = thousands * 1024, gbit * 1e9 * assumed.link_share
        costs = hardware.costs(ADVANTAGES_MODEL, tokens)
        survival = published_by_context().at(tokens) if assumed.by_context else published()
        times = [
            _alone(method, ADVANTAGES_MODEL, tokens, link, 0.0, costs, ADVANTAGES_N, survival, assumed.kernels).time_to(
                ADVANTAGES_N
            )
            for method in (PAPER["int8"], assumed.lynx)
        ]
        rows.append(Row(f"over INT8, {thousands}K, {gbit} Gbit/s", times[0] - times[1], seconds))
    return rows


@dataclass(frozen=True)
class Variant:
    """The same predictions under another assumption, to say what a miss may come from."""

    name: str
    table1: list[Row]
    advantages: list[Row]


@dataclass(frozen=True)
class Comparison:
    """All of it. nominal_bf16: seconds of Table 1's bf16 cache at the nominal link. fastest_prefill: seconds that
    Table 1's prompt takes 8 NPUs at their peak."""

    constants: Constants
    table1: list[Row]
    advantages: list[Row]
    variants: list[Variant]
    nominal_bf16: float
    fastest_prefill: float


def compare() -> Comparison:
    """The fit, the predictions, and the variants that explain their misses."""
    constants = fit()
    assumed = {
        "decode step of LLaMA fitted too: 30 ms": Assumptions(tpot=0.030),
        "Table 1's link for the advantages": Assumptions(link_share=constants.link / TABLE1_LINK),
        "fp16 metadata in the Anchor: 5.125 + 4 bits": Assumptions(lynx=FP16_METADATA),
        "acceptance that falls with the context": Assumptions(by_context=True),
        "kernels take no time": Assumptions(kernels=0.0),
    }
    ideal = Hardware(utilisation=1.0, layer_overhead=0)
    return Comparison(
        constants,
        table1(constants),
        advantages(constants),
        [Variant(name, table1(constants, a), advantages(constants, a)) for name, a in assumed.items()],
        nominal_bf16=transfer_time(TABLE1_TOKENS * TABLE1_MODEL.kv_token_bytes, TABLE1_LINK),
        fastest_prefill=ideal.prefill(TABLE1_MODEL).alone(TABLE1_TOKENS),
    )
