#!/usr/bin/env bash
# Sets the project up and runs its demo. Usage: scripts/run_demo.sh [arguments of `lynx-ascend demo`]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bash "$root/scripts/setup_env.sh" >&2
exec "$root/.venv/bin/lynx-ascend" demo "$@"
