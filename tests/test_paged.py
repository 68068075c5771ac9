"""Every method through a paged cache with permuted blocks, as serving uses it."""

from __future__ import annotations

import struct

import pytest
import torch

from lynx_ascend.codec.config import CodecConfig, Stream
from lynx_ascend.frame import HEADER_BYTES, Frame, FrameError, parse, seal
from lynx_ascend.paged import (
    METHODS,
    NonFiniteError,
    PagedKV,
    PageEncoder,
    decode_page,
    frame_header,
    frames_expected,
    streams,
    wire_bytes,
)

BLOCK, HEADS, DIM = 16, 3, 12


def paged(tokens: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0, transposed: bool = False) -> PagedKV:
    """The K half of a cache [2, blocks, block_size, heads, dim], seen through permuted block ids.

    transposed: a block's memory is [heads, dim, block_size], as vLLM's CPU kernels keep K.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-tokens // BLOCK)
    cache = torch.randn(2, blocks + 5, BLOCK, HEADS, DIM, generator=generator).to(dtype)
    if transposed:
        cache = cache.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    return PagedKV(cache[0], torch.randperm(blocks + 5, generator=generator)[:blocks])


def encoder(method: str, source: PagedKV, tokens: int, config: CodecConfig | None = None) -> PageEncoder:
    return PageEncoder(method, source, tokens, layer=3, is_value=True, generation=7, config=config)


def parsed(frames: dict[Stream, bytearray]) -> tuple[Frame, Frame | None]:
    views = {stream: parse(frame) for stream, frame in frames.items()}
    return views[Stream.ANCHOR], views.get(Stream.RESIDUAL)


def transfer(method: str, source: PagedKV, tokens: int, target: PagedKV, first: int = 0) -> None:
    pages = encoder(method, source, tokens)
    for index in range(pages.num_pages):
        decode_page(*parsed(pages.page(index)), target, first=first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transposed", [False, True])
def test_transfer_between_caches(method: str, dtype: torch.dtype, transposed: bool) -> None:
    tokens = 531
    source, target = (
        paged(tokens, dtype, transposed=transposed),
        paged(tokens, dtype, seed=1, transposed=not transposed),
    )
    untouched = target.cache.clone()
    first = 37
    transfer(method, source, tokens, target, first)
    x, y = source.gather(0, tokens), target.gather(0, tokens)
    limit = {"bf16": 0.0, "int8": 0.02, "int4": 0.31, "lynx": 0.02, "alg1": 0.08, "pair": 0.02}[method]
    assert float((x[first:].float() - y[first:].float()).abs().max()) <= limit
    # Nothing else may change: tokens before `first`, the last block's tail, blocks of others.
    target.scatter(first, PagedKV(untouched, target.block_ids).gather(first, tokens - first))
    assert torch.equal(target.cache, untouched)


@pytest.mark.parametrize("method", METHODS)
def test_sizes_and_headers_are_known_beforehand(method: str) -> None:
    tokens, config = 531, None
    pages = encoder(method, paged(tokens), tokens)
    total = dict.fromkeys(streams(method), 0)
    for stream, index in frames_expected(method, tokens, 256):
        frame = pages.page(index)[stream]
        total[stream] += len(frame)
        expected = frame_header(
            method, stream, index, tokens=tokens, heads=HEADS, head_dim=DIM, dtype=torch.bfloat16, layer=3,
            is_value=True, generation=7, config=config,
        )  # fmt: skip
        assert parse(frame, expected).header == expected
    assert total == wire_bytes(method, tokens, heads=HEADS, head_dim=DIM, dtype=torch.bfloat16)
    assert pages.num_pages == 3 and len(frames_expected(method, tokens, 256)) == 3 * len(streams(method))


def test_raw_is_exact_and_linear_is_per_tensor() -> None:
    source = paged(300)
    source.cache[source.block_ids[18], 11] = 50.0  # token 299, on the second page, widens the first page's steps
    step = (50.0 - float(source.gather(0, 300).min())) / 255
    target = paged(300, seed=1)
    transfer("int8", source, 300, target)
    error = (source.gather(0, 256).float() - target.gather(0, 256).float()).abs().max()
    assert step / 4 < float(error) <= step / 2 + 2.0**-8 * 4
    transfer("bf16", source, 300, target)
    assert torch.equal(source.gather(0, 300), target.gather(0, 300))


@pytest.mark.parametrize("method", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_linear_extremes(method: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for values in ([largest, -largest, 0.0], [2.5, 2.5, 2.5], [0.0, -0.0, 0.0], [largest] * 3):
        x = torch.tensor(values, dtype=dtype).repeat(7, 1, 1).view(1, 7, 3, 1)
        source, target = (
            PagedKV(x, torch.zeros(1, dtype=torch.int64)),
            PagedKV(torch.ones_like(x), torch.zeros(1, dtype=torch.int64)),
        )
        transfer(method, source, 7, target)
        steps = 255 if method == "int8" else 15
        error = (x.double() - target.cache.double()).abs().max()
        assert float(error) <= (max(values) - min(values)) / steps / 2 * 1.02
        assert bool(target.cache.isfinite().all())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_non_finite_names_layer_and_page(method: str, bad: float) -> None:
    source = paged(300)
    source.cache[source.block_ids[17], 3, 1, 2] = bad  # token 275
    with pytest.raises(NonFiniteError, match="layer 3, V, page 1: holds NaN or Inf") as caught:
        pages = encoder(method, source, 300)
        pages.page(0)
        pages.page(1)
    assert (caught.value.layer, caught.value.is_value, caught.value.page) == (3, True, 1)


def test_frames_that_do_not_fit_the_target() -> None:
    tokens = 300
    source = paged(tokens)
    anchor, residual = parsed(encoder("lynx", source, tokens).page(1))
    raw, _ = parsed(encoder("bf16", source, tokens).page(1))
    other_page = parsed(encoder("lynx", source, tokens).page(0))[1]
    target = paged(tokens)
    assert residual is not None
    ids = target.block_ids
    cases = [
        ("stream", residual, None, target),
        ("dtype", anchor, residual, PagedKV(target.cache.half(), ids)),
        ("heads", anchor, residual, PagedKV(target.cache[:, :, 1:], ids)),
        ("head_dim", anchor, residual, PagedKV(target.cache[..., 1:], ids)),
        ("tokens", anchor, residual, PagedKV(target.cache, ids[:-1])),
        ("page_index", anchor, other_page, target),
        ("codec", raw, residual, target),
    ]
    before = target.cache.clone()
    for field, first, second, where in cases:
        with pytest.raises(FrameError) as caught:
            decode_page(first, second, where)
        assert caught.value.field == field
    assert torch.equal(target.cache, before)


@pytest.mark.parametrize(
    ("field", "offset", "value"), [("low", 0, float("nan")), ("scale", 4, -1.0), ("scale", 4, float("inf"))]
)
def test_linear_range_is_checked(field: str, offset: int, value: float) -> None:
    source = paged(40)
    frame = encoder("int8", source, 40).page(0)[Stream.ANCHOR]
    header = parse(frame).header
    struct.pack_into("<f", frame, HEADER_BYTES + offset, value)
    seal(frame, header)
    before = source.cache.clone()
    with pytest.raises(FrameError, match=f"^ANCHOR stream, page 0: {field}: "):
        decode_page(parse(frame), None, source)
    assert torch.equal(source.cache, before)


def test_malformed_caches_and_arguments() -> None:
    kv = paged(40)
    ids = kv.block_ids
    cases = [
        ("block_ids", PagedKV(kv.cache, ids[:2]), 40),
        ("block_ids", PagedKV(kv.cache, ids.int()), 40),
        ("block_ids", PagedKV(kv.cache, ids - 100), 40),
        ("block_ids", PagedKV(kv.cache, ids + 100), 40),
        ("cache", PagedKV(kv.cache[0], ids), 40),
        ("cache", PagedKV(kv.cache.double(), ids), 40),
        ("tokens", kv, 0),
    ]
    for name, source, tokens in cases:
        for method in ("bf16", "lynx"):
            with pytest.raises(ValueError, match=f"^{name}: "):
                encoder(method, source, tokens)
    with pytest.raises(IndexError, match="page 1 is outside"):
        encoder("lynx", kv, 40).page(1)
    with pytest.raises(ValueError, match="method: 'gzip' is none of"):
        encoder("gzip", kv, 40)
    with pytest.raises(ValueError, match="codec: 'grid' is not 'alg1'"):
        encoder("alg1", kv, 40, CodecConfig())
    with pytest.raises(ValueError, match="exact"):
        encoder("lynx", kv, 40, CodecConfig(exact=True))
