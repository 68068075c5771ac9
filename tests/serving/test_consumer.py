"""The Consumer under every fault of a link, on a fake clock: right bytes or a named failure, and nothing left."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lynx_ascend.codec.config import Stream
from lynx_ascend.paged import PageEncoder, num_pages
from lynx_ascend.serving import consumer as module
from lynx_ascend.serving.consumer import Consumer
from lynx_ascend.serving.layout import BlockTable, LayerKV
from lynx_ascend.serving.metadata import PullOrder
from lynx_ascend.serving.options import LynxOptions
from lynx_ascend.serving.trace import Trace
from lynx_ascend.serving.transfer_params import RemotePrompt
from lynx_ascend.speculation.break_even import KVCosts
from tests.serving import faulty_link as link

LAYERS, HEADS, DIM, BLOCK, TOKENS, PAGE = 2, 2, 64, 32, 600, 256
THERE, HERE = list(range(3, 22)), list(range(20, 1, -1))  # the blocks of the prompt on both sides
COSTS = KVCosts(bf16=1.0, anchor=1.0, residual=1.0, encode=1.0, anchor_decode=1.0, full_decode=1.0)
GENERATION, STALL_S, DEADLINE_S = 7, 2.0, 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def caches(seed: int) -> list[LayerKV]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 24, BLOCK, HEADS, DIM)
    return [LayerKV(i, f"l{i}", *torch.randn(shape, generator=generator)) for i in range(LAYERS)]


@pytest.fixture(scope="module")
def sent() -> dict[str, dict[Stream, list[bytes]]]:
    """The frames that a prefill instance sends of one prompt, by method."""
    layers, blocks = caches(1), BlockTable(THERE, torch.device("cpu"))
    frames: dict[str, dict[Stream, list[bytes]]] = {}
    for method in ("lynx", "bf16"):
        out = frames[method] = {}
        encoders = [
            PageEncoder(method, layer.paged(v, blocks), TOKENS, layer=layer.index, is_value=v, generation=GENERATION)
            for layer in layers
            for v in (False, True)
        ]
        for page in range(num_pages(TOKENS, PAGE)):
            for encoder in encoders:
                for stream, frame in encoder.page(page).items():
                    out.setdefault(stream, []).append(bytes(frame))
    return frames


class Rig:
    """A Consumer with one order, and what it tells its scheduler."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str = "lynx", wait_all: bool = False) -> None:
        self.clock = Clock()
        monkeypatch.setattr(module, "time", self.clock)
        self.layers = caches(2)
        self.before = [torch.stack((layer.key, layer.value)).clone() for layer in self.layers]
        options = LynxOptions(deadline=DEADLINE_S, stall=STALL_S)
        self.consumer = Consumer(self.layers, options, "D", Trace(None, "test"), COSTS)
        self.consumer._client.close()
        self.link = self.consumer._client = link.FaultyLink(self.clock.monotonic, STALL_S)
        source = RemotePrompt("P", "prompt", "127.0.0.1", 1, TOKENS)
        self.order = PullOrder("r", source, GENERATION, method, HERE, 0, wait_all, None)
        self.loaded = 0
        self.failed_blocks: set[int] = set()
        self.ready = 0
        self.failures: list[str] = []
        self.consumer.pull(self.order)

    def step(self) -> None:
        """One engine step."""
        self.consumer.poll()
        self.loaded += len(self.consumer.finished())
        self.failed_blocks |= self.consumer.failed_blocks()
        report = self.consumer.report()
        if report is not None:
            self.ready += report.residual_ready["r"]
            self.failures += report.failures.values()

    def play(self, script: link.Script, rng: random.Random, act: Callable[[int], None] = lambda i: None) -> None:
        """Delivers the script, with engine steps at any time, and then lets time go by until the deadline."""
        for i, message in enumerate(script):
            act(i)
            self.clock.now += message.delay
            self.link.watch()
            self.link.deliver(message, "prompt", GENERATION)
            if rng.random() < 0.5:
                self.step()
        while self.clock.now < 100.0 + DEADLINE_S + STALL_S:
            self.step()
            self.clock.now += STALL_S / 4
            self.link.watch()
        self.step()

    def contents(self) -> list[torch.Tensor]:
        return [torch.stack((layer.key, layer.value)) for layer in self.layers]

    def assert_over(self) -> None:
        """The scheduler has been told once, nothing is staged, and no other block was touched."""
        assert self.loaded == 1
        assert not self.consumer._jobs and not self.consumer._generations
        assert self.consumer.staged_bytes() == 0 and not self.link.staging._transfers
        others = [block for block in range(24) if block not in HERE]
        for before, now in zip(self.before, self.contents(), strict=True):
            assert torch.equal(before[:, others], now[:, others])

    def assert_loaded(self, expected: list[torch.Tensor]) -> None:
        self.assert_over()
        assert not self.failures and not self.failed_blocks
        assert self.ready == (0 if self.order.wait_all else 1)
        for there, now in zip(expected, self.contents(), strict=True):
            assert torch.equal(there[:, HERE], now[:, HERE])

    def assert_failed(self) -> None:
        self.assert_over()
        assert len(self.failures) == 1 and self.failures[0]
        assert self.ready == 0
        # Blocks are named if the load had not been reported; after that the failure alone counts.
        assert self.failed_blocks in (set(), set(HERE))


