"""Faults in this project's own kernels are caught by the twin's rule that is meant for them, or by the CPU's bytes.

Each mutant is compiled and linked with the other objects of the twin's build.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.pairs import FIFTH
from tests.ascend_kernels import calls, decode_mutants, encode_mutants
from tests.ascend_kernels.calls import TwinCase
from tests.ascend_kernels.cases import DTYPES, beside_width, beyond_scale, hidden_loads, on_thresholds, uneven
from tests.ascend_kernels.mutants import OVERLAP, VALUES, Mutant
from tests.ascend_kernels.rules import rules_of_launches
from tests.csrc.calls import Case, raw_bytes
from tests.csrc.pages import KINDS, draw_values

pytestmark = pytest.mark.slow

KERNELS = Path(__file__).resolve().parents[2] / "ascend_kernels"
BUILD = KERNELS.parent / "build" / f"cmake-{sys.implementation.cache_tag}" / "ascend_kernels" / "twin" / "CMakeFiles"
MUTANTS = [*decode_mutants.MUTANTS, *encode_mutants.MUTANTS]


def build(kernel: str, folder: Path) -> ModuleType:
    """lynx_ascend._twin, but for `kernel`, whose sources are those in `folder`."""
    objects = [
        path
        for target in ("twin_runtime", "_twin")
        for path in (BUILD / f"{target}.dir").rglob("*.o")
        if path.name != f"{kernel}.cpp.o"
    ]
    assert objects, "nothing of the twin under build/: build with `pip install --no-build-isolation -e .`"
    # The flags of ascend_kernels/twin/CMakeLists.txt.
    flags = ["-std=c++20", "-O0", "-fPIC", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden"]
    include = [f"-I{path}" for path in (folder, KERNELS / "twin" / "include", KERNELS.parent / "csrc")]
    library = folder / "_twin.so"
    command = ["c++", *flags, *include, "-shared", "-o", library, folder / f"{kernel}.cpp", *objects]
    compiled = subprocess.run(command, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    # pybind11 gives the same module again for the same name.
    spec = importlib.util.spec_from_file_location(f"{folder.name}._twin", library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_sources(folder: Path) -> None:
    for path in KERNELS.glob("*.[ch]*"):
        shutil.copy(path, folder)


def small(kind: str, dtype: torch.dtype, config: CodecConfig, heads: int = 2) -> TwinCase:
    """Nine pages of 32 tokens, the last of them short, whose first is not the sequence's."""
    x = draw_values(kind, (8 * 32 + 21, heads, 64), dtype, 1)
    return TwinCase(x, config, start=32, first=70, block_size=48, cores=2)


def paired(dtype: torch.dtype, heads: int, head_dim: int) -> TwinCase:
    """Six pages of three chunks, the last of them short, in slices of 192 channels or less."""
    x = uneven(draw_values("normal", (5 * 48 + 37, heads, head_dim), dtype, 1), 1)
    config = CodecConfig(codec="pair", chunk=16, page=48, sink_tokens=5)
    return TwinCase(x, config, first=3, block_size=48, cores=2)


@cache
def cases() -> list[TwinCase]:
    """At least four tiles a core each, but for one. How pipes overlap is judged by the first."""
    x = draw_values("normal", (3 * 256 + 45, 4, 128), torch.bfloat16, 1)
    short = {"page": 32, "chunk": 16}
    zeros = draw_values("sparse", (9 * 32, 2, 64), torch.bfloat16, 2)
    return [
        TwinCase(x, CodecConfig(), block_size=48, cores=4),
        paired(torch.bfloat16, 3, 128),
        paired(torch.float16, 5, 64),
        beside_width(FIFTH, 128),
        small("normal", torch.float16, CodecConfig(codec="alg1", **short), heads=5),
        small("normal", torch.bfloat16, CodecConfig(alpha=1.0, **short)),
        *(small(kind, dtype, CodecConfig(center="mean", **short)) for kind in KINDS for dtype in DTYPES),
        on_thresholds("alg1", 1.0),
        beyond_scale("pair", torch.float16),
        TwinCase(torch.where(zeros == 0, -0.0, zeros.abs()), CodecConfig(**short), cores=2),
    ]


@cache
def payloads(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of case `index` from the CPU."""
    return plain(cases()[index]).encode()


def plain(case: TwinCase) -> Case:
    return Case(case.x, case.config, case.start, case.block_size, case.memory, case.apart, case.first)


@cache
def any_codes(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with random codes: no encoder writes all pairs of nibbles."""
    draw = torch.Generator().manual_seed(index)
    anchor, residual = (part.clone() for part in payloads(index))
    for page, at in enumerate(cases()[index].layouts()):
        for codes in (anchor[page, at.codes : at.anchor_bytes], residual[page, : at.residual_bytes]):
            codes.random_(256, generator=draw)
    return anchor, residual


@cache
def decoded(index: int) -> list[torch.Tensor]:
    """What the CPU makes of them: from the anchors alone, and from both."""
    anchor, residual = any_codes(index)
    return [raw_bytes(plain(cases()[index]).decode(anchor, fine)) for fine in (None, residual)]


def pipes_overlap(report: dict[str, Any] | None) -> bool:
    """Loads are hidden, and no core takes much longer than its busiest pipe is busy."""
    assert report is not None
    busiest = [max(pipe["cycles"] for pipe in core["pipes"].values()) / core["cycles"] for core in report["cores"]]
    return min(hidden_loads(report)) >= 0.9 and min(busiest) > 0.75


def wrong(kernel: str) -> str:
    """What is wrong with the kernels that tests.ascend_kernels.calls launches: VALUES, OVERLAP or nothing."""
    overlaps = True
    for index, case in enumerate(cases()):
        if kernel == "encode":
            got, want = case.encode(), payloads(index)
            reports = [case.report]
        else:
            anchor, residual = any_codes(index)
            got, want, reports = [], decoded(index), []
            for fine in (None, residual):
                got.append(case.decode(anchor, fine))
                reports.append(case.report)
        if not all(torch.equal(raw_bytes(a), raw_bytes(b)) for a, b in zip(got, want, strict=True)):
            return VALUES
        if index == 0:
            overlaps = all(map(pipes_overlap, reports))
    return OVERLAP if not overlaps else ""


def outcome(mutant: Mutant | None, kernel: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    copy_sources(folder)
    if mutant is not None:
        mutant.apply(folder)
    module = build(kernel, folder)
    monkeypatch.setattr(calls, "_twin", module)
    try:
        return wrong(kernel)
    except module.TwinError as error:
        return str(error)


@pytest.mark.parametrize("kernel", ["decode", "encode"])
def test_kernels_as_they_are(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(None, kernel, tmp_path, monkeypatch) == ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.kernel}: {mutant.name}")
def test_mutant_is_caught(mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = outcome(mutant, mutant.kernel, tmp_path, monkeypatch)
    assert re.search(rf"(^|, [\w: ]+: ){mutant.caught}", got), f"{mutant.caught!r} expected: {got!r}"


def test_every_rule_catches_a_mutant() -> None:
    assert {mutant.caught.split(":")[0] for mutant in MUTANTS} - {VALUES, OVERLAP} == rules_of_launches()
