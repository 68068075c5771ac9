"""CodecConfig: what it fills in, and that every bad field is named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lynx_ascend.codec.config import CodecConfig


def test_defaults_are_filled_in_and_alpha_is_fp32() -> None:
    grid, alg1, pair = CodecConfig(), CodecConfig(codec="alg1"), CodecConfig(codec="pair")
    assert (pair.alpha, pair.center) == (0.0, "midrange")
    assert (grid.alpha, grid.center) == (0.0, "midrange") and (alg1.alpha, alg1.center) == (100.0, "mean")
    assert CodecConfig(alpha=0.1).alpha == 0.10000000149011612
    assert type(CodecConfig(alpha=3).alpha) is float


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("codec", ["zip", None, 1]),
        ("center", ["median", 0]),
        ("alpha", [-0.5, 2e6, math.nan, math.inf, -math.inf, 10**400, True, "1", 1j]),
        ("chunk", [0, 1025, -1, 32.0, "32", True, None]),
        ("page", [16, 257, 65536, 256.0, "256", None]),
        ("sink_tokens", [-1, 257, 4.0, False, True, None]),
        ("exact", [1, 0, None, "yes"]),
    ],
)
def test_a_bad_field_is_named(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^{field}: "):
            CodecConfig(**{field: value})