@pytest.fixture(scope="module")
def expected(sent: Any) -> dict[str, list[torch.Tensor]]:
    """The decode side's cache after an undisturbed transfer, by method; near P's cache, so that equality means it."""
    reference: dict[str, list[torch.Tensor]] = {}
    there = [torch.stack((layer.key, layer.value)) for layer in caches(1)]
    for method, frames in sent.items():
        with pytest.MonkeyPatch.context() as patch:
            rig = Rig(patch, method, wait_all=method == "bf16")
            rig.play([m for script in link.script_of(frames).values() for m in script], random.Random(0))
            reference[method] = rig.contents()
        for ours, theirs in zip(reference[method], there, strict=True):
            ours = ours[:, HERE].reshape(2, -1, HEADS, DIM)[:, :TOKENS]
            theirs = theirs[:, THERE].reshape(2, -1, HEADS, DIM)[:, :TOKENS]
            assert (ours - theirs).abs().max() < 0.1
    return reference


@pytest.mark.parametrize("method, wait_all", [("lynx", False), ("lynx", True), ("bf16", True)])
@pytest.mark.parametrize("fault", link.HARMLESS, ids=lambda f: f.__name__)
def test_what_a_link_may_do(
    sent: Any, expected: Any, monkeypatch: pytest.MonkeyPatch, fault: Any, method: str, wait_all: bool
) -> None:
    for seed in range(5):
        rng = random.Random(seed)
        scripts = link.script_of(sent[method])
        for stream in scripts:
            scripts[stream] = fault(scripts[stream], rng.randrange(len(scripts[stream]) - 1), rng)
        rig = Rig(monkeypatch, method, wait_all)
        rig.play(link.merge(scripts, rng), rng)
        rig.assert_loaded(expected[method])


@pytest.mark.parametrize("wait_all", [False, True])
@pytest.mark.parametrize("stream", [Stream.ANCHOR, Stream.RESIDUAL], ids=lambda s: s.name.lower())
@pytest.mark.parametrize("fault", link.HARMFUL, ids=lambda f: f.__name__)
def test_what_no_link_may_do(
    sent: Any, monkeypatch: pytest.MonkeyPatch, fault: Any, stream: Stream, wait_all: bool
) -> None:
    for seed in range(5):
        rng = random.Random(seed)
        scripts = link.script_of(sent["lynx"])
        scripts[stream] = fault(scripts[stream], rng.randrange(len(scripts[stream]) - 1), rng)
        rig = Rig(monkeypatch, wait_all=wait_all)
        rig.play(link.merge(scripts, rng), rng)
        rig.assert_failed()


