"""Inputs shared by the codec's tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param
