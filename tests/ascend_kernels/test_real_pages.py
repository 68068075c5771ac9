"""The kernels on the cache of a real model: both payloads, and what either stream decodes to, are the reference's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.evaluation.kv import PromptKV, prefill
from lynx_ascend.evaluation.model import ensure_model
from lynx_ascend.evaluation.prompts import prompts
from tests.ascend_kernels.calls import TwinCase
from tests.ascend_kernels.cases import DTYPES
from tests.csrc.calls import raw_bytes

TOKENS = 600  # two pages and a tail
CONFIGS = {
    "default": CodecConfig(),
    "alpha 1": CodecConfig(alpha=1.0),
    "alg1": CodecConfig(codec="alg1"),
    "pair": CodecConfig(codec="pair"),
}


@pytest.fixture(scope="module")
def kv() -> PromptKV:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = ensure_model()
    (prompt,) = prompts(AutoTokenizer.from_pretrained(path), 1, [TOKENS])
    return prefill(AutoModelForCausalLM.from_pretrained(path), prompt)


def parts(kv: PromptKV) -> Iterator[tuple[str, torch.Tensor]]:
    """K and V of the first layer, one in the middle and the last."""
    for layer in (0, len(kv.keys) // 2, len(kv.keys) - 1):
        yield f"K {layer}", kv.keys[layer]
        yield f"V {layer}", kv.values[layer]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_payloads_and_values(kv: PromptKV, dtype: torch.dtype, config: CodecConfig) -> None:
    for name, part in parts(kv):
        case = TwinCase(part.to(dtype).contiguous(), config, cores=40)
        want = case.reference()
        anchor, residual = case.encode()
        got = {
            "anchor": raw_bytes(anchor),
            "residual": raw_bytes(residual),
            "anchor decode": raw_bytes(case.decode(anchor, None)),
            "full decode": raw_bytes(case.decode(anchor, residual)),
        }
        assert got.keys() == want.keys()
        for what, data in got.items():
            differ = int((data != want[what]).sum())
            assert not differ, f"{name}, {what}: {differ} bytes differ"
