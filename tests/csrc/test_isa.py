"""Every instruction set gives the same bits, each in its own process, and the choice of one fails clearly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  loads the libraries that the extension links

from lynx_ascend import _C

BITS = Path(__file__).with_name("test_bits.py")


def run(isa: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LYNX_ASCEND_ISA": isa}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, cwd=BITS.parents[2])


def test_the_fastest_is_the_default() -> None:
    assert _C.supported_isas()[0] == "portable"
    program = "import lynx_ascend.codec.ops as ops; print(ops.isa())"
    assert run("", "-c", program).stdout.strip() == _C.supported_isas()[-1]


@pytest.mark.parametrize("isa", [name for name in _C.supported_isas() if name != _C.isa()])
def test_the_others_compute_the_same_bits(isa: str) -> None:
    program = "import lynx_ascend.codec.ops as ops; print(ops.isa())"
    assert run(isa, "-c", program).stdout.strip() == isa
    result = run(isa, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(BITS))
    assert result.returncode == 0, result.stdout


def test_an_unknown_instruction_set_is_refused_at_import() -> None:
    result = run("mmx", "-c", "import lynx_ascend.codec.ops")
    assert result.returncode != 0
    assert "LYNX_ASCEND_ISA: 'mmx'" in result.stderr and "portable" in result.stderr
