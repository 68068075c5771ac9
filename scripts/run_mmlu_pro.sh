#!/usr/bin/env bash
# Sets the project up and asks a model MMLU-Pro's questions on every method's cache.
# Usage: scripts/run_mmlu_pro.sh --data FILE_OR_DIR [--limit N] [arguments of `lynx-ascend eval mmlu-pro`]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bash "$root/scripts/setup_env.sh" >&2
exec "$root/.venv/bin/lynx-ascend" eval mmlu-pro "$@"
