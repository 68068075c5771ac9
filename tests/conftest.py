"""The environment that all tests run in; set before anything imports vLLM or PyTorch."""

from __future__ import annotations

import os

os.environ.update(
    OMP_NUM_THREADS="1",
    OMP_WAIT_POLICY="passive",
    HF_HUB_OFFLINE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_USE_V2_MODEL_RUNNER="0",
    VLLM_CPU_KVCACHE_SPACE="2",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_NO_USAGE_STATS="1",
)
