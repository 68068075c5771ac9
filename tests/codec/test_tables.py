"""The quantiser tables: pinned bits, and the properties that the codecs rely on."""

from __future__ import annotations

import hashlib

import pytest
import torch

from lynx_ascend.codec.tables import tables

ALPHAS = [0.0, 1e-30, 0.5, 1.0, 100.0, 1e6]
SHA256 = {
    ("grid", 0.0): "310c16bbbfc8de2e2704ba955aa27a361f5f2f5294428ff7c14002d8299f1a4a",
    ("grid", 1.0): "2072afb967979f8e8a2be93c268031aae3b76ed9985ea3370237547a3e1747eb",
    ("grid", 100.0): "62bb61f1c93b0356e46200c93ce1f34794403cbab0fe7a15cf0854b88ebb813d",
    ("alg1", 0.0): "5a3fc07fbc99a6af8147f77400fae847e303ce1097bd0f4c4125f9360041e5ed",
    ("alg1", 100.0): "080cde49f8f75eef3ab452e45747bf8ea13aa40dc5c2068dd595c83027e0be3a",
}


@pytest.mark.parametrize(("codec", "alpha"), list(SHA256))
def test_bits_are_the_same_on_every_machine(codec: str, alpha: float) -> None:
    digest = hashlib.sha256()
    for table in tables(codec, alpha):
        digest.update(table.numpy().tobytes())
    assert digest.hexdigest() == SHA256[codec, alpha]


@pytest.mark.parametrize("codec", ["grid", "alg1"])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_every_level_is_its_own_nearest_code(codec: str, alpha: float) -> None:
    table = tables(codec, alpha)
    assert bool((table.thresholds[1:] > table.thresholds[:-1]).all())
    levels = table.levels[table.codes.long()]
    assert torch.equal(table.codes.unique(), table.codes.sort().values)
    # alg1 codes -0 and +0 apart; both decode to +0, which is the positive one's.
    index = torch.bucketize(levels, table.thresholds, right=True)
    expected = torch.arange(len(levels))
    if codec == "alg1":
        expected[112] = 113
    assert torch.equal(index, expected)
    assert float(levels[0]) == -float(levels[-1]) == -(120.0 if codec == "grid" else 112.0)


@pytest.mark.parametrize("codec", ["grid", "alg1"])
def test_anchor_keeps_extremes_and_sign_and_is_within_eight_indices(codec: str) -> None:
    table = tables(codec, 0.0)
    level, coarse = table.levels[table.codes.long()], table.anchor_levels[(table.codes & 15).long()]
    assert float(coarse[0]) == float(level[0]) and float(coarse[-1]) == float(level[-1])
    assert float((level - coarse).abs().max()) == 8.0
    if codec == "alg1":
        assert bool((coarse[:113] <= 0).all()) and bool((coarse[113:] >= 0).all())


def test_linear_grid_is_round_half_to_even() -> None:
    z = torch.cat(
        [torch.arange(-260, 261) * 0.5, torch.linspace(-130, 130, 9973), torch.tensor([-torch.inf, torch.inf])]
    )
    around = torch.cat([z, torch.nextafter(z, torch.tensor(torch.inf)), torch.nextafter(z, torch.tensor(-torch.inf))])
    index = torch.bucketize(around, tables("grid", 0.0).thresholds, right=True)
    assert torch.equal(index, (around.round().clamp(-120, 120) + 120).long())


def test_alpha_is_rounded_as_on_the_wire() -> None:
    assert tables("grid", 0.1) is tables("grid", float(torch.tensor(0.1)))
    assert bool((tables("grid", 1e-30).levels == tables("grid", 0.0).levels).all())
