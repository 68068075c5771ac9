"""The latency model against the paper's numbers, a step-by-step simulation, and its own terms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.speculation import latency
from lynx_ascend.speculation.latency import CodecTimes, Lynx, Monolithic, drafting_gain, gain, time_left


def test_the_papers_cache_and_crossover() -> None:
    nbytes = latency.kv_bytes(tokens=131072, kv_heads=4, head_dim=128, layers=94)
    assert nbytes == pytest.approx(25.2e9, rel=2e-3)
    assert latency.transfer_time(nbytes, 25e9) == pytest.approx(8.1, abs=0.05)
    t_residual = latency.transfer_time(nbytes / 4, 25e9)  # four bits of sixteen
    assert t_residual == pytest.approx(2.0, abs=0.02)
    assert latency.hiding_cap(t_residual, 0.040) == 51
    assert latency.paper_gain(t_residual, 64, 0.040) == t_residual


def test_the_papers_ttft() -> None:
    assert latency.paper_ttft(1.0, 0.5, 0.6, 0, 0.04) == pytest.approx(2.1)  # INT8: nothing hidden
    assert latency.paper_ttft(1.0, 0.5, 0.6, 10, 0.04) == pytest.approx(1.7)
    assert latency.paper_ttft(1.0, 0.5, 0.6, 64, 0.04) == pytest.approx(1.5)
    assert latency.paper_gain(0.6, 10, 0.04) == pytest.approx(0.4)


def _simulate(lynx: Lynx, n: int) -> float:
    """The n-th verified token by playing the request step by step."""
    time, drafted = lynx.t_anchor, 0
    residual_at = lynx.t_anchor + lynx.t_residual
    while time < residual_at and drafted < lynx.cap:
        time, drafted = time + lynx.tpot, drafted + 1
    time = max(time, residual_at) + lynx.verify
    tokens = min(drafted, lynx.accepted) + 1
    while tokens < n:
        time, tokens = time + lynx.tpot, tokens + 1
    return time


@given(
    st.integers(1, 400),
    st.integers(1, 400),
    st.integers(0, 80),
    st.integers(0, 64),
    st.integers(1, 100),
    st.integers(0, 40),
)
def test_time_to_equals_playing_it_and_the_gains_terms_add_up(
    anchor: int, residual: int, accepted: int, cap: int, n: int, verify: int
) -> None:
    # Quarters of a second and whole ones: every sum is exact, so that no step count hangs on a rounding.
    lynx = Lynx(anchor, residual, bandwidth=8, tpot=4, verify=verify / 4, accepted=accepted, cap=cap)
    int8 = Monolithic(nbytes=anchor + residual - 3, bandwidth=8, tpot=4)
    assert lynx.time_to(n) == _simulate(lynx, n)
    parts = gain(int8, lynx, n)
    assert parts.total == int8.time_to(n) - lynx.time_to(n)
    assert parts.extra_bytes < 0 and parts.last_step <= 0 and parts.verify <= 0


def test_a_perfect_draft_wins_the_papers_gain_less_its_costs() -> None:
    # The residual takes 32 steps of 50 ms, all drafts are accepted, int8 has 3 % fewer bytes.
    lynx = Lynx(2e6, 1.6e6, bandwidth=8e6, tpot=0.05, verify=0.12, accepted=32, cap=64)
    int8 = Monolithic(3.5e6, bandwidth=8e6, tpot=0.05)
    parts = gain(int8, lynx, 64)
    assert lynx.drafted == 32
    assert parts.drafting == pytest.approx(33 * 0.05)  # the pass gives a token of its own
    assert parts.extra_bytes == pytest.approx(-0.1)
    assert parts.last_step == pytest.approx(0.0, abs=1e-9)
    paper = latency.paper_gain(lynx.t_residual, 32, 0.05)
    assert parts.total == pytest.approx(paper + 0.05 - 0.1 - 0.12)


def test_nothing_accepted_is_a_loss() -> None:
    lynx = Lynx(2e6, 1.6e6, bandwidth=8e6, tpot=0.05, verify=0.12, accepted=0)
    assert gain(Monolithic(3.6e6, 8e6, 0.05), lynx, 64).total < 0


def test_gain_refuses_different_links_and_no_token() -> None:
    lynx = Lynx(1, 1, 8, 1, 0, 1)
    with pytest.raises(ValueError, match="bandwidth"):
        gain(Monolithic(2, 9, 1), lynx, 1)
    with pytest.raises(ValueError, match="n: 0"):
        gain(Monolithic(2, 8, 1), lynx, 0)


def test_a_request_by_its_measured_terms() -> None:
    # docs/measurements.md, prompt 3, 32 steps: 5 of 29 drafts kept, and Lynx was 0.074 s slower than int8.
    parts = drafting_gain(5, 0.0273, 0.093, n=64, last_step=0.003, extra_bytes=0.141)
    assert parts.total == pytest.approx(-0.073, abs=5e-4)
    # Against waiting for the same bytes it won two and a half steps.
    assert drafting_gain(5, 0.0273, 0.093, n=64, last_step=0.003).total == pytest.approx(0.0678)
    assert drafting_gain(40, 1.0, 0.0, n=8).total == 8  # tokens beyond the n-th count for nothing


def test_the_slowest_of_link_and_codec_counts() -> None:
    codec = CodecTimes(encode=3, anchor_decode=2, full_decode=5)
    assert Monolithic(4, 8, 1, codec).arrival == 5
    assert Monolithic(6, 8, 1, codec).arrival == 6
    # Anchor: 1 s of wire behind 3 s of encoding; meanwhile 2 of the residual's 4 s pass; D decodes until 2 + 5.
    lynx = Lynx(1, 4, 8, 1, 0, 0, codec=codec)
    assert (lynx.t_anchor, lynx.t_residual) == (3, 4)
    assert Lynx(1, 9, 8, 1, 0, 0, codec=codec).t_residual == 7
    assert Lynx(1, 1, 8, 1, 0, 0, codec=CodecTimes(encode=2, anchor_decode=3)).t_anchor == 3
    assert Lynx(1, 1, 8, 1, 0, 0, codec=CodecTimes(encode=3)).t_residual == 0


def test_time_left() -> None:
    assert time_left(30, received=20, seconds=4) == 6
    assert time_left(30, received=0, seconds=4) == time_left(30, received=20, seconds=0) == math.inf
    assert time_left(0, received=0, seconds=0) == 0
