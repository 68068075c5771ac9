"""Throughput of the stream transport between two processes on loopback, in the clear and by mutual TLS.

    python benchmarks/transport.py [--megabytes 1000] [--frame 50000] [--rounds 3]

Rounds alternate between the two; the best of each is printed, beside the CPU time of both ends.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport import Sink, StreamClient, StreamEnd, StreamFault, StreamServer
from lynx_ascend.transport.tls import TlsConfig

STREAMS = (Stream.ANCHOR, Stream.RESIDUAL)


class Source:
    """Sends one frame over and over."""

    def __init__(self, frame: bytes, count: int) -> None:
        self._frame, self._count = frame, count

    def open(self, transfer_id: str, generation: int, stream: Stream, args: Any, sink: Sink) -> None:
        for _ in range(self._count):
            sink.put(stream, self._frame)
        sink.close(stream)

    def sent(self, *args: Any) -> None:
        return

    def cancelled(self, *args: Any) -> None:
        return


def cpu_seconds() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(pipe: Connection, frame: int, count: int, tls: TlsConfig | None) -> None:
    server = StreamServer("127.0.0.1", 0, Source(bytes(frame), count), engine_id="P", tls=tls)
    before = cpu_seconds()
    pipe.send(server.port)
    pipe.recv()
    pipe.send(cpu_seconds() - before)
    server.close()


def measure(
    streams: Iterable[Stream], frame: int, count: int, theirs: TlsConfig | None, ours: TlsConfig | None
) -> tuple[float, float]:
    """Bytes per second, and CPU seconds of both ends per gigabyte."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, frame, count, theirs))
    process.start()
    port = here.recv()
    client = StreamClient("D", tls=ours)
    before = cpu_seconds()
    began, total, open_streams = time.monotonic(), 0, set(streams)
    for stream in list(open_streams):
        client.pull(("127.0.0.1", port), "t", 1, stream, b"", max_bytes=2 * frame * count)
    while open_streams:
        client.wait(1.0)
        for item in client.drain():
            if isinstance(item, StreamFault):
                raise RuntimeError(item.reason)
            if isinstance(item, StreamEnd):
                total += item.nbytes
                open_streams.remove(item.stream)
    seconds = time.monotonic() - began
    cpu = cpu_seconds() - before
    here.send(None)
    cpu += here.recv()
    client.close()
    process.join()
    return total / seconds, cpu / total * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--frame", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.certificates import Authority

    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        files = {"clear": (None, None), "TLS": (authority.issue("p"), authority.issue("d"))}
        for streams in (STREAMS[:1], STREAMS):
            count = args.megabytes * 1_000_000 // args.frame // len(streams)
            best = dict.fromkeys(files, (0.0, 0.0))
            for _ in range(args.rounds):
                for name, pair in files.items():
                    best[name] = max(best[name], measure(streams, args.frame, count, *pair))
            for name, (rate, cpu) in best.items():
                print(
                    f"{len(streams)} stream(s), {name}: {rate / 1e9:.2f} GB/s, {cpu:.2f} CPU s/GB in both ends",
                    flush=True,
                )


if __name__ == "__main__":
    main()
