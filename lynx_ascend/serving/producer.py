"""The worker half of a prefill instance: holds prompts and encodes them, page by page, when they are pulled."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from lynx_ascend.codec.config import Stream
from lynx_ascend.paged import METHODS, PageEncoder, streams
from lynx_ascend.serving.counting import Listener
from lynx_ascend.serving.layout import BlockTable, LayerKV
from lynx_ascend.serving.metadata import SendOrder
from lynx_ascend.serving.options import LynxOptions
from lynx_ascend.serving.side_stream import SideStream
from lynx_ascend.transport.events import StreamStats
from lynx_ascend.transport.messages import Args
from lynx_ascend.transport.sender import StreamServer
from lynx_ascend.transport.source import Sink

logger = logging.getLogger("vllm.lynx_ascend.producer")
# A decode instance may hear of a prompt, through the proxy, before this worker's next engine step.
ARRIVAL_WAIT_S = 5.0
CLAIMS = 4096  # pulls that are remembered: a second stream's may come when the first one's has written both


class PullError(RuntimeError):
    """A pull that cannot be served; its text goes to the puller."""


@dataclass
class _Held:
    order: SendOrder
    expires: float
    computed: Any  # SideStream.mark: behind the forward passes of the prompt
    readers: int = 0  # pulls that encode it: several, where as many decode instances ask


class Producer:
    """A StreamServer and the prompts it serves. The engine's thread calls hold/finished, the server's the rest.

    Args:
        layers: the KV cache, [blocks, block_size, heads, head_dim] views.
        options: host, port, bandwidth and lease.
        engine_id: what receivers must find here.
    """

    def __init__(self, layers: list[LayerKV], options: LynxOptions, engine_id: str, trace: Listener) -> None:
        self._layers = layers
        self._stream = SideStream(layers[0].key.device)
        self._lease = options.lease
        self._trace = trace
        self._held: dict[str, _Held] = {}
        self._released: set[str] = set()
        self._claims: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._unwanted: dict[str, float] = {}  # prompts that were declined before they were held, and when
        self._changed = threading.Condition()
        rate = None if options.bandwidth is None else options.bandwidth * 1e6 / 8
        self.server = StreamServer(
            options.host, options.port, self, rate, engine_id=engine_id, stall_s=options.stall, tls=options.tls
        )
        if options.exposed:
            logger.warning("KV is served on %s in the clear, to whoever connects: see tls_cert", options.host)

    # The engine's thread.

    def hold(self, order: SendOrder) -> None:
        """Keep a prompt's blocks until they are encoded for a peer, declined by it, or the lease is over."""
        computed = self._stream.mark()
        with self._changed:
            if self._unwanted.pop(order.request_id, -math.inf) > time.monotonic() - ARRIVAL_WAIT_S:
                self._released.add(order.request_id)
                return
            self._held[order.request_id] = _Held(order, time.monotonic() + self._lease, computed)
            self._changed.notify_all()

    def finished(self) -> set[str]:
        """Requests whose blocks can be freed, each once."""
        with self._changed:
            now = time.monotonic()
            for request_id, held in list(self._held.items()):
                if not held.readers and now > held.expires:
                    logger.warning("request %s: nobody fetched its KV within %g s", request_id, self._lease)
                    self._trace("expired", request_id)
                    del self._held[request_id]
                    self._released.add(request_id)
            released, self._released = self._released, set()
            return released

    def close(self) -> None:
        self.server.close()

    # The server's threads (transport.source.Source).

    def open(self, transfer_id: str, generation: int, stream: Stream, args: Args, sink: Sink) -> None:
        """Encodes the prompt: the first pull of a generation writes all its streams, page by page."""
        held = self._claim(transfer_id, generation)
        if held is None:
            return
        try:
            with self._stream.after(held.computed):
                self._encode(held, generation, args, sink)
        finally:
            # The frames are copies: the blocks can go, whether or not the peer takes them all.
            with self._changed:
                held.readers -= 1
                if not held.readers:
                    del self._held[transfer_id]
                    self._released.add(transfer_id)

    def sent(self, transfer_id: str, generation: int, stream: Stream, stats: StreamStats) -> None:
        times = {"first_at": stats.first_at, "last_at": stats.last_at}
        self._trace("sent", transfer_id, stream=stream.name.lower(), nbytes=stats.nbytes, **times)

    def cancelled(self, transfer_id: str, generation: int) -> None:
        self._trace("cancelled", transfer_id)
        with self._changed:
            held, now = self._held.get(transfer_id), time.monotonic()
            if held is None:
                self._unwanted = {name: at for name, at in self._unwanted.items() if at > now - ARRIVAL_WAIT_S}
                self._unwanted[transfer_id] = now
            elif not held.readers:  # else their end frees it
                del self._held[transfer_id]
                self._released.add(transfer_id)

    def _claim(self, transfer_id: str, generation: int) -> _Held | None:
        """The prompt, for the first pull of this generation; None for the pulls of its other streams."""
        with self._changed:
            claim = transfer_id, generation
            self._changed.wait_for(lambda: transfer_id in self._held or claim in self._claims, ARRIVAL_WAIT_S)
            if claim in self._claims:
                return None
            held = self._held.get(transfer_id)
            if held is None:
                raise PullError(f"no prompt {transfer_id!r} waits here: unknown, expired or already fetched")
            self._claims[claim] = None
            if len(self._claims) > CLAIMS:
                self._claims.popitem(last=False)
            held.readers += 1
            return held

    def _encode(self, held: _Held, generation: int, args: Args, sink: Sink) -> None:
        method, tokens = self._read_args(held, args, sink)
        blocks = BlockTable(held.order.block_ids, self._layers[0].key.device)
        encoders = [
            PageEncoder(
                method,
                layer.paged(is_value, blocks),
                tokens,
                layer=layer.index,
                is_value=is_value,
                generation=generation,
            )
            for layer in self._layers
            for is_value in (False, True)
        ]
        request_id = held.order.request_id
        for page in range(encoders[0].num_pages):
            started = time.monotonic()
            busy = 0.0
            for encoder in encoders:
                before = time.monotonic()
                frames = encoder.page(page)
                busy += time.monotonic() - before
                for stream, frame in frames.items():
                    sink.put(stream, frame)
            self._trace("encoded", request_id, page=page, started_at=started, busy_s=busy)
        for stream in streams(method):
            sink.close(stream)

    def _read_args(self, held: _Held, args: Args, sink: Sink) -> tuple[str, int]:
        if not isinstance(args, dict) or not {"method", "tokens"} <= args.keys():
            raise PullError("args: method and tokens are required")
        method, tokens, bandwidth = args["method"], args["tokens"], args.get("bits_per_s", 0)
        if not isinstance(method, str) or method not in METHODS:
            raise PullError(f"args.method: {method!r} is none of {', '.join(METHODS)}")
        if tokens != held.order.tokens:
            raise PullError(f"args.tokens: {tokens!r}, but the prompt has {held.order.tokens}")
        if not isinstance(bandwidth, int) or bandwidth < 0:
            raise PullError(f"args.bits_per_s: {bandwidth!r} is not a non-negative integer")
        if bandwidth:
            sink.rate_limit(bandwidth / 8)
        return method, held.order.tokens
