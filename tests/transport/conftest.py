"""Fixtures of the transport tests. Every test also checks that it leaves no thread and no descriptor behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from lynx_ascend.transport import StreamClient, StreamServer
from tests.transport.transport_rig import ScriptedSource, eventually


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    before, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    yield
    eventually(lambda: set(threading.enumerate()) <= threads, "threads have ended")
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before, "descriptors are closed")


@pytest.fixture
def cleanup(no_leaks: None) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def serve(cleanup: ExitStack) -> Callable[..., StreamServer]:
    """serve(source, **options) starts a server that is closed with the test."""

    def make(source: ScriptedSource, port: int = 0, engine_id: str = "P", **options: object) -> StreamServer:
        server = StreamServer("127.0.0.1", port, source, engine_id=engine_id, **options)
        cleanup.callback(server.close)
        return server

    return make


@pytest.fixture
def connect(cleanup: ExitStack) -> Callable[..., StreamClient]:
    """connect(**options) makes a client that is closed with the test."""

    def make(engine_id: str = "D", **options: object) -> StreamClient:
        client = StreamClient(engine_id, **options)
        cleanup.callback(client.close)
        return client

    return make
