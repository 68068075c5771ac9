#!/usr/bin/env bash
# Builds the extension against other versions of torch and runs its tests on each, in temporary copies.
# Usage: scripts/check_torch_versions.sh [VERSION ...]   (each as pip knows it: 2.10.0, or 2.10.0+cpu where an index has it)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ $# -gt 0 ] || set -- 2.10.0 2.11.0
for version in "$@"; do
  copy=$work/$version
  mkdir "$copy"
  cp -r "$root"/{CMakeLists.txt,README.md,csrc,lynx_ascend,pyproject.toml,setup.py,tests} "$copy"
  rm -f "$copy"/lynx_ascend/_C*.so
  python3 -m venv "$work/venv-$version"
  bin=$work/venv-$version/bin
  "$bin/pip" install -q "torch==$version" setuptools wheel cmake ninja pybind11 numpy pytest pytest-timeout hypothesis
  (cd "$copy" && PATH="$bin:$PATH" "$bin/pip" install -q --no-build-isolation -e .)
  (cd "$copy" && OMP_NUM_THREADS=1 "$bin/python" -m pytest -q tests/csrc)
done
