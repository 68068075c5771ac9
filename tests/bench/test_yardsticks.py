"""What the codec is measured against does what it says: memcpy, the INT8 quantiser, the rounds."""

from __future__ import annotations

import pytest
import torch

from lynx_ascend.bench import int8
from lynx_ascend.bench.memcpy import memcpys
from lynx_ascend.bench.rounds import MIN_ROUNDS, Work, median, quartiles, run_rounds


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 100_003])
@pytest.mark.parametrize("implementation", [0, 1])
def test_a_memcpy_copies_everything(implementation: int, size: int, threads: int) -> None:
    source, target = torch.randint(1, 256, (size,), dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    copy = memcpys(source, target, threads)[implementation]
    copy.run()
    assert torch.equal(source, target) and copy.nbytes == size


def test_int8_is_within_half_a_step() -> None:
    x = torch.randn(96, 24, generator=torch.Generator().manual_seed(1)).bfloat16()
    x[:32, 3] = 7.0  # a constant chunk
    quantised, got = int8.Int8.empty(96, 24), torch.zeros_like(x)
    for values, out, part in zip(x.split(64), got.split(64), quantised.split(64), strict=True):
        int8.quantise(values, part)
        int8.dequantise(part, out)
    chunks, exact = got.view(3, 32, 24).float(), x.view(3, 32, 24).float()
    assert bool(((chunks - exact).abs() <= 0.51 * quantised.scale + 2.0**-8 * exact.abs()).all())
    assert bool((got[:32, 3] == 7.0).all())
    assert quantised.codes.amax() == 255 and quantised.codes.amin() == 0
    step = (exact.amax(1) - exact.amin(1)) / 255
    assert torch.equal(quantised.low[:, 0], exact.amin(1)) and torch.allclose(quantised.scale[:, 0], step)


def test_every_work_runs_right_after_a_memcpy_with_its_threads() -> None:
    log: list[str] = []

    def work(name: str) -> Work:
        def note(what: str) -> None:
            log.append(f"{what}{name}{torch.get_num_threads()}")

        return Work("here", name, "k", 10, *(lambda what=what: note(what) for what in ("", "prepare ", "check ")))

    threads = torch.get_num_threads()
    try:
        series = run_rounds([work("a"), work("b")], {1: [work("m")], 2: [work("n")]}, 0.0, lambda _: None)
    finally:
        torch.set_num_threads(threads)
    later = ["m1", "a1", "m1", "b1", "n2", "a2", "n2", "b2"]
    first = [
        "m1", "prepare a1", "a1", "check a1", "m1", "prepare b1", "b1", "check b1",
        "n2", "prepare a2", "a2", "check a2", "n2", "prepare b2", "b2", "check b2",
    ]  # fmt: skip
    assert log == first + later * (MIN_ROUNDS - 1)
    assert [(one.work.method, one.threads) for one in series] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert all(len(one.speed) == len(one.memcpy["here"]) == MIN_ROUNDS for one in series)


def test_rounds_go_on_until_the_time_is_over() -> None:
    nothing = Work("here", "nothing", "k", 1, lambda: None)
    threads = torch.get_num_threads()
    assert len(run_rounds([nothing], {threads: [nothing]}, 0.3, lambda _: None)[0].speed) > MIN_ROUNDS


def test_median_and_quartiles() -> None:
    assert median([4.0, 1.0, 2.0]) == 2.0 and median([4.0, 1.0]) == 2.5
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)
