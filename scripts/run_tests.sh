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

# Every suite runs, whatever became of those before it, in two lanes side by side, since a test keeps one core busy. The
# first lane's output is shown as it comes; of the second lane a line for each suite, and all that a suite which failed printed.
logs=$PWD/build/tests
rm -rf "$logs"
mkdir -p "$logs"
touch "$logs/results"
suite() { # NAME FOLDER COMMAND...
  local name=$1 folder=$2 result=passed start=$SECONDS log
  log=$logs/$name.log
  shift 2
  if [ "$lane" = 1 ]; then
    (cd "$folder" && "$@") 2>&1 | tee "$log" || result=FAILED
  else
    (cd "$folder" && "$@") >"$log" 2>&1 || { result=FAILED && cat "$log"; }
  fi
  echo "run_tests: $name $result, $(((SECONDS - start + 30) / 60)) min" | tee -a "$logs/results"
}
# With an engine only, and without the soak, which has both modes itself.
asynchronous=(-m "portable and engine" --ignore=tests/serving/test_soak.py tests/serving)
first_lane() {
  suite "set-up of vLLM 0.23" . bash scripts/setup_vllm_023.sh
  suite "set-up of the emulated NPU" . bash scripts/setup_emulated_npu.sh
  suite "vLLM 0.32" . pytest "$@"
}
second_lane() {
  suite "vLLM 0.32, asynchronous" . env LYNX_TEST_ASYNC=1 pytest "${asynchronous[@]}"
  until grep -q "set-up of the emulated NPU" "$logs/results"; do sleep 1; done # the first lane's, sooner than this
  suite "vllm-ascend on the emulated NPU" . .venv-npu/bin/python -m pytest tests/emulated_npu
  suite "vLLM 0.23" .venv-vllm-0.23/tree ../bin/python -m pytest -m portable tests/serving
  suite "vLLM 0.23, asynchronous" .venv-vllm-0.23/tree env LYNX_TEST_ASYNC=1 ../bin/python -m pytest "${asynchronous[@]}"
}
set -m # the second lane is a process group, which ends with this script
lane=2 second_lane &
second=$!
trap 'kill -- -$second 2>/dev/null || true' EXIT
set +m
lane=1 first_lane "$@"
wait "$second" || echo "run_tests: the second lane FAILED, it ended before its suites" >>"$logs/results"
echo "run_tests: all suites"
cat "$logs/results"
! grep -q FAILED "$logs/results"
