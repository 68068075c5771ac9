"""The token bucket against a fake clock."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.transport import TokenBucket
from lynx_ascend.transport.shaper import MAX_PIECE, MIN_PIECE


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(
    rate=st.floats(1e3, 1e9),
    sizes=st.lists(st.integers(1, MAX_PIECE), min_size=1, max_size=50),
    late=st.lists(st.floats(0, 5e-3), min_size=50, max_size=50),
)
def test_a_busy_link_carries_exactly_its_rate_even_if_woken_late(rate, sizes, late):
    clock = Clock()
    bucket = TokenBucket(rate, clock=clock)
    # What a sender hands over at once: a piece as large as the burst could not make up for lost time.
    sizes = [min(size, bucket.piece()) for size in sizes]
    for size, oversleep in zip(sizes, late, strict=False):
        delay = bucket.delay(size)
        clock.now += delay
        assert bucket.delay(size) <= 1e-6
        if delay > 0:
            clock.now += oversleep
        bucket.take(size)
    ideal, slack = sum(sizes) / rate, max(late) + 1e-6
    assert ideal - 1e-6 <= clock.now - 100.0 <= ideal + slack


def test_idle_time_gives_credit_only_until_restart():
    clock = Clock()
    bucket = TokenBucket(1000.0, burst=500.0, clock=clock)
    clock.now += 60
    assert bucket.delay(500) == 0.0
    bucket.restart()
    assert bucket.delay(500) == pytest.approx(0.5)


def test_restart_does_not_forgive_a_debt():
    clock = Clock()
    bucket = TokenBucket(1000.0, burst=100.0, clock=clock)
    clock.now += 0.1
    bucket.take(400)
    bucket.restart()
    assert bucket.delay(100) == pytest.approx(0.4)


def test_more_than_the_burst_passes_when_the_bucket_is_full():
    clock = Clock()
    bucket = TokenBucket(1000.0, burst=100.0, clock=clock)
    assert bucket.delay(10_000) == pytest.approx(0.1)
    clock.now += 0.1
    assert bucket.delay(10_000) <= 1e-9
    bucket.take(10_000)
    assert bucket.delay(100) == pytest.approx(10.0)


def test_rate_changes_take_effect_at_once():
    clock = Clock()
    bucket = TokenBucket(1000.0, clock=clock)
    assert bucket.delay(1000) == pytest.approx(1.0)
    bucket.set_rate(4000.0)
    assert bucket.delay(1000) == pytest.approx(0.25)
    bucket.set_rate(None)
    bucket.take(10**9)
    assert bucket.delay(10**9) == 0.0
    bucket.set_rate(1000.0)
    assert bucket.delay(1000) == pytest.approx(1.0)  # what went while unlimited is no debt


@pytest.mark.parametrize(("rate", "piece"), [(None, MAX_PIECE), (1e9, MAX_PIECE), (4e6, 10_000), (1e3, MIN_PIECE)])
def test_pieces_shrink_with_the_rate(rate, piece):
    assert TokenBucket(rate).piece() == piece


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_impossible_rates_are_refused(bad):
    with pytest.raises(ValueError, match="rate"):
        TokenBucket(bad)
    with pytest.raises(ValueError, match="burst"):
        TokenBucket(1.0, burst=bad)
