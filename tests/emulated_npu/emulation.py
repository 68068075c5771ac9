"""Puts the emulated NPU in place: whoever imports torch_npu in .venv-npu, in any process, gets it on that device.

.venv-npu imports this module at every start of its interpreter (a line of its lynx_ascend.pth), so that the processes
that vLLM starts by itself are emulated too. It costs nothing until torch_npu is imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from tests.emulated_npu.device.load import ENVIRONMENT, load, open_libraries


def _operators() -> None:
    load()
    for topic in ("activation", "attention", "cache", "matmul", "normalisation", "rotary", "sampling"):
        importlib.import_module(f"tests.emulated_npu.operators.{topic}")
    importlib.import_module("tests.emulated_npu.stand_ins").atb()


def _slot_mapping() -> None:
    importlib.import_module("tests.emulated_npu.stand_ins").slot_mapping()


def _torchvision() -> None:
    importlib.import_module("tests.emulated_npu.stand_ins").torchvision()


def _pyacl() -> None:
    importlib.import_module("tests.emulated_npu.stand_ins").pyacl()


# What is done before and after the first import of a module.
BEFORE: dict[str, Callable[[], None]] = {
    "torch_npu": open_libraries,
    "vllm_ascend.device_allocator.camem": _pyacl,
}
AFTER: dict[str, Callable[[], None]] = {
    "torch_npu": _operators,
    "torchvision.extension": _torchvision,
    "vllm.v1.worker.block_table": _slot_mapping,
}


class _Loader(Loader):
    """A module's own loader, with something done before and after it."""

    def __init__(self, name: str, loader: Loader) -> None:
        self.name, self.loader = name, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        BEFORE.get(self.name, lambda: None)()
        # As if this class were not there: some packages read their resources through their loader.
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        AFTER.get(self.name, lambda: None)()


class _Finder(MetaPathFinder):
    """Finds the modules of BEFORE and AFTER where the other finders do, and gives them `_Loader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in BEFORE and fullname not in AFTER:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find else None
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(fullname, spec.loader)
                return spec
        return None


if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    sys.meta_path.insert(0, _Finder())
