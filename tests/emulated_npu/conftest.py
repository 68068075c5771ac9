"""Tests of the emulated NPU and of vllm-ascend on it: only where torch_npu is, which is .venv-npu (or a real NPU's)."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch_npu") else ["*"]
