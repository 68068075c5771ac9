"""Which instruction set runs: the fastest, the one the environment names, or the one asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  loads the libraries that the extension links

from lynx_ascend import _C

SHOW = "import torch; from lynx_ascend import _C; print(_C.isa())"


def run(isa: str, program: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LYNX_ASCEND_ISA": isa}
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, cwd=root)


def test_the_fastest_is_the_default() -> None:
    assert _C.supported_isas()[0] == "portable"
    assert run("", SHOW).stdout.strip() == _C.supported_isas()[-1]


@pytest.mark.parametrize("isa", _C.supported_isas())
def test_the_environment_forces_one(isa: str) -> None:
    assert run(isa, SHOW).stdout.strip() == isa


def test_an_unknown_instruction_set_is_refused_at_import() -> None:
    result = run("mmx", "import lynx_ascend.codec.ops")
    assert result.returncode != 0
    assert "LYNX_ASCEND_ISA: 'mmx'" in result.stderr and "portable" in result.stderr


def test_one_that_is_asked_for_is_used_and_an_unknown_one_refused() -> None:
    before = _C.isa()
    try:
        for isa in _C.supported_isas():
            _C.use_isa(isa)
            assert _C.isa() == isa
    finally:
        _C.use_isa(before)
    with pytest.raises(ValueError, match="'mmx' is none of those"):
        _C.use_isa("mmx")
    assert _C.isa() == before
