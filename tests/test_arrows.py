"""Imports between the parts of the package follow the arrows of docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import lynx_ascend

ROOT = Path(lynx_ascend.__file__).parent
FACE = {"api", "buffers", "paged", "methods"}  # the public face over codec and frame
ALLOWED = {
    "codec": {"codec", "_C"},
    "frame": {"frame", "codec.config"},
    "face": {"face", "codec", "frame"},
    "transport": {"transport", "codec.config"},  # for Stream, which frames are sorted by
    "speculation": {"speculation"},
    "serving": {"serving", "speculation", "transport", "face", "frame", "codec"},
    "evaluation": {"evaluation", "face", "codec", "speculation"},
    "simulation": {"simulation", "speculation", "face", "codec.config"},
    "demo": {"demo", "evaluation"},
    "bench": {"bench", "codec", "_C", "_twin"},
    "doctor": {
        "doctor",
        "transport",
        "speculation",
        "face",
        "frame",
        "codec",
        "_C",
        "serving.transfer_params",
        "serving.releases",  # which know nothing of vLLM
    },
    "cli": {"cli", "demo", "doctor", "bench", "evaluation", "simulation", "face"},
}
HEAVY = {"vllm": "serving", "transformers": "evaluation"}
IMPURE = {"time", "asyncio", "socket", "threading", "random", "os", "torch"}


def imported(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports; `from package import module` counts as the module."""
    package = ["lynx_ascend", *path.relative_to(ROOT).parts[:-1]]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def part(name: str) -> str:
    return "face" if name in FACE else name


def violations() -> list[str]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        source = part(path.relative_to(ROOT).parts[0].removesuffix(".py"))
        if source not in ALLOWED:
            continue  # the package's own __init__
        for name in imported(path):
            head, _, rest = name.partition(".")
            if head == "lynx_ascend":
                target = part(rest.split(".")[0])
                allowed = ALLOWED[source]
                if target not in allowed and not any(rest.startswith(a + ".") for a in allowed if "." in a):
                    found.append(f"{path.relative_to(ROOT)} imports {name}")
            elif (head in HEAVY and HEAVY[head] != source) or (head in IMPURE and source == "speculation"):
                found.append(f"{path.relative_to(ROOT)} imports {name}")
    return found


def test_arrows() -> None:
    assert violations() == []


def test_every_part_is_covered() -> None:
    parts = {
        part(p.name.removesuffix(".py")) for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert parts - {"__init__"} == ALLOWED.keys()


def test_a_wrong_import_would_be_seen() -> None:
    assert "lynx_ascend.frame.header.FrameHeader" in imported(ROOT / "frame" / "frame.py")
    assert "lynx_ascend.codec.config.Stream" in imported(ROOT / "frame" / "header.py")
    assert "lynx_ascend.codec.ops" in imported(ROOT / "paged.py")
