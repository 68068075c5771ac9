"""The worker half of a decode instance: pulls prompts, stages their frames, and writes them into the paged cache."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field

from lynx_ascend.codec.config import CodecConfig, Stream
from lynx_ascend.frame import Frame, FrameError, FrameHeader, parse
from lynx_ascend.paged import PagedKV, check_frame, frame_header, num_pages, wire_bytes, write_page
from lynx_ascend.serving.counting import Listener
from lynx_ascend.serving.layout import BlockTable, LayerKV
from lynx_ascend.serving.metadata import LynxWorkerMetadata, Progress, PullOrder
from lynx_ascend.serving.options import LynxOptions
from lynx_ascend.serving.transfer_params import RemotePrompt
from lynx_ascend.speculation.break_even import KVCosts
from lynx_ascend.transport.events import FaultKind, Item, Received, StreamEnd, StreamFault, TransportError
from lynx_ascend.transport.receiver import StreamClient

logger = logging.getLogger("vllm.lynx_ascend.consumer")
# Frames are decoded between two forward passes: no longer than this at a time, or than this share of the time that the
# last pass took, or other requests would wait. The share is what keeps up with the link where passes are long.
STEP_BUDGET_S, STEP_SHARE = 0.008, 0.25
FRAMES_A_LOOK = 16

PageKey = tuple[int, bool, int]  # layer, is_value, page


@dataclass
class _Job:
    """One prompt on its way. A page's frames stay staged until the blocks hold its reconstruction from all streams."""

    order: PullOrder
    deadline: float
    blocks: BlockTable
    sizes: dict[Stream, int]  # bytes on the wire
    frames: dict[Stream, dict[PageKey, Frame | None]] = field(init=False)  # None: in the blocks already
    received: dict[Stream, int] = field(init=False)  # bytes
    first_at: float = math.inf  # time.monotonic() when the first frame was here
    last_at: float = -math.inf  # and the last one
    ended: set[Stream] = field(default_factory=set)
    staged: int = 0  # bytes of `frames`
    decode_s: dict[Stream, float] = field(init=False)  # time spent on its frames, by stream
    reported: bool = False  # the scheduler has been told that the load is over, well or badly

    def __post_init__(self) -> None:
        self.frames = {stream: {} for stream in self.sizes}
        self.received = dict.fromkeys(self.sizes, 0)
        self.decode_s = dict.fromkeys(self.sizes, 0.0)

    @property
    def complete(self) -> bool:
        return len(self.ended) == len(self.frames)

    def count(self, item: Received) -> None:
        self.received[item.stream] += len(item.frame)
        self.first_at = min(self.first_at, item.received_at)
        self.last_at = max(self.last_at, item.received_at)

    def progress(self, now: float) -> Progress:
        left = self.sizes.get(Stream.RESIDUAL, 0) - self.received.get(Stream.RESIDUAL, 0)
        return Progress(left, sum(self.received.values()), self.last_at - self.first_at, now - self.last_at)


