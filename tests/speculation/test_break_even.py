"""Break-even: the paper's published times, and where the split or the codec does not pay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.speculation.break_even import Choice, KVCosts, choose, expected
from lynx_ascend.speculation.latency import Lynx, kv_bytes
from lynx_ascend.speculation.steps import StepCosts
from tests.speculation.curves import CURVES, geometric, published

GBIT = 1e9
LLAMA = kv_bytes(tokens=1, kv_heads=8, head_dim=128, layers=32)  # LLaMA 3.1 8B, bytes a token
# 4.65 bits an element in the Anchor, 8.66 in both; a core's rates, a pass of 35 ms and 2.1 ms a draft.
OURS = KVCosts(LLAMA, LLAMA * 4.65 / 16, LLAMA * 4.01 / 16, encode=5.5e9, anchor_decode=9.6e9, full_decode=5.8e9)
FREE = replace(OURS, encode=math.inf, anchor_decode=math.inf, full_decode=math.inf)
CPU = StepCosts(tpot=0.027, verify=0.035, verify_draft=0.0021)


@pytest.mark.parametrize(
    ("context", "gbit", "seconds"), [(32, 25, 0.22), (64, 25, 0.46), (128, 25, 0.84), (64, 10, 0.86), (64, 50, 0.18)]
)
def test_the_papers_advantages_over_int8(context: int, gbit: int, seconds: float) -> None:
    # To 64 tokens, with 4 + 4 bits, its acceptance and its 0.13 s of kernels. TPOT is not known: 30 ms fits.
    costs = StepCosts(tpot=0.030, verify=0.030 + 0.13)
    choice = choose(context * 1024, gbit * GBIT, KVCosts(LLAMA, LLAMA / 4, LLAMA / 4), costs, published(), n=64)
    assert choice.method == "lynx"
    assert choice.seconds["8bit"] - choice.seconds["lynx"] == pytest.approx(seconds, abs=0.06)
    assert choice.won == choice.seconds["8bit"] - choice.seconds["lynx"]


def test_the_papers_times_to_32_tokens() -> None:
    # Table 1: 4.4 / 2.3 s to the first token and 5.9 / 3.8 to the 32nd: 0.2 s and the cache's 4.2 s, 31 steps 1.5 s.
    tpot = 1.5 / 31
    cache = 4.2 * 25 * GBIT / 8 / 16384
    costs = StepCosts(tpot=tpot, verify=tpot + 0.13)
    choice = choose(16384, 25 * GBIT, KVCosts(cache, cache / 4, cache / 4), costs, published(), n=31)
    assert 0.2 + choice.seconds["bf16"] == pytest.approx(5.9)
    assert 0.2 + choice.seconds["8bit"] == pytest.approx(3.8)
    # Published 3.4. The model is faster, and bounded by the paper's own ceiling, min(t_res, k * TPOT) = 1.05.
    assert 3.8 - 1.05 < 0.2 + choice.seconds["lynx"] < 3.4


def test_by_hand() -> None:
    kv = KVCosts(bf16=16, anchor=4, residual=4)  # one token, 1 bit/s: 128 s, 64 s, 32 s + 32 s
    choice = choose(1, 1.0, kv, StepCosts(tpot=10, verify=12, verify_draft=1), geometric(0.5), n=5)
    # A third draft is worth 10 / 8 and costs 1; the fourth would overrun. 64 + 12 + 3 + (5 - 1 - 7 / 8) * 10.
    assert choice == Choice(1, 1.0, 5, {"bf16": 178.0, "8bit": 114.0, "lynx": 110.25}, drafts=3)
    assert (choice.method, choice.won) == ("lynx", 3.75)
    assert choose(1, 1.0, kv, StepCosts(10, 12), geometric(0.5), n=1).seconds["lynx"] == 76  # one token: no drafts
    other = replace(kv, eight_bit=7)
    assert choose(1, 1.0, other, StepCosts(10, 12), geometric(0.5), n=5).seconds["8bit"] == 106.0


def test_drafts_beyond_the_nth_token_save_it_nothing() -> None:
    lynx = Lynx(1, 8, 8, tpot=1, verify=1, accepted=0)
    short = expected(lynx, StepCosts(1, 1, verify_draft=0.25), geometric(0.5), cap=6, n=3)
    assert (short.drafted, short.accepted, short.verify) == (6, 0.75, 2.5)
    assert short.time_to(3) == 1 + 8 + 2.5 + 2 - 0.75


def test_short_prompts_and_fast_links_skip_the_split_or_the_codec() -> None:
    def methods(kv: KVCosts) -> list[list[str]]:
        links = (1, 10, 25, 100, 400)
        return [
            [choose(tokens, gbit * GBIT, kv, CPU, published()).method for gbit in links]
            for tokens in (256, 4096, 32768, 131072)
        ]

    # A short prompt on a fast link is not worth a draft. One core encodes 44 Gbit/s of bf16: above that the raw cache
    # is first whatever the prompt, and at 25 Gbit/s decoding twice already costs more than drafts win.
    assert methods(OURS) == [
        ["lynx", "8bit", "8bit", "bf16", "bf16"],
        ["lynx", "lynx", "8bit", "bf16", "bf16"],
        ["lynx", "lynx", "8bit", "bf16", "bf16"],
        ["lynx", "lynx", "8bit", "bf16", "bf16"],
    ]
    assert methods(FREE) == [
        ["lynx", "8bit", "8bit", "8bit", "8bit"],
        ["lynx", "lynx", "lynx", "lynx", "8bit"],
        ["lynx", "lynx", "lynx", "lynx", "lynx"],
        ["lynx", "lynx", "lynx", "lynx", "lynx"],
    ]


def test_where_nothing_holds_the_split_does_not_pay() -> None:
    for tokens in (4096, 131072):
        for gbit in (1, 25):
            assert choose(tokens, gbit * GBIT, FREE, CPU, geometric(0.02)).method == "8bit"


@given(
    st.integers(1, 200_000),
    st.floats(1e8, 1e12),
    st.integers(1, 128),
    st.sampled_from(sorted(CURVES)),
    st.sampled_from(sorted(CURVES)),
)
def test_more_acceptance_and_a_faster_link_never_cost_time(
    tokens: int, bandwidth: float, n: int, a: str, b: str
) -> None:
    higher = tuple(map(max, CURVES[a], CURVES[b]))
    low = choose(tokens, bandwidth, OURS, CPU, CURVES[a], n=n)
    high = choose(tokens, bandwidth, OURS, CPU, higher, n=n)
    fast = choose(tokens, 2 * bandwidth, OURS, CPU, CURVES[a], n=n)
    assert high.seconds["lynx"] <= low.seconds["lynx"] + 1e-9
    assert {m: s for m, s in high.seconds.items() if m != "lynx"} == {
        m: s for m, s in low.seconds.items() if m != "lynx"
    }
    for method in ("bf16", "8bit"):
        assert fast.seconds[method] <= low.seconds[method]
    assert low.won >= 0 and low.seconds[low.method] == min(low.seconds.values())


def test_bad_arguments_are_refused() -> None:
    for name, value in (
        ("bf16", 0.0),
        ("anchor", math.inf),
        ("residual", -1.0),
        ("encode", 0.0),
        ("eight_bit", math.nan),
    ):
        with pytest.raises(ValueError, match=f"{name}: "):
            replace(OURS, **{name: value})
    for tokens, bandwidth, n, match in ((0, 1.0, 1, "tokens"), (1, 0.0, 1, "bandwidth"), (1, math.inf, 1, "bandwidth")):
        with pytest.raises(ValueError, match=match):
            choose(tokens, bandwidth, OURS, CPU, (), n=n)
    with pytest.raises(ValueError, match="remaining: 0"):
        choose(1, 1.0, OURS, CPU, (), n=0)
