"""Builds the C++ extensions of lynx_ascend with CMake; everything else is in pyproject.toml."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Configures and builds CMakeLists.txt, leaving the shared objects where setuptools expects them."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        build.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(build),
            "-G",
            "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DLYNX_OUTPUT_DIRECTORY={target.parent}",
        ]
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build)], check=True)
        if not target.exists():
            raise RuntimeError(f"CMake finished without making {target.name}")


names = ["_C", "_twin"] if (ROOT / "ascend_kernels" / "twin").exists() else ["_C"]
if importlib.util.find_spec("torch_npu") and "ASCEND_HOME_PATH" in os.environ:  # as CMakeLists.txt decides
    names.append("_npu")
setup(
    ext_modules=[Extension(f"lynx_ascend.{name}", sources=[]) for name in names],
    cmdclass={"build_ext": CMakeBuild},
)
