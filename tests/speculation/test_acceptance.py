"""The acceptance rules, by exact enumeration with fractions."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend.speculation.acceptance import greedy_accept, residual_weights, sampled_accept


@pytest.mark.parametrize(
    ("drafts", "targets", "verified"),
    [
        ([], [4], (4,)),
        ([1, 2], [1, 2, 3], (1, 2, 3)),
        ([1, 2], [1, 5, 2], (1, 5)),
        ([1, 2], [7, 2, 3], (7,)),  # an agreement after the first difference does not count
    ],
)
def test_greedy(drafts: list[int], targets: list[int], verified: tuple[int, ...]) -> None:
    assert greedy_accept(drafts, targets) == verified


@given(st.data(), st.integers(0, 5))
def test_greedy_equals_decoding_step_by_step(data: st.DataObject, count: int) -> None:
    tokens = st.integers(0, 1)
    drafts = data.draw(st.lists(tokens, min_size=count, max_size=count))
    targets = data.draw(st.lists(tokens, min_size=count + 1, max_size=count + 1))
    verified = greedy_accept(drafts, targets)
    # Target i holds only after drafts[:i]: every verified token must be the argmax after those before it.
    assert all(verified[:i] == tuple(drafts[:i]) and verified[i] == targets[i] for i in range(len(verified)))
    assert len(verified) == count + 1 or verified[-1] != drafts[len(verified) - 1]


def test_greedy_refuses_lengths_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="expected 3"):
        greedy_accept([1, 2], [1, 2])


def _quarters(*parts: int) -> list[Fraction]:
    assert sum(parts) == 4
    return [Fraction(part, 4) for part in parts]


_PAIRS = [
    (_quarters(1, 2, 1), _quarters(2, 1, 1)),
    (_quarters(4, 0, 0), _quarters(1, 1, 2)),
    (_quarters(0, 1, 3), _quarters(3, 1, 0)),
    (_quarters(1, 1, 2), _quarters(1, 1, 2)),
]
# All thresholds (p / q, shares of p and of max(0, p - q)) are multiples of 1/12: the midpoints cover [0, 1) exactly.
_UNIFORMS = [Fraction(2 * i + 1, 24) for i in range(12)]


@pytest.mark.parametrize(("p", "q"), _PAIRS)
def test_one_draft_and_what_follows_are_distributed_as_p(p: list[Fraction], q: list[Fraction]) -> None:
    after = {0: _quarters(0, 4, 0), 1: _quarters(1, 1, 2), 2: _quarters(3, 0, 1)}  # p after each first token
    first: dict[int, Fraction] = defaultdict(Fraction)
    second: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    accepted = Fraction(0)
    for draft, u, v in product(range(3), _UNIFORMS, _UNIFORMS):
        if q[draft] == 0:
            continue
        weight = q[draft] / 144
        verified = sampled_accept([draft], [p, after[draft]], [q], [u, v])
        first[verified[0]] += weight
        if len(verified) == 2:
            accepted += weight
            second[verified] += weight
    assert [first[token] for token in range(3)] == p
    assert accepted == sum(map(min, p, q))  # 1 - the total variation distance
    for (token, following), weight in second.items():
        assert weight == min(p[token], q[token]) * after[token][following]


def test_two_drafts_are_distributed_as_p_jointly() -> None:
    p1, q1 = _PAIRS[0]
    p2 = {0: _quarters(2, 2, 0), 1: _quarters(0, 1, 3), 2: _quarters(1, 2, 1)}
    q2 = {0: _quarters(1, 2, 1), 1: _quarters(2, 1, 1), 2: _quarters(0, 2, 2)}
    joint: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for a, b, u1, u2, v in product(range(3), range(3), _UNIFORMS, _UNIFORMS, _UNIFORMS):
        weight = q1[a] * q2[a][b] / 12**3
        if not weight:
            continue
        verified = sampled_accept([a, b], [p1, p2[a], p1], [q1, q2[a]], [u1, u2, v])
        if len(verified) == 1:  # the next token is an ordinary sample of p
            for following in range(3):
                joint[verified[0], following] += weight * p2[verified[0]][following]
        else:
            joint[verified[0], verified[1]] += weight
    assert all(joint[a, b] == p1[a] * p2[a][b] for a, b in product(range(3), range(3)))


def test_residual_weights() -> None:
    assert residual_weights(*_PAIRS[0]) == [0, Fraction(1, 4), 0]


def test_a_token_without_weight_is_never_sampled() -> None:
    p = [0.1] * 7 + [0.3, 0.0]  # the sum is not exactly 1 in floats
    assert sampled_accept([], [p], [], [1 - 2**-53]) == (7,)
    assert sampled_accept([], [[0.0, 1.0]], [], [0.0]) == (1,)
    # A draft that p excludes is rejected even by the smallest uniform number.
    assert sampled_accept([0], [[0.0, 1.0], [1.0, 0.0]], [[0.5, 0.5]], [0.0, 0.0]) == (1,)


@pytest.mark.parametrize(
    ("p", "q", "uniforms", "match"),
    [
        ([[1.0, 0.0]], [[1.0, 0.0]], [0.5, 0.5], "with 1 p"),
        ([[1.0, 0.0]] * 2, [], [0.5, 0.5], "0 q"),
        ([[1.0, 0.0]] * 2, [[1.0, 0.0]], [0.5], "1 uniforms"),
        ([[1.0, 0.0]] * 2, [[0.0, 1.0]], [0.5, 0.5], r"drafts\[0\]"),
    ],
)
def test_impossible_arguments_are_refused(
    p: list[list[float]], q: list[list[float]], uniforms: list[float], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        sampled_accept([0], p, q, uniforms)
