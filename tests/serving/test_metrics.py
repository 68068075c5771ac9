"""Every metric shows what happened, at the registry that vLLM's /metrics serves."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from lynx_ascend.codec.config import Stream
from lynx_ascend.paged import wire_bytes
from lynx_ascend.serving.metrics import METRICS, LynxStats, Meter
from tests.serving.relay import Relay

Read = Callable[..., float]


@pytest.fixture(scope="module")
def read(engine: Any) -> Iterator[Read]:
    """Gives a sample's value, 0 if it is not there. vLLM's own logger is told of every step, as a server tells it.

    (An engine without a server drops the reports of steps without output.)
    """
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    logger = PrometheusStatLogger(engine.engine.vllm_config)
    make_stats = engine.scheduler.make_stats

    def recorded(*args: Any, **kwargs: Any) -> Any:
        stats = make_stats(*args, **kwargs)
        # As they come from another process.
        stats.kv_connector_stats = msgspec.msgpack.decode(msgspec.msgpack.encode(stats.kv_connector_stats))
        logger.record(scheduler_stats=stats, iteration_stats=None)
        return stats

    engine.scheduler.make_stats = recorded

    def read(name: str, **labels: str) -> float:
        model = engine.engine.vllm_config.model_config.served_model_name
        where = {"model_name": model, "engine": "0", **({"rank": "0"} if base(name).by_rank else {}), **labels}
        value = REGISTRY.get_sample_value(f"vllm:{name}", where)
        assert value is not None, f"no sample {name} {where}"
        return value

    yield read
    engine.scheduler.make_stats = make_stats


def base(name: str) -> Any:
    return METRICS.get(name) or METRICS[re.sub("_(count|sum|bucket)$", "", name)]


class Changes:
    """By how much samples have changed since it was made, the engine having made one more step."""

    def __init__(self, engine: Any, read: Read, prompt: list[int]) -> None:
        self._engine, self._read, self._prompt = engine, read, prompt[:40]
        self._before = {sample: read(sample[0], **dict(sample[1])) for sample in samples()}

    def all(self, *awaited: str) -> dict[str, float]:
        """The counts that changed, times and bytes left out; threads may be late with those that are awaited."""
        deadline = time.monotonic() + 20.0
        while True:
            self._engine.answer(self._prompt, max_tokens=2)  # what a thread told after the last step is taken
            found = self._now()
            if found.keys() >= set(awaited) or time.monotonic() > deadline:
                return found

    def _now(self) -> dict[str, float]:
        return {
            ",".join([name, *(value for _, value in labels)]): change
            for (name, labels), before in self._before.items()
            if (change := self._read(name, **dict(labels)) - before)
            and not name.endswith(("_seconds_total", "_bytes_total", "_bytes"))
        }


def samples() -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    rows = []
    for metric in METRICS.values():
        name = f"{metric.name}_count" if metric.kind == "histogram" else metric.name
        sets: list[tuple[tuple[str, str], ...]] = [()]
        for label, values in metric.labels.items():
            sets = [(*row, (label, value)) for row in sets for value in values]
        rows += [(name, row) for row in sets]
    return rows


@pytest.mark.engine
@pytest.mark.portable
def test_a_request_with_drafts(
    engine: Any, prompts: list[list[int]], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, verified, trace = prompts[1], [], engine.half._trace

    def watch(event: str, request_id: str, **fields: Any) -> None:
        if event == "verified":
            verified.append(fields)
        trace(event, request_id, **fields)

    monkeypatch.setattr(engine.half, "_trace", watch)
    streams = ("anchor", "residual")
    names = [f"lynx_{kind}_bytes_total" for kind in ("sent", "received")]
    times = [
        *(("lynx_send_seconds_sum", {"stream": s}) for s in streams),
        *(("lynx_receive_seconds_sum", {"stream": s}) for s in streams),
        *(("lynx_decode_seconds_total", {"stream": s}) for s in streams),
        *(("lynx_stage_seconds_sum", {"stage": s}) for s in ("load_anchor", "draft", "verify")),
        ("lynx_encode_seconds_total", {}),
    ]
    before = [read(name, **labels) for name, labels in times]
    bytes_before = {(name, s): read(name, stream=s) for name in names for s in streams}
    drafted, accepted = read("lynx_drafted_tokens_total"), read("lynx_accepted_tokens_total")
    tokens = read("lynx_held_tokens_total")
    changes = Changes(engine, read, prompts[0])
    engine.answer(prompt, engine.prefill(prompt), lynx_bandwidth=28, max_tokens=24)
    (outcome,) = verified
    assert outcome["drafted"] >= 2
    whole = {"lynx_whole_drafts_total": 1} if outcome["accepted"] == outcome["drafted"] else {}
    both = {f"lynx_{kind}_seconds_count,{s}": 1 for kind in ("send", "receive") for s in streams}
    stages = {f"lynx_stage_seconds_count,{stage}": 1 for stage in ("load_anchor", "draft", "verify")}
    assert changes.all(*both) == {
        "lynx_held_prompts_total": 1,
        "lynx_held_tokens_total": len(prompt),
        "lynx_handed_tokens_total": 1,
        "lynx_pulls_total,lynx": 1,
        "lynx_transfers_total": 1,
        "lynx_verifications_total": 1,
        "lynx_draft_window_tokens_count": 1,
        "lynx_drafted_tokens_total": outcome["drafted"],
        **({"lynx_accepted_tokens_total": outcome["accepted"]} if outcome["accepted"] else {}),
        **whole,
        **both,
        **stages,
    }
    assert read("lynx_drafted_tokens_total") - drafted == outcome["drafted"]
    assert read("lynx_accepted_tokens_total") - accepted == outcome["accepted"]
    assert read("lynx_held_tokens_total") - tokens == len(prompt)
    cache = engine.consumer._layers[0].key
    sizes = wire_bytes("lynx", len(prompt), heads=cache.shape[2], head_dim=cache.shape[3], dtype=cache.dtype)
    for name in names:
        for stream in (Stream.ANCHOR, Stream.RESIDUAL):
            label = stream.name.lower()
            change = read(name, stream=label) - bytes_before[name, label]
            assert change == 2 * len(engine.consumer._layers) * sizes[stream]
    for (name, labels), value in zip(times, before, strict=True):
        assert 0 < read(name, **labels) - value < 30.0, (name, labels)
    assert read("lynx_staging_bytes") == 0
    engine.assert_clean()


@pytest.mark.engine
@pytest.mark.portable
def test_a_verification_shows_with_its_own_step(engine: Any, prompts: list[list[int]], read: Read) -> None:
    """It ends the request, and no step follows."""
    before = read("lynx_verifications_total"), read("lynx_accepted_tokens_total")
    options = {"lynx_bandwidth": 8, "max_tokens": 3}  # its one draft, after P's token, holds
    engine.answer(prompts[0], engine.prefill(prompts[0]), **options)
    assert (read("lynx_verifications_total"), read("lynx_accepted_tokens_total")) == (before[0] + 1, before[1] + 1)


@pytest.mark.engine
@pytest.mark.portable
def test_what_goes_wrong(engine: Any, prompts: list[list[int]], read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompts[0]
    monkeypatch.setattr("lynx_ascend.serving.producer.ARRIVAL_WAIT_S", 0.1)  # for a prompt that never comes

    def failed(change: dict[str, Any], reason: str, end: str) -> None:
        changes = Changes(engine, read, prompts[0])
        engine.answer(prompt, {**engine.prefill(prompt), **change}, max_tokens=4)
        engine.expire_leases()
        seen = changes.all(end)
        assert seen.pop(end) == 1  # what became of the prompt on the prefill side
        seen.pop("lynx_cancelled_sends_total", None)  # of the one that it does not know
        assert seen == {
            "lynx_held_prompts_total": 1,
            "lynx_held_tokens_total": len(prompt),
            "lynx_handed_tokens_total": 1,
            "lynx_pulls_total,lynx": 1,
            f"lynx_failed_transfers_total,{reason}": 1,
            "lynx_fallbacks_total,transfer": 1,
        }

    failed({"remote_port": 1}, "connection", "lynx_expired_prompts_total")
    failed({"remote_engine_id": "an engine that was restarted"}, "engine", "lynx_cancelled_sends_total")
    # An id of its own: a prompt that one request has had is not fetched for another.
    failed({"remote_request_id": "no-such-prompt"}, "peer", "lynx_expired_prompts_total")

    params, changes = engine.prefill(prompts[1]), Changes(engine, read, prompt)
    with Relay(params["remote_port"], Stream.ANCHOR, "flip", 500_000) as relay:
        engine.answer(prompts[1], {**params, "remote_port": relay.port}, lynx_bandwidth=60, max_tokens=4)
    seen = changes.all("lynx_cancelled_sends_total")
    assert seen["lynx_failed_transfers_total,frame"] == seen["lynx_fallbacks_total,transfer"] == 1
    assert seen["lynx_cancelled_sends_total"] == 1

    changes = Changes(engine, read, prompt)
    answer = engine.answer(prompt, engine.prefill(prompt), lynx_method="zip")
    assert answer.finish_reason == "error"
    engine.expire_leases()
    assert changes.all()["lynx_refused_requests_total"] == 1

    changes = Changes(engine, read, prompt)
    engine.answer(prompt, engine.prefill(prompt), max_tokens=2, prompt_logprobs=1)
    engine.expire_leases()
    assert changes.all()["lynx_fallbacks_total,prompt"] == 1

    changes = Changes(engine, read, prompt)
    request = engine.add(prompt, engine.prefill(prompt), lynx_bandwidth=1)
    engine.step_until(lambda: engine.state(request) == "HANDED" and engine.consumer.staged_bytes(), "its first bytes")
    engine.abort(request)
    engine.assert_clean()
    assert changes.all()["lynx_aborted_total"] == 1


@pytest.mark.engine
@pytest.mark.portable
def test_preemption_and_staging(engine: Any, prompts: list[list[int]], read: Read) -> None:
    changes = Changes(engine, read, prompts[0])
    request = engine.add(prompts[1], engine.prefill(prompts[1]), lynx_bandwidth=20, max_tokens=8)
    engine.step_until(lambda: engine.state(request) == "DRAFTING", "drafting")
    engine.step_until(lambda: engine.consumer.staged_bytes() > 0, "frames")
    (job,) = engine.consumer._jobs.values()
    frames = [frame for of_stream in job.frames.values() for frame in of_stream.values() if frame is not None]
    assert frames and job.staged == sum(frame.data.nbytes for frame in frames)
    assert read("lynx_staging_bytes") > 0
    running = next(r for r in engine.scheduler.running if r.request_id.startswith(request + "-"))
    engine.scheduler.running.remove(running)
    engine.scheduler._preempt_request(running, 0.0)
    engine.run(request)
    assert changes.all()["lynx_fallbacks_total,preempted"] == 1
    assert read("lynx_staging_bytes") == 0
    engine.assert_clean()


@pytest.mark.engine
@pytest.mark.portable
def test_a_method_without_drafts(engine: Any, prompts: list[list[int]], read: Read) -> None:
    changes = Changes(engine, read, prompts[0])
    engine.answer(prompts[0], engine.prefill(prompts[0]), lynx_method="int8", max_tokens=2)
    assert changes.all() == {
        "lynx_held_prompts_total": 1,
        "lynx_held_tokens_total": len(prompts[0]),
        "lynx_handed_tokens_total": 1,
        "lynx_pulls_total,int8": 1,
        "lynx_transfers_total": 1,
        "lynx_send_seconds_count,anchor": 1,
        "lynx_receive_seconds_count,anchor": 1,
        "lynx_stage_seconds_count,load_all": 1,
    }


@pytest.mark.engine
@pytest.mark.portable
def test_a_request_that_is_faster_without_a_codec(engine: Any, prompts: list[list[int]], read: Read) -> None:
    engine.answer(prompts[0], engine.prefill(prompts[0]), max_tokens=2)  # from which the costs are known
    changes = Changes(engine, read, prompts[0])
    options = {"lynx_method": "auto", "lynx_bandwidth": 300_000, "max_tokens": 2}
    engine.answer(prompts[0], engine.prefill(prompts[0]), **options)
    seen = changes.all()
    assert seen["lynx_skips_total,break-even: bf16"] == seen["lynx_pulls_total,bf16"] == 1


def test_names_tell_the_unit() -> None:
    for metric in METRICS.values():
        assert metric.name.startswith("lynx_") and metric.help.endswith(".")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        unit = metric.name.removesuffix("_total").rsplit("_", 1)[-1]
        assert metric.kind == "counter" or unit in ("seconds", "bytes", "tokens")
        assert (metric.kind == "histogram") == bool(metric.buckets)


def test_nothing_is_reported_when_nothing_happened() -> None:
    meter = Meter(rank=0)
    assert meter.take() is None
    meter.add("lynx_transfers_total")
    assert meter.take() == LynxStats({"lynx_transfers_total": {"0": 1}})
    assert meter.take() is None


def test_ranks_are_summed_apart_and_gauges_replaced() -> None:
    first, second, later = Meter(rank=0), Meter(rank=1), Meter(rank=0)
    for meter, nbytes in ((first, 10), (second, 20), (later, 5)):
        meter.add("lynx_received_bytes_total", nbytes * 1_000_000, "anchor")
        meter.observe("lynx_receive_seconds", nbytes / 100, "anchor")
        meter.set("lynx_staging_bytes", nbytes)
    total = first.take()
    assert total is not None
    for meter in (second, later):
        taken = meter.take()
        assert taken is not None
        total = total.aggregate(taken)
    assert total.data == {
        "lynx_received_bytes_total": {"0,anchor": 15_000_000, "1,anchor": 20_000_000},
        "lynx_receive_seconds": {"0,anchor": [0.1, 0.05], "1,anchor": [0.2]},
        "lynx_staging_bytes": {"0": 5, "1": 20},
    }
    assert not total.is_empty() and total.reduce() == {"received MB": 35.0}
