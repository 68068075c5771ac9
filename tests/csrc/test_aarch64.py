"""The kernels compiled for AArch64 and run by qemu compute the reference's bits; nothing of PyTorch is linked."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch

from lynx_ascend.codec.tables import tables
from tests.csrc.calls import Buffers, Case, assert_equal, raw_bytes
from tests.csrc.pages import DTYPES, draw_cases

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("aarch64-linux-gnu-g++")
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        COMPILER is None or QEMU is None,
        reason="needs aarch64-linux-gnu-g++ and qemu-aarch64: apt-get install g++-aarch64-linux-gnu qemu-user",
    ),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER is not None
    out = tmp_path_factory.mktemp("aarch64") / "pages"
    flags = ["-std=c++20", "-O3", "-static", "-Wall", "-Wextra", "-Werror"]
    flags += ["-ffp-contract=off", "-fno-fast-math", "-fno-trapping-math"]  # as in CMakeLists.txt
    sources = [Path(__file__).with_name("aarch64.cpp"), *sorted((ROOT / "csrc" / "cpu").glob("*.cpp"))]
    subprocess.run([COMPILER, *flags, f"-I{ROOT / 'csrc'}", *map(str, sources), "-o", str(out)], check=True)
    return out


def written(case: Case) -> bytes:
    """The case as aarch64.cpp reads it."""
    config, cache, into = case.config, case.filled(), case.cache()
    anchor, residual = case.payloads()
    table = tables(config.codec, config.alpha or 0.0) if config.codec == "alg1" or config.alpha else None
    header = [DTYPES.index(case.x.dtype), case.start, case.x.shape[0], config.page, config.chunk, config.sink_tokens]
    header += [
        config.codec == "alg1",
        config.codec == "pair",
        config.center == "mean",
        case.first,
        *case.x.shape[1:],
        case.block_size,
    ]
    header += [len(case.block_ids), cache.storage_offset(), *cache.stride()]
    header += [0 if table is None else len(table.thresholds), table is not None]
    header += [len(raw_bytes(cache)), anchor.stride(0), residual.stride(0)]
    floats = [] if table is None else [table.thresholds, table.levels, table.anchor_levels]
    parts = [*floats, case.block_ids, raw_bytes(cache), raw_bytes(into)]
    return struct.pack(f"<{len(header)}q", *header) + b"".join(part.numpy().tobytes() for part in parts)


def run(program: Path, isa: str, folder: Path, wanted: list[Buffers]) -> list[Buffers]:
    """What the program makes of the cases in `folder`, cut into pieces of the sizes that are wanted."""
    assert QEMU is not None
    results = folder / isa
    subprocess.run([QEMU, str(program), isa, str(folder / "cases"), str(results)], check=True)
    data = torch.frombuffer(bytearray(results.read_bytes()), dtype=torch.uint8)
    sizes = [len(part) for buffers in wanted for part in buffers.values()]
    pieces = iter(data.split(sizes))  # fails unless they add up
    return [{name: next(pieces) for name in buffers} for buffers in wanted]


def test_ten_thousand_pages(program: Path, tmp_path: Path) -> None:
    pages = 0
    for seed in range(20):
        cases = draw_cases(500, seed=seed, full_every=40)
        wanted = [case.reference() for case in cases]
        (tmp_path / "cases").write_bytes(b"".join(written(case) for case in cases))
        for isa in ("portable", "neon"):
            got = run(program, isa, tmp_path, wanted)
            for case, buffers, want in zip(cases, got, wanted, strict=True):
                assert_equal(buffers, want, f"aarch64 {isa}", case)
        pages += sum(len(case.layouts()) for case in cases)
    assert pages >= 10_000
