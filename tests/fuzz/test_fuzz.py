"""Every fuzz target, for some seconds; and that a defect would be found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz import targets
from tests.fuzz.run import Defect, fuzz

SEEDS = targets.seeds()


@pytest.fixture(scope="module", autouse=True)
def no_server_stays() -> Iterator[None]:
    yield
    targets.close()


@pytest.mark.parametrize("target", SEEDS, ids=lambda target: target.__name__)
def test_target(target: targets.Callable[[bytes], None]) -> None:
    fuzz(target, SEEDS[target], 1500, seed=1)


def test_a_defect_is_found_and_told() -> None:
    def fragile(data: bytes) -> None:
        if b"\xff\xff" in data:
            raise KeyError("two of them")

    with pytest.raises(Defect, match=r"fragile\(b.*KeyError: 'two of them'"):
        fuzz(fragile, [b"a seed"], 500, seed=0)
