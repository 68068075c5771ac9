#!/usr/bin/env bash
# Puts vllm-router in front of a pair. Usage: scripts/serve_proxy.sh [PORT [PREFILL_URL [DECODE_URL [arguments of the router]]]]
# 8000, http://127.0.0.1:8100 and http://127.0.0.1:8200 if not given; HOST (127.0.0.1) is its address. More instances: --prefill URL, --decode URL.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
port=${1:-8000} prefill=${2:-http://127.0.0.1:8100} decode=${3:-http://127.0.0.1:8200}
shift $(($# < 3 ? $# : 3))
export PATH="$root/.venv/bin:$PATH"
exec python3 -m vllm_router.launch_router --host "${HOST:-127.0.0.1}" --port "$port" \
  --vllm-pd-disaggregation --prefill "$prefill" --decode "$decode" --kv-connector nixl "$@"
