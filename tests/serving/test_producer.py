"""The prefill side's hold: every stream of a pull is served, and blocks wait for whoever still encodes them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from lynx_ascend.codec.config import Stream
from lynx_ascend.serving import producer as module
from lynx_ascend.serving.connector import LynxConnector
from lynx_ascend.serving.layout import LayerKV
from lynx_ascend.serving.metadata import LynxMetadata, SendOrder
from lynx_ascend.serving.options import LynxOptions
from lynx_ascend.serving.producer import Producer, PullError
from lynx_ascend.serving.trace import Trace

PROMPT = SendOrder("prompt", [3, 4], 40)
LAYER = LayerKV(0, "l0", *torch.zeros(2, 5, 32, 1, 64))


class GatedProducer(Producer):
    """Encodes nothing, but takes until the test lets the generation go."""

    def __init__(self) -> None:
        self.gates: dict[int, threading.Event] = {}
        self.entered: dict[int, threading.Event] = {}
        super().__init__([LAYER], LynxOptions(), "engine", Trace(None, "test"))

    def start(self, generation: int) -> threading.Thread:
        self.gates[generation], self.entered[generation] = threading.Event(), threading.Event()
        thread = threading.Thread(target=self.open, args=("prompt", generation, Stream.ANCHOR, {}, None), daemon=True)
        thread.start()
        assert self.entered[generation].wait(5.0)
        return thread

    def _encode(self, held: Any, generation: int, args: Any, sink: Any) -> None:
        self.entered[generation].set()
        assert self.gates[generation].wait(5.0)


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "ARRIVAL_WAIT_S", 0.2)
    producer = GatedProducer()
    producer.hold(PROMPT)
    yield producer
    producer.close()


def finish(producer: GatedProducer, thread: threading.Thread, generation: int) -> None:
    producer.gates[generation].set()
    thread.join(5.0)
    assert not thread.is_alive()


def test_second_stream_may_be_pulled_after_both_are_written(producer: GatedProducer) -> None:
    finish(producer, producer.start(1), 1)
    assert producer.finished() == {"prompt"}
    producer.open("prompt", 1, Stream.RESIDUAL, {}, None)  # an error would fail a transfer that is under way
    with pytest.raises(PullError, match="already fetched"):
        producer.open("prompt", 2, Stream.ANCHOR, {}, None)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_blocks_are_held_until_the_last_pull_has_read_them(producer: GatedProducer, order: tuple[int, int]) -> None:
    threads = {generation: producer.start(generation) for generation in (1, 2)}
    for generation, released in zip(order, (set(), {"prompt"}), strict=True):
        finish(producer, threads[generation], generation)
        assert producer.finished() == released


def test_a_prompt_is_held_before_the_forward_pass_of_the_step_that_orders_it(producer: GatedProducer) -> None:
    connector = object.__new__(LynxConnector)
    connector._producer, connector._consumer = producer, None
    producer._held.clear()
    connector.handle_preemptions(LynxMetadata(sends=[PROMPT]))
    finish(producer, producer.start(1), 1)
    assert producer.finished() == {"prompt"}


def test_a_lease_that_ends_amid_a_pull_frees_nothing_before_the_pull_is_done(producer: GatedProducer) -> None:
    thread = producer.start(1)
    producer._held["prompt"].expires = 0.0
    assert producer.finished() == set()
    finish(producer, thread, 1)
    assert producer.finished() == {"prompt"}


def test_a_prompt_that_is_declined_is_released_at_once(producer: GatedProducer) -> None:
    producer.cancelled("prompt", 0)
    assert producer.finished() == {"prompt"}
    with pytest.raises(PullError, match="no prompt"):
        producer.open("prompt", 1, Stream.ANCHOR, {}, None)


def test_a_prompt_that_is_declined_while_it_is_read_is_held_until_that_ends(producer: GatedProducer) -> None:
    thread = producer.start(1)
    producer.cancelled("prompt", 0)
    assert producer.finished() == set()
    finish(producer, thread, 1)
    assert producer.finished() == {"prompt"}


def test_a_prompt_may_be_declined_before_it_is_held(producer: GatedProducer) -> None:
    early, late = (SendOrder(name, [1], 20) for name in ("early", "late"))
    producer.cancelled("early", 0)
    producer.hold(early)
    assert producer.finished() == {"early"}
    producer.hold(early)  # another prompt of that name
    producer.cancelled("late", 0)
    time.sleep(module.ARRIVAL_WAIT_S + 0.01)
    producer.hold(late)
    assert producer.finished() == set()
