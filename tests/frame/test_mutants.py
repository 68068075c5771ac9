"""Whatever bytes arrive, a receiver ends in a FrameError that names a field, or in the right value."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lynx_ascend import CodecConfig, EncodedKV, encode
from lynx_ascend.codec.baselines import raw
from lynx_ascend.codec.config import Stream
from lynx_ascend.frame import HEADER_BYTES, FrameError, FrameHeader, parse, seal
from lynx_ascend.methods import frame_header
from lynx_ascend.paged import PagedKV, PageEncoder, decode_page
from tests.frame.campaign import CPU_SECONDS, MEMORY_BYTES, OTHER, SAME, UNCHANGED, Corpus, Tally, judge, run
from tests.frame.mutants import Mutant, seal_again
from tests.frame.receiver import FIELDS, fuzz_one, receive

# Every check that a receiver without knowledge of the header makes must be met by some mutant. The others hold frames
# against each other or against what is expected.
CHECKS = FIELDS - {"head_offset", "layer", "generation", "is_value", "residual"}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus()


def one_page(x: torch.Tensor, method: str, config: CodecConfig) -> dict[Stream, bytearray]:
    source = PagedKV(x.unsqueeze(0), torch.zeros(1, dtype=torch.int64))
    return PageEncoder(method, source, x.shape[0], layer=0, is_value=False, generation=0, config=config).page(0)


def test_seeded_mutants() -> None:
    tally = run(20_000, seed=1, workers=1)
    assert tally.failures == []
    for key in ((False, False), (False, True), (True, False), (True, True)):
        assert sum(number for (column, _), number in tally.counts.items() if column == key) == 10_000
    assert {row for (_, known), row in tally.counts if not known} >= CHECKS | {UNCHANGED, SAME, OTHER}
    damaged = {row for (sealed, _), row in tally.counts if not sealed}
    assert "checksum" in damaged and not damaged & {SAME, OTHER}
    assert tally.slowest < CPU_SECONDS / 2 and tally.growth < MEMORY_BYTES


def _hang(index: int, seed: int, corpus: Corpus, tally: Tally) -> None:
    while index == 3:
        pass


def _allocate(index: int, seed: int, corpus: Corpus, tally: Tally) -> None:
    if index == 3:
        torch.empty(2 * MEMORY_BYTES, dtype=torch.uint8)  # never touched


@pytest.mark.parametrize("examine", [_hang, _allocate])
def test_a_hang_and_an_allocation_would_be_found(examine: object) -> None:
    with pytest.raises(RuntimeError, match="mutant 3 of seed 0"):
        run(10, seed=0, workers=1, examine=examine)  # type: ignore[arg-type]


def test_a_missing_check_would_be_found(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in corpus.small if seed.name.startswith("RAW torch.float32 (8, 2, 4)"))
    frame = bytearray(seed.frames[0])
    struct.pack_into("<f", frame, HEADER_BYTES + 8, float("nan"))
    damaged = Mutant(seed, (bytes(frame),), False, ())
    assert judge(damaged, corpus) == {False: "checksum", True: "checksum"}
    seal_again(frame)
    sealed = Mutant(seed, (bytes(frame),), True, ())
    assert judge(sealed, corpus) == {False: "values", True: "values"}
    monkeypatch.setattr(raw, "bad_values", lambda payload, dtype: None)
    with pytest.raises(AssertionError, match="not finite"):
        judge(sealed, corpus)


@given(st.lists(st.binary(max_size=200), max_size=3), st.booleans())
def test_junk_has_no_other_end(parts: list[bytes], with_lengths: bool) -> None:
    fuzz_one(b"".join((len(part).to_bytes(4, "little") if with_lengths else b"") + part for part in parts))


def test_the_fuzz_target_reads_frames(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("tests.frame.receiver.receive", lambda frames: seen.append((frames, receive(frames))))
    for seed in corpus.small[:4]:
        fuzz_one(b"".join(len(frame).to_bytes(4, "little") + frame for frame in seed.frames))
        frames, verdict = seen.pop()
        assert frames == seed.frames and verdict.field == (None if not seed.before else "page_index")


@pytest.mark.parametrize("declared", [2**28, 2**32 - 1])
def test_sizes_that_a_header_declares_are_not_allocated(declared: int) -> None:
    header = frame_header(
        "int4", Stream.ANCHOR, 0, tokens=8191, heads=256, head_dim=256, dtype=torch.float32, layer=0, is_value=False,
        generation=0, config=CodecConfig(page=8192),
    )  # fmt: skip
    assert 0 < 2**28 - header.payload_bytes < 2**15
    frame = bytearray(header.pack() + bytes(100))
    cut_off = bytearray(frame)
    struct.pack_into("<I", frame, 44, declared)
    for data in (frame, cut_off):
        seal_again(data)
        tracemalloc.start()
        with pytest.raises(FrameError, match="payload_bytes"):
            parse(data)
        with pytest.raises(FrameError, match="payload_bytes"):
            EncodedKV.from_frames([bytes(data)])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_raw_values_must_be_finite(dtype: torch.dtype, bad: float) -> None:
    frame = one_page(torch.ones(3, 1, 5, dtype=dtype), "bf16", CodecConfig())[Stream.ANCHOR]
    torch.frombuffer(frame, dtype=dtype)[-2] = bad
    seal(frame, FrameHeader.unpack(frame)[0])
    with pytest.raises(FrameError, match=r"^ANCHOR stream, page 0: values: "):
        EncodedKV.from_frames([frame])


@pytest.mark.parametrize(("method", "stream"), [("int4", 0), ("lynx", 0), ("lynx", 1), ("alg1", 1)])
def test_the_nibble_left_over_is_zero(method: str, stream: int) -> None:
    config = CodecConfig("alg1" if method == "alg1" else "grid")
    frames = one_page(torch.ones(5, 1, 3, dtype=torch.float16), method, config)  # 15 codes, 3 in split codecs
    frame = frames[Stream(stream)]
    assert frame[-1] < 16
    frame[-1] |= 0x10
    seal(frame, FrameHeader.unpack(frame)[0])
    parsed = [parse(data) for data in frames.values()]
    target = PagedKV(torch.zeros(1, 8, 1, 3, dtype=torch.float16), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(FrameError, match=f"^{Stream(stream).name} stream, page 0: codes: "):
        EncodedKV.from_frames(*([data] for data in frames.values()))
    with pytest.raises(FrameError, match=f"^{Stream(stream).name} stream, page 0: codes: "):
        decode_page(parsed[0], parsed[1] if len(parsed) > 1 else None, target)
    assert not bool(target.cache.any())


@pytest.mark.parametrize("codec", ["grid", "alg1"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_negative_zero_is_not_metadata(codec: str, dtype: torch.dtype) -> None:
    """Kernels and reference differ in what they make of it; no encoder writes it, not even of -0.0 alone."""
    zeros = torch.full((5, 1, 3), -0.0, dtype=dtype)
    anchor = encode(zeros, CodecConfig(codec, sink_tokens=0)).frames("anchor")[0]  # type: ignore[arg-type]
    width = 4 if codec == "alg1" else dtype.itemsize
    assert set(anchor[HEADER_BYTES : HEADER_BYTES + 6 * width]) == {0}
    parts = {"gamma_min": width - 1, "gamma_max": 4 * width - 1} | (
        {"sigma": 10 * width - 1} if codec == "alg1" else {}
    )
    for field, offset in parts.items():
        frame = bytearray(anchor)
        frame[HEADER_BYTES + offset] = 0x80
        seal_again(frame)
        with pytest.raises(FrameError, match=f"^ANCHOR stream, page 0: {field}: "):
            EncodedKV.from_frames([frame])
