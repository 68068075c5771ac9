"""A stand-in for vLLM's HTTP API, with a real Producer and its TCP server behind the one that prefills."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from lynx_ascend.serving.layout import LayerKV
from lynx_ascend.serving.metadata import SendOrder
from lynx_ascend.serving.options import LynxOptions
from lynx_ascend.serving.producer import Producer
from lynx_ascend.serving.trace import Trace
from lynx_ascend.serving.transfer_params import RemotePrompt

LAYERS, HEADS, HEAD_DIM, BLOCK, TOKENS = 3, 2, 64, 32, 600
TPOT = 0.004  # seconds that a stand-in takes for each token
ENGINE = "engine"


@dataclass
class Script:
    """What a stand-in answers. handover: turns a real RemotePrompt into the kv_transfer_params of the answer."""

    version: str = "0.32.0"
    models: dict[str, int] = field(default_factory=lambda: {"model": 4096})
    producer: Producer | None = None
    refuse: int | None = None  # HTTP status of completions
    api_key: str | None = None  # without which completions are refused
    handover: Any = RemotePrompt.to_params
    requests: list[dict[str, Any]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        script = self.server.script
        if self.path == "/version":
            return self._answer({"version": script.version})
        if self.path == "/v1/models":
            entries = [{"id": name, "max_model_len": length, "parent": None} for name, length in script.models.items()]
            return self._answer({"object": "list", "data": entries})
        return self._answer({"error": "no such path"}, 404)

    def do_POST(self) -> None:
        script = self.server.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        script.requests.append(body)
        if script.refuse is not None:
            return self._answer({"error": {"message": "the engine says no"}}, script.refuse)
        if script.api_key is not None and self.headers["Authorization"] != f"Bearer {script.api_key}":
            return self._answer({"error": "Unauthorized"}, 401)
        time.sleep(TPOT * body["max_tokens"])
        answer: dict[str, Any] = {"choices": [{"text": "x"}], "kv_transfer_params": None}
        if script.producer is not None and (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            answer["kv_transfer_params"] = script.handover(self._hold(script.producer, len(body["prompt"])))
        return self._answer(answer)

    def _hold(self, producer: Producer, tokens: int) -> RemotePrompt:
        producer.hold(SendOrder("cmpl-1", list(range(-(-tokens // BLOCK))), tokens))
        return RemotePrompt(ENGINE, "cmpl-1", "127.0.0.1", producer.server.port, tokens)

    def _answer(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The stand-in, on a free port; gives its URL."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.script = script
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)


@contextmanager
def producing(**options: Any) -> Iterator[Producer]:
    """A Producer over a cache of random bf16. options: those of LynxOptions."""
    shape = (-(-TOKENS // BLOCK), BLOCK, HEADS, HEAD_DIM)
    generator = torch.Generator().manual_seed(0)
    caches = [[torch.randn(shape, generator=generator).bfloat16() for _ in "KV"] for _ in range(LAYERS)]
    layers = [LayerKV(index, f"l{index}", *pair) for index, pair in enumerate(caches)]
    producer = Producer(layers, LynxOptions(**options), ENGINE, Trace(None, "test"))
    try:
        yield producer
    finally:
        producer.close()
