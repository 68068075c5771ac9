"""Health: when it falls back and returns, by hand and under random histories."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lynx_ascend.speculation.health import Health, Verdict


def _observe(health: Health, won: list[float], now: float) -> None:
    for steps in won:
        health.observe(10, 5, steps, now)


def test_a_fallback_a_failed_probe_and_a_return() -> None:
    health = Health(sample=2, interval=10.0, margin=1.0)
    _observe(health, [-5.0], now=0.0)
    assert health.drafting and health.admit(0.0)  # one request decides nothing
    _observe(health, [4.0], now=1.0)
    assert not health.drafting
    assert [health.admit(t) for t in (1.0, 10.9)] == [False, False]
    assert [health.admit(11.0) for _ in range(3)] == [True, True, False]
    _observe(health, [0.5, 1.0], now=12.0)  # better than nothing, not better than the margin
    assert not health.drafting and not health.admit(20.9)
    assert [health.admit(21.0) for _ in range(3)] == [True, True, False]
    _observe(health, [1.0, 1.5], now=22.0)
    assert health.drafting
    _observe(health, [0.5, -0.5], now=23.0)  # break-even: stays
    assert health.drafting


def test_results_of_requests_from_before_the_fallback_do_not_end_it() -> None:
    health = Health(sample=1, interval=10.0, margin=0.0)
    _observe(health, [-1.0], now=0.0)
    _observe(health, [9.0], now=9.9)
    assert not health.drafting
    _observe(health, [9.0], now=10.0)
    assert health.drafting


def test_probes_that_were_left_over_are_not_used_in_the_next_fallback() -> None:
    health = Health(sample=2, interval=10.0, margin=0.0)
    _observe(health, [-1.0, -1.0], now=0.0)
    assert health.admit(10.0)  # one of two
    _observe(health, [9.0, 9.0], now=10.0)
    _observe(health, [-1.0, -1.0], now=11.0)
    assert not health.drafting and not health.admit(11.0)
    assert [health.admit(21.0) for _ in range(3)] == [True, True, False]


def test_what_it_shows() -> None:
    health = Health(sample=2)
    assert health.acceptance is None and health.steps_won is None
    health.observe(10, 10, 4.0, 0.0)
    health.observe(10, 5, 2.0, 0.0)
    health.observe(30, 5, 0.0, 0.0)  # the first one is out of the sample
    assert (health.acceptance, health.steps_won) == (0.25, 1.0)


def test_bad_arguments_are_refused() -> None:
    for name, value in (("sample", 0), ("interval", 0.0), ("interval", math.nan), ("margin", -1.0)):
        with pytest.raises(ValueError, match=name):
            Health(**{name: value})
    for drafted, accepted, won in ((1, 2, 0.0), (1, -1, 0.0), (1, 1, math.nan), (1, 1, math.inf)):
        with pytest.raises(ValueError, match=r"accepted of|steps_won"):
            Health().observe(drafted, accepted, won, 0.0)


class RandomHistories(RuleBasedStateMachine):
    """Requests come, some are admitted, of those some report: what follows must hold after any such history."""

    @initialize(sample=st.integers(1, 4), margin=st.sampled_from([0.0, 1.0]))
    def start(self, sample: int, margin: float) -> None:
        self.sample, self.margin, self.interval = sample, margin, 10.0
        self.health = Health(sample=sample, interval=self.interval, margin=margin)
        self.now = 0.0
        self.flying = 0
        self.turns: list[tuple[bool, float]] = []
        self.last: list[float] = []
        self.probes: list[float] = []

    @rule(dt=st.sampled_from([0.0, 0.5, 3.0, 10.0, 50.0]))
    def wait(self, dt: float) -> None:
        self.now += dt

    @rule()
    def arrive(self) -> None:
        probe = not self.health.drafting
        if self.health.admit(self.now):
            self.flying += 1
            if probe:
                self.probes.append(self.now)
        else:
            assert probe

    @rule(won=st.sampled_from([-8.0, -0.5, 0.5, 2.0, 9.0]))
    def report(self, won: float) -> None:
        if self.flying:
            self.flying -= 1
            self._report(won)

    @rule()
    def lose(self) -> None:
        self.flying = max(0, self.flying - 1)  # aborted: never reports

    def _report(self, won: float) -> None:
        was = self.health.drafting
        self.last.append(won)
        verdict = self.health.observe(4, 2, won, self.now)
        assert (verdict is None) == (self.health.drafting == was)
        if verdict is not None:
            mean = sum(self.last[-self.sample :]) / self.sample
            assert verdict == Verdict(not was, self.sample, pytest.approx(mean), 0.5)
            assert len(self.last) >= self.sample
            assert mean < 0 if was else mean > self.margin
            self.turns.append((self.health.drafting, self.now))
            self.last.clear()

    @invariant()
    def no_faster_than_the_interval(self) -> None:
        falls = [t for drafting, t in self.turns if not drafting]
        returns = [t for drafting, t in self.turns if drafting]
        assert all(b - a >= self.interval for a, b in itertools.pairwise(falls))
        assert all(b - a >= self.interval for a, b in zip(falls, returns, strict=False))

    @invariant()
    def few_probes(self) -> None:
        for t in self.probes:
            assert sum(t <= other < t + self.interval for other in self.probes) <= 2 * self.sample

    def teardown(self) -> None:
        """Never stuck: good results bring it back within two intervals, bad ones then end it at once."""
        if not hasattr(self, "health"):
            return
        for _ in range(2):  # in the first one, results from before may still cause a fallback
            self.now += self.interval
            for _ in range(self.sample):
                if self.health.admit(self.now):
                    self._report(self.margin + 1)
        assert self.health.drafting
        for _ in range(self.sample):
            if self.health.admit(self.now):
                self._report(-1e9)
        assert not self.health.drafting


TestRandomHistories = RandomHistories.TestCase
TestRandomHistories.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@given(st.floats(-50, 50), st.integers(1, 20))
def test_a_steady_gain_settles_it(won: float, sample: int) -> None:
    health = Health(sample=sample, interval=5.0, margin=1.0)
    turns = 0
    for second in range(400):
        if health.admit(float(second)):
            was = health.drafting
            health.observe(4, 2, won, float(second))
            turns += health.drafting != was
    assert (health.drafting, turns) == ((True, 0) if won >= 0 else (False, 1))
