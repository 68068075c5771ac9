"""Loads the emulated device, torch and the real torch_npu, in the order and environment that they need."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "emulated_npu"  # where scripts/setup_emulated_npu.sh has build.sh build
LIBRARIES = ("ascendcl", "hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "runtime")
ENVIRONMENT = {
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # or `import torch` would load torch_npu before its libraries are there
    "TASK_QUEUE_ENABLE": "0",
    "OMP_NUM_THREADS": "1",
}


def open_libraries(build: Path = BUILD) -> None:
    """Opens what torch_npu is linked to: found by their names from now on, whoever asks for them."""
    for name in LIBRARIES:
        ctypes.CDLL(str(build / f"lib{name}.so"), mode=ctypes.RTLD_GLOBAL)


def load(build: Path = BUILD) -> ModuleType:
    """Imports torch and torch_npu on the emulated device and returns torch_npu. Doing it again does nothing.

    Must come before any other import of torch_npu, in every process; of the environment only what is unset is set.

    Raises:
        OSError: the device is not built.
    """
    if os.environ.get("ASCEND_HOME_PATH"):
        raise OSError(
            "ASCEND_HOME_PATH: is set, so torch_npu would find CANN; the emulated device is for machines without"
        )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    open_libraries(build)
    import torch
    import torch_npu

    library = build / "libemulated_aten.so"
    if str(library) not in torch.ops.loaded_libraries:
        torch.ops.load_library(str(library))
        torch.ops.emulated_npu.install()
    module: ModuleType = torch_npu
    return module


def acl(build: Path = BUILD) -> ctypes.CDLL:
    """The emulated libascendcl, to be called from tests; emulated_acl_calls(name) counts calls of a function."""
    library = ctypes.CDLL(str(build / "libascendcl.so"))
    library.emulated_acl_calls.restype = ctypes.c_uint64
    return library
