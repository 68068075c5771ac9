"""A soak of scheduler, mixin and connector: thousands of requests with random faults on a clock that costs nothing.

    python -m tests.serving.soak --requests 20000 --mode async --seed 7

Real: vLLM's Scheduler or AsyncScheduler under LynxSchedulerMixin, its KV cache manager, LynxConnector, SchedulerHalf.
Played: the runner, the model, the links (soak_worker.py, soak_model.py) and the clients, who check every token.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_block_hash, get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from lynx_ascend.serving import plugin
from lynx_ascend.serving.compat import vllm_version
from lynx_ascend.serving.connector import LynxConnector
from lynx_ascend.serving.metadata import PullOrder
from lynx_ascend.serving.options import LynxOptions, RequestOptions
from lynx_ascend.serving.policy import Policy
from lynx_ascend.serving.scheduler_mixin import with_mixin
from lynx_ascend.speculation.decoder import SpecDecoder, State
from tests.serving.soak_model import EOS, MAX_MODEL_LEN, VOCABULARY, Cache, Quality, answer
from tests.serving.soak_worker import FakeConsumer, FakeProducer, Plan, Runner, Worker

BLOCKS, BLOCK_SIZE, ROWS, BUDGET = 72, 8, 8, 96
STEP_S, DEADLINE_S = 0.01, 3.0
AT_ONCE = 14  # requests in the engine, running or waiting
# What clients ask for, in per cent. computed: the engine must compute the prompt itself; siblings: as with n > 1.
KINDS = {"remote": 70, "ordinary": 18, "prefill": 5, "bad": 2, "computed": 2, "siblings": 3}
STARVED_S = 60.0  # of the fake clock; no request may take longer


@dataclass
class Client:
    """What the client of one request asked for, and saw."""

    request: Request
    kind: str
    asked_at: float
    abort_at: float | None = None
    abort_in: str | None = None  # state of the SpecDecoder in which the client goes away
    tokens: list[int] = field(default_factory=list)
    method: str | None = None  # by which its prompt was fetched
    handed: int | None = None  # the first token of its answer, where the prefill side's was taken over
    fetched: bool = False  # the 8-bit cache was verified or in place: its answer is due
    params: dict[str, Any] | None = None
    finish: str | None = None


class Clock:
    """Stands for the module `time` in the connector's code."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


@functools.cache
def _config(model: Path | str) -> Any:
    plugin.register()
    # Not health: on links as bad as these it would soon end all drafting.
    extra = {"deadline": DEADLINE_S, "health": False}
    transfer = KVTransferConfig(kv_connector="LynxConnector", kv_role="kv_both", kv_connector_extra_config=extra)
    return EngineArgs(
        model=str(model),
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=ROWS,
        max_num_batched_tokens=BUDGET,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=True,
        kv_transfer_config=transfer,
    ).create_engine_config()


class FicklePolicy(Policy):
    """It also says no at random: whatever a policy answers, no token depends on it."""

    def __init__(self, options: LynxOptions, now: Callable[[], float], rng: random.Random) -> None:
        super().__init__(options, now)
        self._rng = rng

    def drafts_more(self, decoder: SpecDecoder, options: RequestOptions, **situation: Any) -> bool:
        more = super().drafts_more(decoder, options, **situation)
        return more and (options.window == "fixed" or self._rng.random() < 0.8)

    def admits(self) -> bool:
        return super().admits() and self._rng.random() < 0.95


