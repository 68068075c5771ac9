"""The installation that this process runs in: packages, compiled modules, the plugin's entry point, the environment."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
from collections.abc import Iterator, Mapping
from importlib import metadata

import torch

from lynx_ascend.doctor.finding import Finding, Status, ok, problem, warning
from lynx_ascend.serving.releases import VLLM, VLLM_ASCEND

PLUGIN = "lynx_ascend"
GROUP = "vllm.general_plugins"
REGISTER = "lynx_ascend.serving.plugin:register"


def examine(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Every finding, in the order in which they are best mended."""
    vllm, torch_npu = version_of("vllm"), version_of("torch_npu")
    yield ok("python", f"{platform.python_version()}, {platform.machine()}")
    yield ok("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    yield _vllm(vllm)
    yield _vllm_ascend(version_of("vllm_ascend"))
    cpu_kernels = _cpu_kernels()
    yield cpu_kernels
    yield _npu_kernels(torch_npu)
    if vllm is not None:
        yield _plugin()
        yield _plugin_allowed(environ)
        yield _model_runner(environ)
    yield ok("OMP_NUM_THREADS", environ.get("OMP_NUM_THREADS", "not set"))
    if cpu_kernels.status is not Status.PROBLEM:
        from lynx_ascend.doctor import codec_check  # not before: it cannot be imported without _C

        yield codec_check.same_bits()
        yield codec_check.speed()


def version_of(module: str) -> str | None:
    """The version of the distribution that an importable top-level module is from ("unknown": it has none), or None.

    The module is not imported: vLLM takes seconds, and what is broken may not import at all.
    """
    if importlib.util.find_spec(module) is None:
        return None
    distributions = metadata.packages_distributions().get(module)
    return metadata.version(distributions[0]) if distributions else "unknown"


def minor(version: str) -> str:
    """Major and minor number: "0.32" of "0.32.0+cpu"."""
    return ".".join(version.split(".")[:2])


def _vllm(version: str | None) -> Finding:
    supported = " or ".join(VLLM)
    if version is None:
        return warning("vllm", "not installed: codec and transport work, serving needs it", f"install vLLM {supported}")
    if minor(version) not in VLLM:
        return problem("vllm", f"{version} is not supported", f"install vLLM {supported}")
    return ok("vllm", version)


def _vllm_ascend(version: str | None) -> Finding:
    if version is None:
        return ok("vllm-ascend", "not installed: no NPU can serve here")
    if minor(version) != VLLM_ASCEND:
        return problem("vllm-ascend", f"{version} is not supported", f"install vllm-ascend {VLLM_ASCEND}")
    return ok("vllm-ascend", version)


def _cpu_kernels() -> Finding:
    try:
        module = importlib.import_module("lynx_ascend._C")
    except Exception as error:  # not built, built for another torch, or told to use what this machine has not
        return problem("_C", str(error), "pip install -e . in this environment; unset LYNX_ASCEND_ISA")
    isa, best = module.isa(), module.supported_isas()[-1]
    found = f"{isa} of {', '.join(module.supported_isas())}; built with torch {module.build_info()['torch']}"
    if isa != best:
        return warning("_C", found, f"this machine has {best}: unset LYNX_ASCEND_ISA")
    return ok("_C", found)


def _npu_kernels(torch_npu: str | None) -> Finding:
    if torch_npu is None:
        return ok("_npu", "not needed: torch_npu is not installed")
    try:
        importlib.import_module("torch_npu")
        module = importlib.import_module("lynx_ascend._npu")
    except Exception as error:  # of any kind: torch_npu looks for CANN, drivers and devices when it is imported
        remedy = "build lynx-ascend where torch_npu and CANN are installed (docs/ascend.md)"
        return problem("_npu", f"torch_npu {torch_npu}, but: {error}", remedy)
    return ok("_npu", f"loaded, kernels: {module.kernels()}; torch_npu {torch_npu}")


def _plugin() -> Finding:
    remedy = "install lynx-ascend into the environment that vLLM runs in (pip install, not a path)"
    found = [point for point in metadata.entry_points(group=GROUP) if point.name == PLUGIN]
    if not found:
        return problem("plugin", f"{GROUP} has no entry point {PLUGIN}: vLLM does not know LynxConnector", remedy)
    if found[0].value != REGISTER:
        return problem("plugin", f"{GROUP}: {PLUGIN} is {found[0].value}, not {REGISTER}", remedy)
    try:
        found[0].load()
    except Exception as error:  # whatever its import raises would end the server
        return problem("plugin", f"{REGISTER}: {type(error).__name__}: {error}", remedy)
    return ok("plugin", f"{GROUP}: {REGISTER}")


def _plugin_allowed(environ: Mapping[str, str]) -> Finding:
    name = "VLLM_PLUGINS"
    allowed = environ.get(name)
    if allowed is not None and PLUGIN not in allowed.split(","):
        return problem(name, f"{allowed!r} leaves {PLUGIN} out", f"add {PLUGIN} to it, or unset it")
    return ok(name, "not set: all plugins" if allowed is None else allowed)


def _model_runner(environ: Mapping[str, str]) -> Finding:
    name = "VLLM_USE_V2_MODEL_RUNNER"
    value = environ.get(name)
    if value == "0":
        return ok(name, value)
    found = "not set" if value is None else f"{value!r}: Lynx serves on the V1 model runner alone"
    return (warning if value is None else problem)(name, found, f"set {name}=0 for both servers")
