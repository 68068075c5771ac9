"""The views of vLLM's CPU cache: what its own kernel writes is found where the view says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lynx_ascend.serving.layout import LayoutError, layer_views

pytestmark = pytest.mark.portable


def config(block_size: int, heads: int, head_dim: int, *names: str) -> Any:
    spec = SimpleNamespace(block_size=block_size, num_kv_heads=heads, head_size=head_dim)
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=list(names))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("block_size", "heads", "head_dim"), [(32, 3, 64), (128, 2, 128), (64, 1, 96)])
def test_cpu_cache(dtype: torch.dtype, block_size: int, heads: int, head_dim: int) -> None:
    from vllm import _custom_ops as ops

    blocks = 4
    cache = torch.zeros(blocks, heads, block_size, 2 * head_dim, dtype=dtype)
    isa = "vec"
    (layer,) = layer_views({"l0": cache}, config(block_size, heads, head_dim, "l0"), isa)
    tokens = 2 * block_size - 5
    key, value = torch.randn(2, tokens, heads, head_dim).to(dtype)
    slots = torch.arange(tokens) % block_size + torch.tensor([3, 1])[torch.arange(tokens) // block_size] * block_size
    halves = cache.view(blocks, heads, 2 * block_size, head_dim).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(key, value, *halves, slots, isa)
    for view, written in ((layer.key, key), (layer.value, value)):
        assert view.shape == (blocks, block_size, heads, head_dim)
        found = view[slots // block_size, slots % block_size]
        assert torch.equal(found, written)
    before = cache.clone()
    layer.key[2] += 1.0  # the views are the cache, not a copy
    assert not torch.equal(cache[2], before[2]) and torch.equal(cache[1], before[1])


def test_pairs_are_taken_as_they_are() -> None:
    pair = tuple(torch.zeros(5, 128, 4, 64) for _ in range(2))
    layers = layer_views({"a": pair, "b": pair}, config(128, 4, 64, "a", "b"), None)
    assert [layer.index for layer in layers] == [0, 1]
    assert layers[1].key is pair[0] and layers[1].value is pair[1]


def test_unknown_layouts_are_refused() -> None:
    with pytest.raises(LayoutError, match="layer l0: KV cache of shape"):
        layer_views({"l0": torch.zeros(2, 3, 4, 5, 6)}, config(4, 3, 5, "l0"), "vec")
    with pytest.raises(LayoutError, match="a block is"):
        layer_views({"l0": (torch.zeros(5, 64, 4, 64),) * 2}, config(128, 4, 64, "l0"), None)
    two = config(128, 4, 64, "l0")
    two.kv_cache_groups *= 2
    with pytest.raises(LayoutError, match="2 KV cache groups"):
        layer_views({}, two, None)


def tiled(k: torch.Tensor, v: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> None:
    """Writes a block as AMX does, which few machines have: rows of 16 pairs of tokens beside each other."""
    tokens, heads, head_dim = k.shape
    for source, target in ((k, key), (v, value)):
        tiles = source.view(tokens // 16, 16, heads, head_dim // 2, 2).permute(2, 0, 3, 1, 4)
        target.copy_(tiles.reshape(heads, tokens, head_dim).unsqueeze(0))


def test_a_tiled_layout_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import _custom_ops as ops

    monkeypatch.setattr(ops, "cpu_attn_reshape_and_cache", tiled)
    cache = torch.zeros(2, 3, 32, 128, dtype=torch.bfloat16)
    with pytest.raises(LayoutError, match="K of attention kernel 'amx' has no strided layout"):
        layer_views({"l0": cache}, config(32, 3, 64, "l0"), "amx")


@pytest.mark.parametrize("isa", ["amx", "sve"])
def test_a_kernel_that_this_machine_lacks_or_whose_layout_is_tiled_is_refused(isa: str) -> None:
    cache = torch.zeros(2, 3, 32, 128, dtype=torch.bfloat16)
    with pytest.raises(LayoutError, match=f"attention kernel '{isa}' (has no strided|cannot write)"):
        layer_views({"l0": cache}, config(32, 3, 64, "l0"), isa)