@pytest.mark.parametrize("what", ["dies", "dropped"])
def test_the_end_at_any_moment(sent: Any, expected: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The link dies, or the request ends, after any message."""
    length = len(link.merge(link.script_of(sent["lynx"]), random.Random(0)))
    for at in range(length):
        rng = random.Random(at)
        rig = Rig(monkeypatch)

        def act(i: int, rig: Rig = rig, at: int = at) -> None:
            if i == at and what == "dies":
                rig.link.die()
            elif i == at:
                rig.consumer.drop("r")
                rig.consumer.drop("r")

        rig.play(link.merge(link.script_of(sent["lynx"]), rng), rng, act)
        if what == "dies":
            rig.assert_failed()
        else:
            rig.assert_over()
            assert not rig.failures and rig.ready == 0
        assert rig.link.cancelled == [("prompt", GENERATION)]


def test_a_second_request_for_the_same_prompt_fails_alone(sent: Any, expected: Any, monkeypatch: Any) -> None:
    rng = random.Random(0)
    rig = Rig(monkeypatch)
    rival = PullOrder("rival", rig.order.source, GENERATION + 1, "lynx", [21, 22, 23], 0, False, None)
    rig.consumer.pull(rival)
    report = rig.consumer.report()
    assert report is not None and "fetching this prompt" in report.failures["rival"]
    assert rig.consumer.finished() == {"rival"} and rig.consumer.failed_blocks() == {21, 22, 23}
    rig.play(link.merge(link.script_of(sent["lynx"]), rng), rng)
    rig.assert_loaded(expected["lynx"])


def test_deadline_of_a_transfer_that_moves(sent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends a frame now and then does not hold a request beyond its deadline."""
    scripts = link.script_of(sent["lynx"])
    slow = [message for script in scripts.values() for message in script]
    slow = [link.replace(message, delay=STALL_S * 0.9) for message in slow]
    rig = Rig(monkeypatch)
    rig.play(slow, random.Random(0))
    rig.assert_failed()
    assert f"deadline of {DEADLINE_S:g} s" in rig.failures[0]


def test_progress_on_either_stream_keeps_a_transfer_alive(sent: Any, expected: Any, monkeypatch: Any) -> None:
    """First nothing of the Residual for longer than a stall, then nothing of the Anchor's."""
    scripts = link.script_of(sent["lynx"])
    one_by_one = [message for stream in (Stream.ANCHOR, Stream.RESIDUAL) for message in scripts[stream]]
    rig = Rig(monkeypatch)
    rig.play([link.replace(message, delay=1.1) for message in one_by_one], random.Random(0))
    rig.assert_loaded(expected["lynx"])


@pytest.mark.parametrize(("step_s", "a_look"), [(0.01, True), (1.0, False)])
def test_a_long_step_gives_frames_their_share(
    sent: Any, monkeypatch: pytest.MonkeyPatch, step_s: float, a_look: bool
) -> None:
    """All has arrived; a frame takes 3 ms: beside short steps one look's worth of frames is taken at a time."""
    rig = Rig(monkeypatch)
    take = rig.consumer._take

    def slow(item: Any) -> None:
        take(item)
        rig.clock.now += 0.003

    monkeypatch.setattr(rig.consumer, "_take", slow)
    rig.step()
    for script in link.script_of(sent["lynx"]).values():
        for message in script:
            rig.link.deliver(message, "prompt", GENERATION)
    rig.clock.now += step_s
    rig.step()
    assert (rig.ready == 0) == a_look
    rig.play([], random.Random(0))
    assert rig.ready == 1 and not rig.failures


def test_120_000_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staging never holds more than what is on the wire, and no frame is kept once its page is whole."""
    tokens = 120_000
    blocks = list(range(-(-tokens // BLOCK)))
    there, here = (LayerKV(0, "l0", *torch.zeros(2, len(blocks), BLOCK, 1, DIM)) for _ in range(2))
    there.key.normal_(generator=torch.Generator().manual_seed(1))
    there.value.normal_(generator=torch.Generator().manual_seed(2))
    table = BlockTable(blocks, torch.device("cpu"))
    encoders = [
        PageEncoder("lynx", there.paged(v, table), tokens, layer=0, is_value=v, generation=GENERATION)
        for v in (False, True)
    ]
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "STEP_BUDGET_S", 1.0)
    consumer = Consumer([here], LynxOptions(), "D", Trace(None, "test"), COSTS)
    consumer._client.close()
    wire = consumer._client = link.FaultyLink(clock.monotonic, STALL_S)
    source = RemotePrompt("P", "prompt", "127.0.0.1", 1, tokens)
    consumer.pull(PullOrder("r", source, GENERATION, "lynx", blocks, 0, False, None))
    pages, peak, on_the_wire = num_pages(tokens, PAGE), 0, 0
    for page in range(pages):
        for i, encoder in enumerate(encoders):
            for stream, frame in encoder.page(page).items():
                on_the_wire += len(frame)
                wire.deliver(link.Message(stream, 2 * page + i, bytes(frame)), "prompt", GENERATION)
        peak = max(peak, consumer.staged_bytes())
        consumer.poll()
    assert pages == 469 and peak < 3 * on_the_wire / pages
    for stream, nbytes in list(consumer._jobs["r"].received.items()):
        wire.deliver(link.Message(stream, 2 * pages, None, 2 * pages, nbytes), "prompt", GENERATION)
    consumer.poll()
    assert consumer.finished() == {"r"} and consumer.staged_bytes() == 0 and not consumer._jobs
    for ours, theirs in ((here.key, there.key), (here.value, there.value)):
        flat, expected = (x.reshape(-1, DIM)[:tokens] for x in (ours, theirs))
        assert (flat - expected).abs().max() < 0.1


def test_a_method_that_these_heads_do_not_allow_fails_the_load_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Clock())
    layers = [LayerKV(0, "l0", *torch.zeros(2, 24, BLOCK, HEADS, 6))]
    consumer = Consumer(layers, LynxOptions(), "D", Trace(None, "test"), COSTS)
    source = RemotePrompt("P", "prompt", "127.0.0.1", 1, TOKENS)
    consumer.pull(PullOrder("r", source, GENERATION, "pair", HERE, 0, False, None))
    report = consumer.report()
    assert report is not None and "head_dim: 6" in report.failures["r"]
    assert consumer.finished() == {"r"} and consumer.failed_blocks() == set(HERE) and not consumer._jobs
    consumer.close()


@pytest.mark.parametrize("name", ["\ud800", "x" * 600])
def test_a_prompt_whose_name_no_message_can_hold_is_not_declined_and_harms_nothing(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer(caches(2), LynxOptions(), "D", Trace(None, "test"), COSTS)
    try:
        consumer.decline(RemotePrompt("P", name, "127.0.0.1", 1, TOKENS))
        assert "is not declined" in caplog.text
    finally:
        consumer.close()
