#!/usr/bin/env bash
# The first hour on an NPU: what is installed, the order of nibbles, then every kernel test that a real NPU can run.
# Usage: verify_on_npu.sh [PYTHON]. docs/ascend.md says what each part proves. Exits with 2 where there is no NPU, 1 where a check failed.
# On the emulated device (PYTHON=.venv-npu/bin/python) it shows that this script works, and says that it is emulated.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

echo "== environment"
"$python" tests/emulated_npu/verify.py environment
code=$?
if [ "$code" -ne 0 ]; then
  exit "$code"
fi

failed=()
check() {
  echo "== $1"
  shift
  "$@" || failed+=("${*: -1}")
}
check "the order of nibbles" "$python" tests/emulated_npu/verify.py nibbles
if [ "${#failed[@]}" -gt 0 ]; then
  echo "verify_on_npu: FAILED: nibbles; nothing after it would mean anything"
  exit 1
fi
pytest=("$python" -m pytest -q -p no:cacheprovider)
check "bytes against the CPU's" "${pytest[@]}" tests/emulated_npu/test_dispatch.py
check "streams" "${pytest[@]}" tests/emulated_npu/test_dispatch_streams.py
check "arguments" "${pytest[@]}" tests/emulated_npu/test_dispatch_arguments.py
check "the kernels on this host's twin" "${pytest[@]}" -m "not slow" tests/ascend_kernels

if [ "${#failed[@]}" -gt 0 ]; then
  echo "verify_on_npu: FAILED: ${failed[*]}"
  exit 1
fi
echo "verify_on_npu: all passed on $("$python" tests/emulated_npu/verify.py device)"
