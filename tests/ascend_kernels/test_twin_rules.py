"""Every rule of the twin: a kernel that keeps it runs, the same kernel with the rule broken is refused by that rule."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.ascend_kernels.rules import rules_of_launches

RULES = [
    rule
    for path in sorted(Path(__file__).parent.glob("twin_rules*.h"))
    for rule in re.findall(r"^RULE\((\w+)\)", path.read_text(encoding="utf-8"), re.M)
]


def launch(twin: ModuleType, kernel: str, broken: bool) -> None:
    x, y = np.arange(256, dtype=np.float32), np.zeros(256, dtype=np.float32)
    buffers = [(a.ctypes.data, a.nbytes) for a in (x, y)]
    twin.launch(kernel, 2 if kernel.startswith("cores") else 1, [*buffers, struct.pack("i", broken)])


def test_no_rule_is_forgotten() -> None:
    kinds = {rule.split("_")[0] for rule in RULES}
    assert rules_of_launches() == kinds  # launch: test_arguments


@pytest.mark.parametrize("rule", RULES)
def test_kept(twin: ModuleType, rule: str) -> None:
    launch(twin, rule, broken=False)


@pytest.mark.parametrize("rule", RULES)
def test_broken(twin: ModuleType, rule: str) -> None:
    core = r"core [01]" if rule.startswith("cores") else "core 0"
    with pytest.raises(twin.TwinError, match=rf"^{rule}, {core}, [\w: ]+: {rule.split('_')[0]}: \S"):
        launch(twin, rule, broken=True)


@pytest.mark.parametrize(
    ("kernel", "cores", "arguments", "message"),
    [
        ("nothing", 1, [], "no kernel nothing"),
        ("order_in", 0, [None, None, bytes(4)], "0 cores"),
        ("order_in", 1, [None, bytes(4)], "takes 3 arguments, not 2"),
        ("order_in", 1, [None, None, None], "argument 2 is a buffer, not a value"),
        ("order_in", 1, [None, bytes(4), bytes(4)], "argument 1 is a value, not a buffer"),
        ("order_in", 1, [None, None, bytes(8)], "argument 2 has 8 bytes, not 4"),
        ("order_in", 1, [None, None, bytes(4)], "is in no buffer of this launch"),
    ],
)
def test_arguments(twin: ModuleType, kernel: str, cores: int, arguments: list[object], message: str) -> None:
    with pytest.raises(twin.TwinError, match=message):
        twin.launch(kernel, cores, arguments)


def test_a_failed_launch_leaves_nothing_behind(twin: ModuleType) -> None:
    for _ in range(2):
        with pytest.raises(twin.TwinError, match="leak"):
            launch(twin, "leak_flag", broken=True)
        launch(twin, "leak_flag", broken=False)
