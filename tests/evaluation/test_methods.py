"""Every evaluated method keeps the interface's promises: bytes and back, bounds, odd inputs, bad bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lynx_ascend.codec.baselines.cachegen import CacheGen
from lynx_ascend.codec.baselines.integers import ChannelInt, TensorInt
from lynx_ascend.codec.baselines.kivi import KIVI
from lynx_ascend.codec.baselines.kvquant import KVQuant
from lynx_ascend.codec.baselines.method import Context, Method
from lynx_ascend.codec.baselines.payload import PayloadError, Reader, pack_codes, seal, take_codes
from lynx_ascend.codec.baselines.sparq import SparQ
from lynx_ascend.codec.baselines.turboquant import _levels, _rotation
from lynx_ascend.evaluation.methods import DROPPING, METHODS, choose, fingerprint

SHAPES = ((1, 1, 1), (1, 3, 64), (2, 1, 5), (33, 2, 80), (127, 1, 16), (300, 3, 64))
EXACT = ("bf16", "bf16-msb", "sparq")
# Relative to the tensor's energy, on normal data of 300 tokens; what each format's step allows, with a margin.
LOOSEST = {
    "pair": 3e-5, "lynx": 3e-5, "alg1": 3e-4, "lynx-int8": 5e-4, "lynx-int4": 0.01, "int8": 5e-4, "int8-channel": 1e-4,
    "int8-chunk32": 5e-5, "int8-chunk64": 5e-5, "fp8-e4m3": 1e-3, "fp8-e5m2": 5e-3, "turboquant-8": 3e-4, "int4": 0.1,
    "int4-channel": 0.03, "int4-chunk32": 0.012, "int4-chunk64": 0.02, "turboquant-4": 0.012, "kivi-4": 0.012,
    "kivi-2": 0.3, "kvquant-4": 0.02, "kvquant-4-1%": 0.015, "cachegen": 0.2, "cachegen-fine": 0.02,
    "cachegen-finer": 0.01,
}  # fmt: skip


def context(x: Tensor, is_value: bool = False, layer: int = 1) -> Context:
    importance = torch.arange(x.shape[0] * x.shape[1], dtype=torch.float32).reshape(x.shape[:2]) * 7919 % 101
    return Context(layer, 3, is_value, importance)


def normal(shape: Sequence[int], dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_value", [False, True], ids="KV")
def test_bytes_and_back(name: str, shape: tuple[int, int, int], is_value: bool) -> None:
    method, x = METHODS[name], normal(shape)
    if name == "pair" and shape[2] % 4:
        with pytest.raises(ValueError, match="head_dim: "):
            method.encode(x, context(x, is_value))
        return
    streams = method.encode(x, context(x, is_value))
    assert len(streams) == method.num_streams and all(type(data) is bytes for data in streams)
    assert streams == method.encode(x.clone(), context(x, is_value))
    for count in range(1, len(streams) + 1):
        values, kept = method.decode(streams[:count])
        assert values.shape == x.shape and values.dtype == x.dtype and bool(values.isfinite().all())
        assert torch.equal(values, method.decode(streams[:count]).values)
        if kept is not None:
            assert name in DROPPING and kept.shape == x.shape[:2] and kept.dtype == torch.bool
            assert torch.equal(values[kept], x[kept]) and not values[~kept].any()
    if name in EXACT:
        assert torch.equal(values, x)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_other_types_come_back_as_they_were(name: str, dtype: torch.dtype) -> None:
    method, x = METHODS[name], normal((40, 2, 8), dtype)
    assert method.decode(method.encode(x, context(x))).values.dtype == dtype


@pytest.mark.parametrize("name", LOOSEST)
@pytest.mark.parametrize("is_value", [False, True], ids="KV")
def test_errors_are_what_the_formats_allow(name: str, is_value: bool) -> None:
    method, x = METHODS[name], normal((300, 3, 64))
    values = method.decode(method.encode(x, context(x, is_value))).values.float()
    error = float((values - x.float()).square().sum() / x.float().square().sum())
    assert LOOSEST[name] / 50 < error < LOOSEST[name]


def test_every_lossy_format_has_its_bound() -> None:
    assert LOOSEST.keys() | set(EXACT) | DROPPING == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3.5, 1e-8, 1e-38, 1000.0])
def test_constants(name: str, value: float) -> None:
    method, x = METHODS[name], torch.full((70, 2, 16), value, dtype=torch.bfloat16)
    values = method.decode(method.encode(x, context(x))).values.float()
    if name in DROPPING - {"sparq"}:
        return
    slack = {"turboquant-4": 0.5, "turboquant-8": 0.05, "kvquant-4": 0.002}.get(name, 0.01)
    # Below 1e-4 fp16 metadata may flush to zero.
    assert float((values - x.float()).abs().max()) <= slack * abs(value) + (1e-7 if abs(value) < 1e-4 else 0)


@pytest.mark.parametrize("name", METHODS)
def test_tiny_values_stay_tiny(name: str) -> None:
    method = METHODS[name]
    x = (normal((70, 2, 16), torch.float32) * 1e-30).bfloat16()
    assert float(method.decode(method.encode(x, context(x))).values.abs().max()) < 1e-29


@pytest.mark.parametrize("name", METHODS)
def test_a_large_token_does_not_break_it(name: str) -> None:
    """Values as large as real keys have, with one token that is far from the rest."""
    method, x = METHODS[name], normal((150, 2, 16)) * 0.1
    x[0] = 500.0
    values = method.decode(method.encode(x, context(x))).values
    assert float((values.float() - x.float()).abs().max()) <= 600


@given(st.integers(1, 90), st.integers(1, 3), st.integers(1, 33), st.sampled_from([4, 8]), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_affine_errors_are_within_half_a_step(tokens: int, heads: int, dim: int, bits: Any, seed: int) -> None:
    x = normal((tokens, heads, dim), torch.float32, seed) * 10
    for method, dims in ((TensorInt(bits), (0, 1, 2)), (ChannelInt(bits), (0,))):
        low, high = x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
        # fp16 metadata: a rounded minimum, and a rounded step as often as there are codes.
        bound = (high - low) / (2**bits - 1) / 2 + (low.abs() + (high - low)) * 2**-10
        error = (method.decode(method.encode(x, context(x))).values - x).abs()
        assert bool((error <= bound + 1e-6).all())


@given(st.lists(st.integers(0, 255), max_size=70), st.sampled_from([1, 2, 4, 8]))
def test_codes_are_packed_and_unpacked(values: list[int], bits: int) -> None:
    codes = torch.tensor(values, dtype=torch.uint8) & (2**bits - 1)
    packed = pack_codes(codes, bits)
    assert packed.numel() == -(-len(values) * bits // 8)
    reader = Reader(seal("test", torch.zeros(1, 1, 1), [packed]), "test")
    assert torch.equal(take_codes(reader, "codes", bits, len(values)), codes)
    reader.end()


@pytest.mark.parametrize("name", METHODS)
def test_bad_bytes_are_refused(name: str) -> None:
    method, x = METHODS[name], normal((140, 2, 16))
    streams = method.encode(x, context(x))
    for i, data in enumerate(streams):
        before, after = streams[:i], streams[i + 1 :]
        for bad in (b"", data[:10], data[:-1], data + b"\0", bytes([data[0] ^ 1]) + data[1:], data[:-1] + b"\x5a\xa5"):
            with pytest.raises(PayloadError, match=r"^(size|checksum): "):
                method.decode([*before, bad, *after])
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 16
        with pytest.raises(PayloadError, match=r"^checksum: "):
            method.decode([*before, bytes(flipped), *after])
    with pytest.raises(PayloadError, match=r"^streams: 0"):
        method.decode([])
    with pytest.raises(PayloadError, match=r"^streams: "):
        method.decode([*streams, streams[0]])
    other = TensorInt(4) if name != "int4" else TensorInt(8)
    with pytest.raises(PayloadError, match=r"^writer: "):
        method.decode([*other.encode(x, context(x)), *streams[1:]])
    if method.num_streams == 2:
        with pytest.raises(PayloadError, match=r"^writer: "):
            method.decode(streams[::-1])
        shorter = method.encode(x[:9], context(x[:9]))
        with pytest.raises(PayloadError, match=r"^shape: "):
            method.decode([streams[0], shorter[1]])


@pytest.mark.parametrize("name", METHODS)
def test_sealed_bytes_of_wrong_content_are_refused(name: str) -> None:
    """A payload that is too short or too long for its shape, with a right checksum."""
    method, x = METHODS[name], normal((140, 2, 16))
    streams = method.encode(x, context(x))
    for i, data in enumerate(streams):
        body = torch.frombuffer(bytearray(data[21:]), dtype=torch.uint8)
        for bad in (body[:-1], torch.cat([body, body[:1]]), body[:0]):
            sealed = seal(method._writer(i), x, [bad])
            with pytest.raises(PayloadError, match=r"^[a-z, ]+: "):
                method.decode([*streams[:i], sealed, *streams[i + 1 :]])


@pytest.mark.parametrize("name", METHODS)
def test_inputs_that_cannot_be_coded_are_refused(name: str) -> None:
    method, x = METHODS[name], normal((8, 2, 4))
    for bad, message in (
        (x[0], "x: torch.bfloat16"),
        (x[:0], "x: torch.bfloat16"),
        (x.double(), "x: torch.float64"),
        (x.masked_fill(x == x[3, 1, 2], float("nan")), "x: holds NaN or Inf"),
        (x.masked_fill(x == x[3, 1, 2], float("inf")), "x: holds NaN or Inf"),
    ):
        with pytest.raises(ValueError, match=message):
            method.encode(bad, context(x))


@pytest.mark.parametrize("name", ["int8-channel", "kivi-4", "kvquant-4-1%", "turboquant-4", "cachegen"])
def test_values_beyond_fp16_metadata_are_refused(name: str) -> None:
    x = normal((140, 2, 16))
    x[5] = 1e6
    with pytest.raises(ValueError, match=r"^x: a .* beyond"):
        METHODS[name].encode(x, context(x))


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bf16", 16),
        ("int8", 8),
        ("int4", 4),
        ("fp8-e4m3", 8),
        ("int4-chunk32", 5),
        ("turboquant-4", 4.25),
        ("lynx", 8.66),
        ("pair", 8.67),
    ],
)
def test_bits_are_those_of_the_format(name: str, bits: float) -> None:
    x = normal((4096, 3, 64))
    size = sum(map(len, METHODS[name].encode(x, context(x))))
    assert 8 * size / x.numel() == pytest.approx(bits, abs=0.01)


def test_kivi_keeps_its_window() -> None:
    x = normal((300, 2, 64))
    for is_value, first in ((False, 256), (True, 172)):
        values = KIVI(2).decode(KIVI(2).encode(x, context(x, is_value))).values
        assert torch.equal(values[first:], x[first:])
        assert bool((values[:first] != x[:first]).any((1, 2)).all())


def test_kvquant_sends_outliers_and_the_first_token_in_full() -> None:
    x = normal((401, 2, 8)).half()
    x[0] = 77.0
    x[100:102] = torch.tensor([40.0, -40.0], dtype=torch.half)[:, None, None]
    errors = []
    for outliers in (0.0, 0.01):
        method = KVQuant(4, outliers)
        values = method.decode(method.encode(x, context(x))).values
        assert torch.equal(values[0], x[0])
        errors.append(float((values[1:].float() - x[1:].float()).square().mean()))
    assert errors[1] < 0.7 * errors[0]
    assert torch.equal(values[100:102], x[100:102])


def test_levels_are_lloyds_for_the_normal_distribution() -> None:
    """Max's table: distortion of 4 levels 0.1175, of 16 levels 0.009497; the levels of 4: 0.4528 and 1.510."""
    assert torch.allclose(_levels(4), torch.tensor([-1.510, -0.4528, 0.4528, 1.510]), atol=1e-3)
    z = torch.special.ndtri((torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000)
    for count, distortion in ((4, 0.1175), (16, 0.009497)):
        levels = _levels(count).double()
        nearest = levels[torch.bucketize(z, (levels[1:] + levels[:-1]) / 2)]
        assert float((z - nearest).square().mean()) == pytest.approx(distortion, rel=0.01)


@pytest.mark.parametrize("dim", [1, 2, 64, 80, 128])
def test_rotations_are_orthogonal(dim: int) -> None:
    assert torch.allclose(_rotation(dim, 0) @ _rotation(dim, 0).T, torch.eye(dim), atol=1e-5)


def test_cachegen_is_coarser_in_later_layers() -> None:
    x = normal((400, 2, 32)).cumsum(0) * 0.1
    sizes = [len(METHODS["cachegen"].encode(x, context(x, layer=layer))[0]) for layer in range(3)]
    assert sizes[0] > sizes[1] > sizes[2]


def test_cachegen_spends_bits_where_channels_are_wide() -> None:
    """One width for all channels, and for each of them a distribution of its own: a wide one gets more bits."""
    wide = torch.ones(32)
    wide[:4] = 16.0
    method = CacheGen(bins=(0.5, 0.5, 0.5))
    x = normal((4000, 1, 32), torch.float32) * wide
    off = method.decode(method.encode(x, context(x))).values - x
    error = off[torch.arange(4000) % 10 != 0].square().mean((0, 1)).sqrt()
    # Differences have twice a token's variance; an even error over a width w has a deviation of w / sqrt(12).
    width = 0.5 * float((2 * wide.square()).mean().sqrt())
    assert torch.allclose(error[:4], torch.full((4,), width / 12**0.5), rtol=0.05)
    narrow = method.encode(x[..., 4:], context(x[..., 4:]))
    assert len(method.encode(x, context(x))[0]) < len(
        narrow[0]
    )  # narrow channels beside wide ones cost next to nothing


def test_heavy_hitters_keep_the_important_and_the_latest() -> None:
    x = normal((200, 2, 8))
    importance = torch.zeros(200, 2)
    importance[:36, 0] = 1.0
    importance[50:86, 1] = 1.0
    method = METHODS["scissorhands-50%"]
    kept = method.decode(method.encode(x, Context(0, 1, False, importance))).kept
    assert kept is not None
    wanted = torch.zeros(200, 2, dtype=torch.bool)
    wanted[-64:] = True
    assert torch.equal(kept, wanted | importance.bool())
    mask = method.visible(torch.zeros(6, 5, 8), torch.zeros(6, 200, 8), kept)
    assert mask is not None and torch.equal(mask[4, 0], kept[:, 1])
    few = method.decode(method.encode(x[:100], Context(0, 1, False, importance[:100]))).kept
    assert few is not None and torch.equal(few, (torch.arange(100) >= 50)[:, None].expand(-1, 2))
    with pytest.raises(ValueError, match="importance: None"):
        method.encode(x, Context(0, 1, False))


def test_sparq_sees_the_highest_scores() -> None:
    query, key = normal((2, 3, 8), torch.float32), normal((2, 50, 8), torch.float32, 1)
    mask = SparQ(components=8, top=7).visible(query, key, None)
    assert mask is not None and mask.sum(2).tolist() == [[7] * 3] * 2
    scores = query @ key.transpose(1, 2)
    assert bool((scores.masked_fill(~mask, torch.inf).amin(2) >= scores.masked_fill(mask, -torch.inf).amax(2)).all())
    assert SparQ(top=50).visible(query, key, None) is None


def test_choose_names_what_is_unknown() -> None:
    assert list(choose("int4,lynx")) == ["int4", "lynx"] and list(choose(None)) == list(METHODS)
    with pytest.raises(ValueError, match="methods: 'int5' is none of bf16, "):
        choose("int5")


OURS = {"pair", "lynx", "alg1", "lynx-int4"}


@pytest.mark.parametrize(
    ("changed", "whose"),
    [
        ("codec/baselines/kivi.py", {"kivi-4", "kivi-2"}),
        ("codec/baselines/payload.py", set(METHODS)),
        ("evaluation/methods.py", set()),
        ("evaluation/ours.py", OURS),
        *((name, OURS) for name in ("frame/header.py", "codec/cache.py", "codec/exact.py", "codec/ops.py")),
        *((name, OURS) for name in ("api.py", "paged.py", "methods.py", "buffers.py", "_C.")),
    ],
)
def test_a_fingerprint_is_of_parameters_and_code(
    changed: str, whose: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: fingerprint(method) for name, method in METHODS.items()}
    assert len(set(before.values())) == len(METHODS) and fingerprint(KIVI(4)) == before["kivi-4"]
    real, seen = Path.read_bytes, []

    def edited(path: Path) -> bytes:
        if f"/lynx_ascend/{changed}" in path.as_posix():
            seen.append(path)
            return real(path) + b"#"
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", edited)
    assert {name for name, method in METHODS.items() if fingerprint(method) != before[name]} == whose
    assert bool(seen) == bool(whose)


def test_methods_are_plain_values() -> None:
    for method in METHODS.values():
        assert isinstance(method, Method) and dataclasses.is_dataclass(method) and method.source
