#!/usr/bin/env bash
# Sets the project up and runs its checks and tests. Usage: scripts/run_tests.sh [quick|full] [pytest arguments]
# quick: what neither starts a vLLM engine nor takes minutes (under 5 in all). full, the default: everything, on three engines: vLLM 0.32,
# vLLM 0.23, vllm-ascend on an emulated NPU. The arguments are for the first of them.
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
  exec pytest -m "not engine and not slow" "$@"
fi

# Every suite runs, whatever became of those before it, and the last line says how each went.
results=() status=0
suite() { # NAME FOLDER COMMAND...
  local name=$1 folder=$2
  shift 2
  if (cd "$folder" && "$@"); then
    results+=("$name passed")
  else
    results+=("$name FAILED")
    status=1
  fi
}
suite "vLLM 0.32" . pytest "$@"
suite "set-up of vLLM 0.23" . bash scripts/setup_vllm_023.sh
suite "vLLM 0.23" .venv-vllm-0.23/tree ../bin/python -m pytest -m portable tests/serving
# With an engine only, and without the soak, which has both modes itself.
asynchronous=(-m "portable and engine" --ignore=tests/serving/test_soak.py tests/serving)
suite "vLLM 0.32, asynchronous" . env LYNX_TEST_ASYNC=1 pytest "${asynchronous[@]}"
suite "vLLM 0.23, asynchronous" .venv-vllm-0.23/tree env LYNX_TEST_ASYNC=1 ../bin/python -m pytest "${asynchronous[@]}"
suite "set-up of the emulated NPU" . bash scripts/setup_emulated_npu.sh
suite "vllm-ascend on the emulated NPU" . .venv-npu/bin/python -m pytest tests/emulated_npu
printf -v line '%s, ' "${results[@]}"
echo "run_tests: ${line%, }"
exit "$status"
