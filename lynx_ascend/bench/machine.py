"""What a figure depends on besides the code: processor, cores, versions."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from lynx_ascend import _C


def facts() -> dict[str, object]:
    """cpu (model name), cores (this process may use), isas, torch, compiler, load_average (of the last minute)."""
    return {
        "cpu": _model_name(),
        "cores": len(os.sched_getaffinity(0)),
        "isas": _C.supported_isas(),
        "torch": torch.__version__,
        "compiler": _C.build_info()["compiler"],
        "load_average": os.getloadavg()[0],
    }


def _model_name() -> str:
    """The first model name of /proc/cpuinfo; Arm kernels give none: then the architecture."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
