"""What the twin's instructions compute, against NumPy and PyTorch."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

NONE, RINT, FLOOR, CEIL, ROUND, TRUNC, ODD = range(7)  # AscendC::RoundMode
Array = np.ndarray[Any, Any]


def run(twin: ModuleType, kernel: str, x: Array, dtype: Any, *values: bytes, size: int | None = None) -> Array:
    """y of a kernel (x, y, values...)."""
    y = np.zeros(x.size if size is None else size, dtype)
    twin.launch(kernel, 1, [(x.ctypes.data, x.nbytes), (y.ctypes.data, y.nbytes), *values])
    return y


def cast(twin: ModuleType, kernel: str, x: Array, dtype: Any, mode: int) -> Array:
    return run(twin, kernel, x, dtype, struct.pack("i", x.size), struct.pack("i", mode))


def floats(count: int = 8192) -> Array:
    """Of all magnitudes that half has, halfway cases among them."""
    random = np.random.default_rng(1)
    halves = random.integers(0, 0x7BFF, count, dtype=np.uint16).view(np.float16).astype(np.float32)
    up = np.nextafter(halves.astype(np.float16), np.float16(np.inf)).astype(np.float32)
    mixed = halves + (up - halves) * random.choice([0, 0.25, 0.5, 0.75], count).astype(np.float32)
    mixed[np.isinf(mixed)] = 1
    return np.asarray(mixed * random.choice([-1, 1], count), np.float32)


def test_float_to_half_and_back(twin: ModuleType) -> None:
    x = floats()
    assert np.array_equal(cast(twin, "float_to_half", x, np.float16, RINT), x.astype(np.float16))
    assert np.array_equal(cast(twin, "float_to_half", x, np.float16, NONE), x.astype(np.float16))
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for part in np.split(every, 8):
        assert np.array_equal(
            cast(twin, "half_to_float", part, np.float32, NONE), part.astype(np.float32), equal_nan=True
        )


@pytest.mark.parametrize("mode", [FLOOR, CEIL, ROUND, TRUNC, ODD])
def test_float_to_half_modes(twin: ModuleType, mode: int) -> None:
    x = floats()
    near = x.astype(np.float16)
    below = np.where(near.astype(np.float32) <= x, near, np.nextafter(near, np.float16(-np.inf)))
    above = np.where(near.astype(np.float32) >= x, near, np.nextafter(near, np.float16(np.inf)))
    middle = (below.astype(np.float64) + above.astype(np.float64)) / 2
    inner, outer = np.where(x < 0, above, below), np.where(x < 0, below, above)
    expected = {
        FLOOR: below,
        CEIL: above,
        TRUNC: inner,
        ROUND: np.where(np.abs(x) >= np.abs(middle), outer, inner),
        ODD: np.where(inner == outer, inner, np.where(inner.view(np.uint16) % 2 == 1, inner, outer)),
    }[mode]
    assert np.array_equal(cast(twin, "float_to_half", x, np.float16, mode), expected)


def test_float_to_bfloat16_and_back(twin: ModuleType) -> None:
    bits = np.random.default_rng(2).integers(0, 1 << 32, 8192, dtype=np.uint32)
    bits[:4096] = bits[:4096] & 0xFFFF0000 | 0x8000  # halfway
    x = bits.view(np.float32)
    x = np.where(np.abs(x) < 3e38, x, np.float32(1))
    expected = torch.from_numpy(x).bfloat16()
    got = cast(twin, "float_to_bf16", x, np.uint16, RINT)
    assert np.array_equal(got, expected.view(torch.uint16).numpy())
    assert np.array_equal(cast(twin, "bf16_to_float", got, np.float32, NONE), expected.float().numpy())


def test_nibbles(twin: ModuleType) -> None:
    """Two to a byte, the even element in the low one; out of range saturates."""
    values = np.array([-9, -8, -7.5, -0.5, 0.5, 1.5, 7, 8] * 32, np.float16)
    packed = cast(twin, "half_to_int4", values, np.uint8, RINT)[: values.size // 2]
    low, high = packed & 15, packed >> 4
    codes = np.stack([low, high], 1).reshape(-1).astype(np.int8)
    codes[codes > 7] -= 16
    assert codes[:8].tolist() == [-8, -8, -8, 0, 0, 2, 7, 7]
    floored = cast(twin, "half_to_int4", values, np.uint8, FLOOR)
    assert floored[:4].tolist() == [0x88, 0xF8, 0x10, 0x77]
    every = np.arange(256, dtype=np.uint8)
    unpacked = run(twin, "int4_to_half", every, np.float16, struct.pack("i", 512), struct.pack("i", NONE), size=512)
    expected = np.stack([(every << 4).view(np.int8) >> 4, every.view(np.int8) >> 4], 1).reshape(-1)
    assert np.array_equal(unpacked, expected.astype(np.float16))


def test_whole_numbers(twin: ModuleType) -> None:
    every = np.arange(256, dtype=np.uint8)
    assert np.array_equal(cast(twin, "uint8_to_half", every, np.float16, NONE), every.astype(np.float16))
    x = np.array([0.5, 1.5, 2.5, 254.5, 255.5, 300, 0.25, 1.75], np.float16)
    assert cast(twin, "half_to_uint8", x, np.uint8, RINT).tolist() == [0, 2, 2, 254, 255, 255, 0, 2]
    x32 = np.array([-2.5, -1.5, 1.5, 2.5, 1e6, -1e6, np.nan, 32767.5], np.float32)
    assert cast(twin, "float_to_int16", x32, np.int16, RINT).tolist() == [-2, -2, 2, 2, 32767, -32768, 0, 32767]
    assert cast(twin, "float_to_int16", x32, np.int16, CEIL).tolist() == [-2, -1, 2, 3, 32767, -32768, 0, 32767]
    assert cast(twin, "half_to_int32", np.array([-3.5, 65504], np.float16), np.int32, RINT).tolist() == [-4, 65504]
    whole = np.array([2049, 2051, -7, 0], np.int16)
    assert np.array_equal(cast(twin, "int16_to_half", whole, np.float16, NONE), whole.astype(np.float16))


@pytest.mark.parametrize(("kernel", "mode"), [("int16_to_int8", NONE), ("half_to_bf16", RINT), ("float_to_bf16", ODD)])
def test_casts_that_a2_does_not_have(twin: ModuleType, kernel: str, mode: int) -> None:
    with pytest.raises(twin.TwinError, match=r"Cast: cast: .* is not in A2's table"):
        cast(twin, kernel, np.zeros(64, np.float32), np.float32, mode)


def test_every_operation_rounds_once(twin: ModuleType) -> None:
    x = np.random.default_rng(3).standard_normal(4001).astype(np.float32)
    a, b = np.float32(1.1), np.float32(-0.7)
    got = run(twin, "scale_float", x, np.float32, struct.pack("i", x.size), struct.pack("f", a), struct.pack("f", b))
    assert np.array_equal(got, x * a + b)
    fused = (x.astype(np.float64) * a + b).astype(np.float32)
    assert not np.array_equal(got, fused)  # so the numbers would have shown a fused multiply-add
    h = x.astype(np.float16)
    got = run(twin, "scale_half", h, np.float16, struct.pack("i", h.size), struct.pack("f", a), struct.pack("f", b))
    assert np.array_equal(got, h * np.float16(a) + np.float16(b))


def test_integers_wrap(twin: ModuleType) -> None:
    x = np.arange(-32768, 32768, 64).astype(np.int16)
    got = run(twin, "scale_int16", x, np.int16, struct.pack("i", x.size), struct.pack("h", 257), struct.pack("h", 999))
    assert np.array_equal(got, x * np.int16(257) + np.int16(999))


def test_bits(twin: ModuleType) -> None:
    x = np.random.default_rng(4).integers(-32768, 32768, 512).astype(np.int16)
    got = run(twin, "bits_int16", x, np.int16, struct.pack("i", 512), struct.pack("h", 3))
    assert np.array_equal(got[:256], ~(x[:256] & 0x0FF0 | x[:256]))
    assert np.array_equal(got[256:], x[:256] >> 3)


def test_select_and_gather(twin: ModuleType) -> None:
    x = np.random.default_rng(5).standard_normal(640).astype(np.float32)
    got = run(twin, "select_float", x, np.float32, struct.pack("i", 640))
    assert np.array_equal(got, np.where(x < 0, x, np.float32(7)))
    offsets = np.random.default_rng(6).integers(0, 64, 300, dtype=np.uint32)
    both = np.concatenate([x[:64], (offsets * 4).view(np.float32)])
    assert np.array_equal(run(twin, "gather_float", both, np.float32, struct.pack("i", 300), size=300), x[:64][offsets])


def test_strides(twin: ModuleType) -> None:
    x = np.random.default_rng(7).standard_normal((9, 64)).astype(np.float32)
    got = run(twin, "rows_float", x, np.float32, struct.pack("i", 9)).reshape(9, 64)
    expected = x - x[0]
    expected[0] += expected[1]
    assert np.array_equal(got, expected)
    rows = np.random.default_rng(8).integers(0, 256, (20, 100), dtype=np.uint8)
    got = run(twin, "strided_copy", rows, np.uint8, *(struct.pack("i", i) for i in (20, 37, 100)), size=20 * 37)
    assert np.array_equal(got.reshape(20, 37), rows[:, :37])


def test_blocks_and_padding(twin: ModuleType) -> None:
    x = np.random.default_rng(9).standard_normal((7, 2, 16)).astype(np.float32)
    got = run(twin, "block_copy", x, np.float32, struct.pack("i", 7), size=7 * 16)
    assert np.array_equal(got.reshape(7, 16), x[:, 0])
    rows = np.arange(1, 31, dtype=np.float16).reshape(6, 5)
    six, padded = struct.pack("i", 6), struct.pack("i", 1)
    got = run(twin, "padded_copy", rows, np.float16, six, padded, size=6 * 16).reshape(6, 16)
    assert np.array_equal(got, np.pad(rows, ((0, 0), (3, 8)), constant_values=9))
    # Without padding the first element fills the block; padding without a value is random: nothing may read it.
    got = run(twin, "padded_copy", rows, np.float16, six, struct.pack("i", 0), size=6 * 16).reshape(6, 16)
    assert np.array_equal(got, np.concatenate([rows, np.repeat(rows[:, :1], 11, axis=1)], axis=1))
    with pytest.raises(twin.TwinError, match="undefined"):
        run(twin, "padded_copy", rows, np.float16, six, struct.pack("i", 2), size=6 * 16)
