"""The public API: tensors to frames and back, and every way frames can be wrong."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
import torch

from lynx_ascend import CodecConfig, EncodedKV, FrameError, encode
from lynx_ascend.codec import reference
from tests.frame.mutants import seal_again

CONFIGS = [
    CodecConfig(),
    CodecConfig(alpha=1.5, center="mean", sink_tokens=0),
    CodecConfig(codec="alg1"),
    CodecConfig(codec="alg1", alpha=0.0, center="midrange", chunk=16, page=48),
    CodecConfig(codec="pair"),
]


def normal(tokens: int, heads: int, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(tokens, heads, head_dim, generator=torch.Generator().manual_seed(tokens)).to(dtype)


def resealed(frame: bytes, offset: int, value: bytes) -> bytes:
    changed = bytearray(frame)
    changed[offset : offset + len(value)] = value
    seal_again(changed)
    return bytes(changed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("tokens", [1, 5, 256, 300])
def test_frames_restore_what_the_definition_gives(config: CodecConfig, tokens: int, dtype: torch.dtype) -> None:
    x = normal(tokens, 3, 20 if config.codec == "pair" else 21, dtype)
    encoded = encode(x, config)
    copy = EncodedKV.from_frames(anchor=encoded.frames("anchor"), residual=encoded.frames("residual"))
    assert copy.config == config and copy.shape == x.shape and copy.dtype == dtype
    pages = [
        (page, reference.encode_page(page, config, index * config.page), index * config.page)
        for index, page in enumerate(torch.split(x, config.page))
    ]
    for stream in ("anchor", "residual"):
        expected = [
            reference.decode_page(a, r if stream == "residual" else None, config, tuple(page.shape), dtype, start)
            for page, (a, r), start in pages
        ]
        assert torch.equal(copy.decode(stream), torch.cat(expected))
        assert torch.equal(encoded.decode(stream), copy.decode(stream))
        assert encoded.nbytes(stream) == sum(map(len, encoded.frames(stream)))
    assert [f[64:] for f in encoded.frames("anchor")] == [bytes(a.numpy()) for _, (a, _), _ in pages]
    assert [f[64:] for f in encoded.frames("residual")] == [bytes(r.numpy()) for _, (_, r), _ in pages]


@pytest.mark.parametrize(("tokens", "anchor", "both"), [(4000, 4.75, 8.8), (300, 5.4, 9.0)])
def test_bits_per_element(tokens: int, anchor: float, both: float) -> None:
    encoded = encode(normal(tokens, 3, 64))
    bits = [encoded.nbytes(stream) * 8 / (tokens * 3 * 64) for stream in ("anchor", "residual")]
    assert bits[0] <= anchor and sum(bits) <= both


def test_anchor_alone() -> None:
    x = normal(300, 2, 8)
    encoded = EncodedKV.from_frames(encode(x).frames("anchor"))
    assert torch.equal(encoded.decode("anchor"), encode(x).decode("anchor"))
    for call in (encoded.decode, encoded.nbytes, encoded.frames):
        with pytest.raises(ValueError, match="residual: not among"):
            call("residual")


def test_strides_do_not_matter() -> None:
    x = normal(70, 6, 16)
    for view in (x[::2, 1::2, 3:9], x.transpose(1, 2), x[..., ::2]):
        assert encode(view).frames("anchor") == encode(view.contiguous()).frames("anchor")
        assert torch.equal(encode(view).decode(), encode(view.contiguous()).decode())


def test_bad_input() -> None:
    for shape in ((3, 4), (0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1, 1)):
        with pytest.raises(ValueError, match="x: shape"):
            encode(torch.zeros(shape))
    for dtype in (torch.float64, torch.int32):
        with pytest.raises(ValueError, match=r"cache: torch.(float64|int32)"):
            encode(torch.zeros(4, 1, 4, dtype=dtype))
    with pytest.raises(ValueError, match="heads: 65537 does not fit 16 bits"):
        encode(torch.zeros(1, 65537, 1))
    x = normal(600, 2, 8)
    x[511, 1, 3] = float("inf")
    for codec in ("grid", "alg1", "pair"):
        with pytest.raises(ValueError, match="layer 0, K, page 1: holds NaN or Inf"):
            encode(x, CodecConfig(codec=codec))  # type: ignore[arg-type]


def test_missing_foreign_and_disordered_frames() -> None:
    encoded, other = encode(normal(600, 2, 8)), encode(normal(600, 2, 9))
    anchor, residual = encoded.frames("anchor"), encoded.frames("residual")
    cases = [
        ("anchor", None, [], None),
        ("page_index", 1, anchor[1:], None),
        ("page_index", 2, [anchor[0], anchor[2]], None),
        ("tokens", 2, [*anchor, anchor[2]], None),
        ("stream", 0, residual, residual),
        ("stream", 0, anchor, anchor),
        ("head_dim", 1, [anchor[0], other.frames("anchor")[1], anchor[2]], None),
        ("head_dim", 0, anchor, other.frames("residual")),
        ("page_index", 1, anchor, [residual[1], residual[0], residual[2]]),
        ("residual", 2, anchor, residual[:2]),
        ("size", None, [*anchor[:2], anchor[2][:63]], None),
        ("checksum", 1, [anchor[0], anchor[1][:-1] + b"\xa5", anchor[2]], None),
    ]
    for field, page, anchors, residuals in cases:
        with pytest.raises(FrameError) as caught:
            EncodedKV.from_frames(anchors, residuals)
        assert (caught.value.field, caught.value.page) == (field, page), str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_bad_metadata_under_a_valid_checksum_is_named(dtype: torch.dtype) -> None:
    x = normal(40, 1, 4, dtype)
    bad = {torch.bfloat16: b"\xc0\x7f", torch.float16: b"\x00\x7e", torch.float32: b"\x00\x00\xc0\x7f"}[dtype]
    size = dtype.itemsize
    anchor = encode(x).frames("anchor")[0]
    swapped = anchor[64 + 4 * size : 64 + 8 * size] + anchor[64 : 64 + 4 * size]
    cases = {
        "gamma_min": resealed(anchor, 64 + 2 * size, bad),
        "gamma_max": resealed(anchor, 64 + 7 * size, bad),
        "sink": resealed(anchor, 64 + 8 * size + 2 * 2 * 4, bad),
    }
    for field, frame in [*cases.items(), ("gamma_max", resealed(anchor, 64, swapped))]:
        with pytest.raises(FrameError, match="page 0") as caught:
            EncodedKV.from_frames([frame])
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "part", "value"),
    [
        ("gamma_min", 0, -3.4e38),  # finite in fp32, but not in the bf16 that is decoded to
        ("gamma_max", 1, 3.4e38),
        ("mu", 2, 1.5),
        ("mu", 3, float("nan")),
        ("sigma", 4, -0.1),
        ("sigma", 5, 1.1),
    ],
)
def test_bad_fp32_metadata(field: str, part: int, value: float) -> None:
    anchor = encode(normal(40, 1, 4), CodecConfig(codec="alg1")).frames("anchor")[0]
    with pytest.raises(FrameError) as caught:
        EncodedKV.from_frames([resealed(anchor, 64 + part * 16 + 4, struct.pack("<f", value))])
    assert caught.value.field == field


def test_payload_size_that_the_other_fields_contradict() -> None:
    anchor = encode(normal(40, 1, 4)).frames("anchor")[0]
    with pytest.raises(FrameError, match="payload_bytes"):
        EncodedKV.from_frames([resealed(anchor, 14, struct.pack("<H", 39))])


def test_import_is_light() -> None:
    code = "import sys, lynx_ascend; print(*({'vllm', 'transformers', 'numba', 'gguf'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_importing_the_package_registers_the_ops() -> None:
    code = "import lynx_ascend, torch; torch.ops.lynx_ascend.encode.default, torch.ops.lynx_ascend.decode.default"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
