#!/usr/bin/env bash
# Builds the emulated device, and lynx_ascend._npu for it, for the torch and torch_npu of an interpreter.
# Usage: build.sh [PYTHON [OUT_DIR]]   (.venv-npu/bin/python, build/emulated_npu)
# Needs g++, cmake and ninja on the path. Safe to run again: what is up to date is left.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
python=${1:-$root/.venv-npu/bin/python} out=${2:-$root/build/emulated_npu}
mkdir -p "$out"
out=$(cd "$out" && pwd) # or the linker would take what lies there for the name of a library
# Found without being imported: torch_npu cannot be before this has run.
packages=$("$python" -c 'import importlib.util as u; print(*(u.find_spec(n).submodule_search_locations[0] for n in ("torch", "torch_npu")))')
read -r torch torch_npu <<<"$packages"
configure=(cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -DLYNX_TORCH="$torch" -DLYNX_TORCH_NPU="$torch_npu")
"${configure[@]}" -S "$here" -B "$out" >/dev/null
cmake --build "$out"
"${configure[@]}" -S "$root/csrc/npu" -B "$out/npu" -DPython_EXECUTABLE="$python" -DLYNX_NPU_TWIN=ON \
  -DLYNX_ASCENDCL="$out/libascendcl.so" -DLYNX_OUTPUT_DIRECTORY="$root/lynx_ascend" >/dev/null
cmake --build "$out/npu"
