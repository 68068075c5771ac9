#!/usr/bin/env bash
# Sets the project up and runs its checks and tests. Usage: scripts/run_tests.sh [quick|full] [pytest arguments]
# quick: what neither starts a vLLM engine nor takes minutes (under 5 in all). full, the default: everything.
set -euo pipefail
cd "$(dirname "$0")/.."
tier=full
case "${1:-}" in quick | full) tier=$1; shift ;; esac
bash scripts/setup_env.sh
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
ruff check .
ruff format --check .
mypy
clang-format --dry-run --Werror $(git ls-files '*.cpp' '*.h')
if [ "$tier" = quick ]; then
  pytest -m "not engine and not slow" "$@"
else
  pytest "$@"
fi