class Soak:
    """An engine of which only the device and the network are played. What is wrong goes up as an AssertionError."""

    def __init__(self, model: Path | str, *, asynchronous: bool, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.counts: Counter[str] = Counter()
        self.clients: dict[str, Client] = {}
        self.prompts: dict[str, list[int]] = {}  # by remote_request_id
        self._shared = [self._tokens(48) for _ in range(4)]  # prefixes that prompts have in common
        self._count = 0
        self._due_for: Counter[str] = Counter()  # steps that a request waits for what is due
        self._blocks_of_hash: dict[bytes, tuple[int, list[int]]] = {}
        self._in_flight: deque[tuple[Any, Any]] = deque()
        self._depth = 2 if asynchronous else 1
        self._engine(model, asynchronous)
        self._free = self._pool.get_num_free_blocks()

    def _engine(self, model: Path | str, asynchronous: bool) -> None:
        config = copy.deepcopy(_config(model))
        config.scheduler_config.async_scheduling = asynchronous
        config.cache_config.num_gpu_blocks = BLOCKS
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
        caches = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
        init_none_hash(sha256)
        hasher = get_request_block_hasher(BLOCK_SIZE, sha256)

        def noting(request: Request) -> list[Any]:
            hashes = hasher(request)
            for i, value in enumerate(hashes, len(request.block_hashes)):
                self._blocks_of_hash[value] = i * BLOCK_SIZE, request._all_token_ids[: (i + 1) * BLOCK_SIZE]
            return hashes

        self._hasher = noting
        self.scheduler = with_mixin(AsyncScheduler if asynchronous else Scheduler)(
            vllm_config=config,
            kv_cache_config=caches,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
        )
        self.half = self.scheduler.connector.scheduler_half
        self.half.set_address("127.0.0.1", 1)
        self._listener, self.half._trace = self.half._trace, self._on_event
        self.half.policy = FicklePolicy(self.half.options, self.clock.monotonic, self.rng)
        self._watch_preemptions()
        self.cache = Cache(BLOCKS, BLOCK_SIZE)
        connector = LynxConnector(config, KVConnectorRole.WORKER, caches)
        now = self.clock.monotonic
        self.consumer = connector._consumer = FakeConsumer(
            self.cache, now, DEADLINE_S, self.prompts, self._plan, self.rng
        )
        self.producer = connector._producer = FakeProducer(now, lambda: self.rng.expovariate(5))
        self.runner = Runner(self.cache, asynchronous)
        self.worker = Worker(connector, self.runner, load_first=vllm_version() == "0.23")

    @property
    def _pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    # The clients.

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY) for _ in range(count)]

    def _prompt(self) -> list[int]:
        length = self.rng.choice([1, self.rng.randint(2, 20), self.rng.randint(8, 60), self.rng.randint(40, 120)])
        if self.rng.random() < 0.4:
            return (self.rng.choice(self._shared) + self._tokens(length))[:length]
        return self._tokens(length)

    def ask(self) -> None:
        """One more client, or the children of one request with n > 1."""
        kind = self.rng.choices(["remote", "ordinary", "prefill", "bad", "computed", "siblings"], [70, 18, 5, 2, 2, 3])[
            0
        ]
        prompt = self._prompt()
        self._count += 1
        source = f"prompt-{self._count}"
        if kind not in ("ordinary", "prefill"):
            self.prompts[source] = prompt
        for _ in range(self.rng.randint(2, 3) if kind == "siblings" else 1):
            self._ask(kind, prompt, source)

    def _ask(self, kind: str, prompt: list[int], source: str) -> None:
        rng = self.rng
        self._count += 1
        extra: dict[str, Any] = {}
        if kind == "prefill":
            extra["kv_transfer_params"] = {"do_remote_decode": True}
        elif kind != "ordinary":
            extra["kv_transfer_params"] = {
                "do_remote_prefill": True,
                "remote_engine_id": "elsewhere",
                "remote_request_id": source,
                "remote_host": "127.0.0.1",
                "remote_port": 1,
                "remote_tokens": len(prompt),
            }
            if rng.random() < 0.5:
                # Any token, EOS too: one that this side would not sample shows whose it is.
                extra["kv_transfer_params"]["remote_first_token"] = rng.randrange(VOCABULARY)
            if kind == "bad":
                wrong = rng.choice([{"remote_tokens": len(prompt) + 1}, {"remote_first_token": 1 << 30}])
                extra["kv_transfer_params"] |= wrong
            extra["lynx_method"] = rng.choices(["lynx", "auto", "alg1", "int8", "bf16"], [65, 15, 5, 7, 8])[0]
            extra["lynx_window"] = rng.choice(["adaptive", "fixed", "fixed"])
            extra["lynx_draft_cap"] = rng.choice([0, 1, 4, 16, 16, 64, 64])
        sampling = SamplingParams(
            temperature=0.8 if rng.random() < 0.15 else 0.0,  # to the scheduler alone: the model played has one answer
            max_tokens=1 if kind == "prefill" else rng.choice([1, 2, rng.randint(3, 20), rng.randint(10, 60)]),
            ignore_eos=rng.random() < 0.3,
            stop_token_ids=rng.sample(range(1, VOCABULARY), rng.choice([0, 0, 1])),
            skip_reading_prefix_cache=kind == "computed",
            extra_args=extra or None,
        )
        sampling.update_from_generation_config({}, EOS)
        request = Request(f"r{self._count}", prompt, sampling, None, block_hasher=self._hasher)
        client = Client(request, kind, self.clock.now)
        if rng.random() < 0.1:
            if rng.random() < 0.5:
                client.abort_at = self.clock.now + rng.expovariate(3)
            else:
                client.abort_in = rng.choice(["WAITING", "HANDED", "DRAFTING", "PARKED", "VERIFYING", "VERIFYING"])
        self.clients[request.request_id] = client
        self.scheduler.add_request(request)
        due = extra.get("kv_transfer_params", {}).get("remote_first_token")
        if kind == "remote" or client.handed is not None:  # of siblings one
            assert client.handed == due, f"{request.request_id} was to begin with {due}"
        self.counts[kind] += 1

    def _plan(self, order: PullOrder) -> Plan:
        rng, now = self.rng, self.clock.now
        anchor = now + rng.choice([0.001, rng.expovariate(20), rng.expovariate(4)]) + 1e-4
        residual = anchor + rng.choice([0.001, rng.expovariate(5), rng.expovariate(1)]) + 1e-4
        fate = rng.random()
        if fate < 0.10:
            return Plan(anchor, residual, rng.uniform(now, residual))
        if fate < 0.13:
            return Plan(anchor, now + 1e6, None)
        if fate < 0.15:
            return Plan(now + 1e6, now + 2e6, None)
        return Plan(anchor, residual, None)

    def _watch_preemptions(self) -> None:
        preempt = self.scheduler._preempt_request

        def counted(request: Request, *args: Any, **kwargs: Any) -> None:
            remote = self.half.remotes.get(request.request_id)
            self.counts[f"preempted in {remote.decoder.state.name if remote else None}"] += 1
            preempt(request, *args, **kwargs)

        self.scheduler._preempt_request = counted

    def _on_event(self, event: str, request_id: str, **fields: Any) -> None:
        self._listener(event, request_id, **fields)
        self.counts[event] += 1
        if event == "handed":
            self.clients[request_id].handed = self.half.remotes[request_id].first
        if event == "pull":
            self.clients[request_id].method = fields["method"]
        if event in ("verified", "exact") and request_id in self.clients:
            self.clients[request_id].fetched = True
        if event == "verified":
            self.counts["told to wait"] += self.half.remotes[request_id].waited
            self.counts["drafted"] += fields["drafted"]
            self.counts["accepted"] += fields["accepted"]

    # The engine's loop: step and step_with_batch_queue of vLLM's EngineCore.

    def step(self) -> None:
        self.clock.now += STEP_S * self.rng.choice([0.5, 1, 1, 2, 10])
        self._abort()
        verifying = any(remote.decoder.state is State.VERIFYING for remote in self.half.remotes.values())
        if self.rng.random() < (0.03 if verifying else 0.003):
            self._reset()
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self._in_flight.append((output, self.worker.execute(output)))
            if len(self._in_flight) < self._depth and (
                output.total_num_scheduled_tokens or self.scheduler.has_requests()
            ):
                return
        if self._in_flight:
            output, result = self._in_flight.popleft()
            if self._depth > 1:
                self._abort()
            for outputs in self.scheduler.update_from_output(output, result).values():
                for told in outputs.outputs:
                    # Also if its client went away with a first token on its way.
                    assert told.request_id in self.clients, f"{told.request_id} was told after its end"
                    self._take(self.clients[told.request_id], told)
        self._check_often()

    def _asked(self) -> int:
        return sum(self.counts[kind] for kind in KINDS)

    def busy(self) -> bool:
        return bool(self._in_flight or self.scheduler.has_requests())

    def _reset(self) -> None:
        """What /reset_prefix_cache does: all that run are preempted, whatever of them is in flight."""
        self.counts["resets"] += 1
        with contextlib.suppress(RuntimeError):  # blocks that are being loaded, or held, stay
            self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def _abort(self) -> None:
        gone = []
        for request_id, client in self.clients.items():
            remote = self.half.remotes.get(request_id)
            state = remote.decoder.state.name if remote else None
            late = client.abort_at is not None and self.clock.now > client.abort_at
            # A verification lasts for a step or two: who waits for one goes at once.
            now = client.abort_in == "VERIFYING" or self.rng.random() < 0.3
            if late or (client.abort_in is not None and client.abort_in == state and now):
                self.counts[f"aborted in {state}"] += 1
                gone.append(request_id)
        for request_id in gone:
            self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
            del self.clients[request_id]

    def _take(self, client: Client, told: Any) -> None:
        request = client.request
        for token in told.new_token_ids:
            context = request.prompt_token_ids + client.tokens
            expected = {answer(context, quality) for quality in self._due(client)}
            if client.handed is not None and not client.tokens:
                expected = {client.handed}
            assert token in expected, (
                f"{request.request_id} ({client.kind}, preempted {request.num_preemptions} times): token "
                f"{len(client.tokens)} is {token}, not {expected}"
            )
            client.tokens.append(token)
        ended = self._ended(client) if client.tokens else None
        if told.finish_reason is None:
            assert ended is None, f"{request.request_id} went on after {ended}"
            return
        client.finish = told.finish_reason.name.lower()
        if client.finish == "error":
            failing = not self.scheduler.recompute_kv_load_failures
            shown = int(client.handed is not None)
            assert len(client.tokens) == shown and (client.kind == "bad" or failing), f"{request.request_id}: error"
        else:
            assert client.finish == ended and client.kind != "bad", (
                f"{request.request_id}: {client.finish}, not {ended}"
            )
        took = self.clock.now - client.asked_at
        assert took < STARVED_S, f"{request.request_id} took {took:.1f} s"
        self.counts[f"finished: {client.finish}"] += 1
        self.counts["tokens"] += len(client.tokens)
        if client.kind == "prefill":
            assert told.kv_transfer_params["remote_tokens"] == request.num_prompt_tokens
            assert [told.kv_transfer_params["remote_first_token"]] == client.tokens
        del self.clients[request.request_id]

    def _due(self, client: Client) -> set[Quality]:
        """The caches whose answer a client's next token may be."""
        lossy = client.request.sampling_params.extra_args and client.request.sampling_params.extra_args.get(
            "lynx_method"
        )
        recomputed = client.request.num_prompt_tokens == 1 and client.handed is None
        if not client.fetched or lossy == "bf16" or recomputed:
            return {Quality.EXACT}  # nothing came, or nothing was lost, or the last token's KV is all there is
        # Preempted after its verification, a request goes on from its tokens on KV that was computed here.
        return {Quality.EIGHT, Quality.EXACT} if client.request.num_preemptions else {Quality.EIGHT}

    def _ended(self, client: Client) -> str | None:
        sampling, last = client.request.sampling_params, client.tokens[-1]
        if (last == EOS and not sampling.ignore_eos) or last in (sampling.stop_token_ids or ()):
            return "stop"
        full = client.request.num_prompt_tokens + len(client.tokens) >= MAX_MODEL_LEN
        return "length" if full or len(client.tokens) >= sampling.max_tokens else None

    # What must always hold.

    def _check_often(self) -> None:
        for request_id, client in self.clients.items():
            assert self.clock.now - client.asked_at < STARVED_S, f"{request_id} starves: {client.request.status.name}"
        assert self.half.remotes.keys() <= self.scheduler.requests.keys()
        assert self.half.private <= self.scheduler.requests.keys()
        for request_id, remote in self.half.remotes.items():
            due = remote.residual_ready or remote.failure is not None
            waits = due and remote.decoder.state in (State.DRAFTING, State.PARKED)
            running = self.scheduler.requests[request_id].status == RequestStatus.RUNNING
            self._due_for[request_id] = self._due_for[request_id] + 1 if waits and running else 0
            # What is in flight comes back first.
            assert self._due_for[request_id] <= self._depth + 1, f"{request_id} is not verified, or given up, at once"
        if self.rng.random() < 0.1:
            self._check_prefix_cache()

    def _check_prefix_cache(self) -> None:
        """Every block that a lookup can find holds, exactly, what its hash says."""
        for block in self._pool.blocks:
            if block.block_hash is not None:
                first, tokens = self._blocks_of_hash[get_block_hash(block.block_hash)]
                assert self.cache.holds(block.block_id, first, tokens[first:]), f"block {block.block_id} is polluted"
                self.counts["cached blocks checked"] += 1

    def assert_clean(self) -> None:
        scheduler = self.scheduler
        left = {
            "clients": len(self.clients),
            "blocks": self._free - self._pool.get_num_free_blocks(),
            "requests": len(scheduler.requests),
            "running": len(scheduler.running),
            "remotes": len(self.half.remotes),
            "private": len(self.half.private),
            "refused": len(self.half.refused),
            "votes": len(self.half._votes),
            "first tokens": len(self.half.handover),
            "to be told": len(scheduler._lynx_told),
            "steps in flight": scheduler._lynx_in_flight.total(),
            "void steps": scheduler._lynx_void.total(),
            "stale rows": len(scheduler._lynx_stale_rows),
            "jobs": len(self.consumer.jobs),
            "held prompts": len(self.producer.held),
            "prompts held elsewhere": len(self.prompts.keys() - self.consumer.told),
        }
        assert not any(left.values()), f"left: {left}"
        self.runner.assert_empty()
        self._check_prefix_cache()

    def run(self, requests: int) -> None:
        """So many requests, then until nothing is left."""
        goal = self._asked() + requests
        while self._asked() < goal:
            while len(self.clients) < AT_ONCE and self.rng.random() < 0.5:
                self.ask()
            self.step()
        while self.busy():
            self.step()
        self.assert_clean()