class Consumer:
    """Pulls, staging and decoding. All methods are called by the engine's thread; only the client has others.

    That is what keeps the cache safe: nothing asynchronous writes a block, so a request's blocks may be freed the
    moment the scheduler says so. On a device "the engine's thread" means its current stream, the one that the forward
    pass is queued on: a decoding is queued between two passes, after those that may still write a freed block, before
    those that read it.

    Args:
        layers: the KV cache, [blocks, block_size, heads, head_dim] views.
        engine_id: this instance's, told to the peers.
        costs: told to the scheduler with the first report.
    """

    def __init__(
        self, layers: list[LayerKV], options: LynxOptions, engine_id: str, trace: Listener, costs: KVCosts
    ) -> None:
        self._layers = layers
        self._options = options
        self._trace = trace
        self._client = StreamClient(engine_id, stall_s=options.stall, tls=options.tls)
        self._jobs: dict[str, _Job] = {}
        self._generations: dict[tuple[str, int], str] = {}
        self._config = CodecConfig()
        self._report = LynxWorkerMetadata(costs=costs)
        self._completed: list[_Job] = []  # since the last report
        self._finished: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._polled_at = math.inf

    def pull(self, order: PullOrder) -> None:
        """Start fetching a prompt."""
        if not self._jobs:
            self._polled_at = time.monotonic()  # an engine that rested took no pass
        blocks = BlockTable(order.block_ids, self._layers[0].key.device)
        source, cache = order.source, self._layers[0].key
        heads, head_dim = cache.shape[2:]
        try:
            sizes = wire_bytes(order.method, source.remote_tokens, heads=heads, head_dim=head_dim, dtype=cache.dtype)
        except ValueError as error:  # layers may have other heads than the model is said to have
            self._fail(_Job(order, math.inf, blocks, {}), "refused", str(error))
            return
        sizes = {stream: 2 * len(self._layers) * nbytes for stream, nbytes in sizes.items()}
        job = _Job(order, time.monotonic() + self._options.deadline, blocks, sizes)
        rivals = [j for j in self._jobs.values() if j.order.source.remote_request_id == order.source.remote_request_id]
        self._jobs[order.request_id] = job
        self._generations[order.source.remote_request_id, order.generation] = order.request_id
        args: dict[str, str | int] = {"method": order.method, "tokens": order.source.remote_tokens}
        if order.bandwidth is not None:
            args["bits_per_s"] = int(order.bandwidth * 1e6)
        try:
            if rivals:  # n > 1: a newer pull would end the one under way, and a prompt is handed out only once
                raise TransportError(f"request {rivals[0].order.request_id} is fetching this prompt")
            for stream in job.frames:
                self._client.pull(
                    (source.remote_host, source.remote_port),
                    source.remote_request_id,
                    order.generation,
                    stream,
                    args,
                    max_bytes=sizes[stream],
                    engine_id=source.remote_engine_id,
                )
        except (TransportError, ValueError) as error:
            self._fail(job, "refused", str(error))

    def decline(self, prompt: RemotePrompt) -> None:
        """A prompt will not be fetched: its prefill instance need not wait for the end of the lease."""
        peer = prompt.remote_host, prompt.remote_port
        try:
            self._client.decline(peer, prompt.remote_request_id, engine_id=prompt.remote_engine_id)
        except (TransportError, ValueError) as error:  # what a client wrote must not end the engine
            logger.error("prompt %r is not declined: %s", prompt.remote_request_id, error)

    def drop(self, request_id: str) -> None:
        """The request has ended or goes on without the transfer: forget every byte of it."""
        job = self._jobs.get(request_id)
        if job is None:
            return
        self._forget(job)
        if not job.reported:
            # The scheduler keeps the blocks of an aborted load until the worker lets go of them.
            self._finished.add(request_id)

    def poll(self) -> None:
        """Take in what has arrived, anchors first, within the step's budget."""
        now = time.monotonic()
        until = now + max(STEP_BUDGET_S, STEP_SHARE * (now - self._polled_at))
        while self._jobs and time.monotonic() < until:
            items = self._client.drain(FRAMES_A_LOOK)
            for item in items:
                self._take(item)
            if len(items) < FRAMES_A_LOOK:
                break
        now = self._polled_at = time.monotonic()
        for job in list(self._jobs.values()):
            if now > job.deadline and not job.complete:
                self._fail(job, "deadline", f"not complete after the deadline of {self._options.deadline:g} s")

    def finished(self) -> set[str]:
        """Requests whose loads are over since the last call, well or badly."""
        finished, self._finished = self._finished, set()
        return finished

    def failed_blocks(self) -> set[int]:
        """Blocks whose loads failed since the last call; the requests are among those of `finished`."""
        blocks, self._failed_blocks = self._failed_blocks, set()
        return blocks

    def report(self) -> LynxWorkerMetadata | None:
        """What became ready or failed since the last call, and how far the transfers are whose requests may draft."""
        report, self._report = self._report, LynxWorkerMetadata()
        now = time.monotonic()
        moving = [job for job in self._jobs.values() if job.reported]
        report.progress = {job.order.request_id: job.progress(now) for job in moving + self._completed}
        self._completed.clear()
        return report if report != LynxWorkerMetadata() else None

    def staged_bytes(self) -> int:
        """Bytes of frames held here or waiting to be taken in."""
        return self._client.staged_bytes() + sum(job.staged for job in self._jobs.values())

    def close(self) -> None:
        self._client.close()

    # Arrival.

    def _take(self, item: Item) -> None:
        request_id = self._generations.get((item.transfer_id, item.generation))
        if request_id is None:
            return
        job = self._jobs[request_id]
        try:
            match item:
                case Received():
                    began = time.monotonic()
                    self._take_frame(job, item)
                    job.decode_s[item.stream] += time.monotonic() - began
                case StreamEnd():
                    self._take_end(job, item)
                case StreamFault():
                    self._fail(job, item.kind, f"{item.stream.name.lower()} stream: {item.reason}")
        except FrameError as error:
            self._fail(job, "frame", str(error))

    def _take_frame(self, job: _Job, item: Received) -> None:
        sent, _ = FrameHeader.unpack(item.frame)
        key = (sent.layer, sent.is_value, sent.page_index)
        frame = parse(item.frame, self._expected(job, item.stream, key, sent))
        check_frame(frame)
        if key in job.frames[item.stream]:
            raise sent.error("page_index", f"layer {sent.layer} sent twice")
        job.frames[item.stream][key] = frame
        job.count(item)
        job.staged += frame.data.nbytes
        if all(key in frames for frames in job.frames.values()):
            # Also while the request drafts: a page is refined the moment its residual is here, so the last drafts are
            # better than the first, and nothing is left to be written when the verify pass is due.
            self._decode(job, key)
        elif item.stream is Stream.ANCHOR and not job.order.wait_all:
            write_page(frame, None, self._target(job, key), first=job.order.first)

    def _expected(self, job: _Job, stream: Stream, key: PageKey, sent: FrameHeader) -> FrameHeader:
        layer, is_value, page = key
        tokens = job.order.source.remote_tokens
        if layer >= len(self._layers):
            raise sent.error("layer", f"{layer}, but the model has {len(self._layers)}")
        if page >= num_pages(tokens, self._config.page):
            raise sent.error("page_index", f"{page} is beyond the prompt's {tokens} tokens")
        cache = self._layers[layer].key
        return frame_header(
            job.order.method,
            stream,
            page,
            tokens=tokens,
            heads=cache.shape[2],
            head_dim=cache.shape[3],
            dtype=cache.dtype,
            layer=layer,
            is_value=is_value,
            generation=job.order.generation,
        )

    def _take_end(self, job: _Job, end: StreamEnd) -> None:
        request_id, name = job.order.request_id, end.stream.name.lower()
        expected = 2 * len(self._layers) * num_pages(job.order.source.remote_tokens, self._config.page)
        if len(job.frames[end.stream]) != expected:
            got = len(job.frames[end.stream])
            self._fail(job, FaultKind.PROTOCOL, f"{name} stream: ended after {got} of {expected} frames")
            return
        times = {"first_at": end.first_at, "last_at": end.last_at, "decode_s": job.decode_s[end.stream]}
        self._trace("received", request_id, stream=name, nbytes=end.nbytes, frames=end.frames, **times)
        job.ended.add(end.stream)
        if job.order.wait_all:
            if job.complete:
                self._finish(job)
        elif end.stream is Stream.ANCHOR:
            self._finish(job)
        else:
            self._report.residual_ready[request_id] += 1
        if job.complete:
            self._completed.append(job)
            self._trace("complete", request_id)
            self._forget(job)

    def _decode(self, job: _Job, key: PageKey) -> None:
        """Write one page's reconstruction from all its streams, and let go of its frames."""
        anchor, *later = (frames[key] for frames in job.frames.values())
        assert anchor is not None
        residual = later[0] if later else None
        write_page(anchor, residual, self._target(job, key), first=job.order.first)
        job.staged -= anchor.data.nbytes + (0 if residual is None else residual.data.nbytes)
        for frames in job.frames.values():
            frames[key] = None

    def _target(self, job: _Job, key: PageKey) -> PagedKV:
        layer, is_value, _ = key
        return self._layers[layer].paged(is_value, job.blocks)

    # The end of a job.

    def _finish(self, job: _Job) -> None:
        job.reported = True
        self._finished.add(job.order.request_id)
        self._trace("loaded", job.order.request_id)

    def _fail(self, job: _Job, kind: str, reason: str) -> None:
        """Ends a transfer. kind: one of metrics.FAILURES; reason: for people."""
        request_id = job.order.request_id
        where = f"{job.order.source.remote_host}:{job.order.source.remote_port}"
        logger.error("request %s: KV transfer from %s failed: %s", request_id, where, reason)
        self._trace("failed", request_id, kind=kind, reason=reason)
        self._report.failures[request_id] = reason
        if not job.reported:
            self._failed_blocks.update(job.order.block_ids[job.order.first // self._layers[0].key.shape[1] :])
            self._finish(job)
        self._forget(job)

    def _forget(self, job: _Job) -> None:
        source, generation = job.order.source, job.order.generation
        if self._jobs.pop(job.order.request_id, None) is None:
            return
        del self._generations[source.remote_request_id, generation]
        if not job.complete:
            self._client.cancel(source.remote_request_id, generation)