def soak(model: Path | str, requests: int, *, asynchronous: bool, seed: int) -> Counter[str]:
    """Half of the requests under each kv_load_failure_policy; returns what happened how often.

    Raises AssertionError, naming the seed, when a client got a wrong token or something was left.
    """
    from lynx_ascend.serving import scheduler_half, scheduler_mixin

    run = Soak(model, asynchronous=asynchronous, seed=seed)
    real = time
    scheduler_half.time = scheduler_mixin.time = run.clock  # type: ignore[assignment]
    try:
        for recompute in (True, False):
            run.scheduler.recompute_kv_load_failures = recompute
            run.run(requests // 2)
    except Exception as error:
        raise AssertionError(f"soak, {'a' if asynchronous else ''}synchronous, seed {seed}: {error!r}") from error
    finally:
        scheduler_half.time = scheduler_mixin.time = real  # type: ignore[assignment]
    return run.counts + run.consumer.counts


def main() -> None:
    from lynx_ascend.evaluation.model import ensure_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    began = time.monotonic()
    counts = soak(ensure_model(), arguments.requests, asynchronous=arguments.mode == "async", seed=arguments.seed)
    for name, count in sorted(counts.items()):
        print(f"{name:32} {count}")
    print(f"{arguments.requests} requests, {arguments.mode}, seed {arguments.seed}: {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
