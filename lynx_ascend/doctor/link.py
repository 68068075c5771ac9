"""The KV link to a prefill instance: reachable, how far away, and how fast a prompt comes when D's client pulls it."""

from __future__ import annotations

import ipaddress
import socket
import time
import uuid
from dataclasses import dataclass

from lynx_ascend.codec.config import CodecConfig, Stream
from lynx_ascend.frame import FrameError, FrameHeader, parse
from lynx_ascend.methods import TORCH_DTYPES, num_pages, streams
from lynx_ascend.paged import check_frame
from lynx_ascend.serving.transfer_params import RemotePrompt
from lynx_ascend.speculation.break_even import KVCosts
from lynx_ascend.transport import Received, StreamClient, StreamEnd, StreamFault, TransportError
from lynx_ascend.transport.tls import TlsConfig

METHOD = "lynx"
MAX_BYTES = 16 << 30  # of a stream: any prompt that is worth a test; frames are let go of as they come
CONNECTS = 3


class LinkError(RuntimeError):
    """The prompt cannot be fetched; the message says where that ended."""


@dataclass(frozen=True)
class Link:
    """One prompt as it came.

    Attributes:
        tokens: of the prompt. raw: bytes of its uncompressed cache. nbytes: on the wire, by stream.
        seconds: from the first byte to the last.
    """

    tokens: int
    raw: int
    nbytes: dict[Stream, int]
    seconds: float

    @property
    def total(self) -> int:
        """Bytes on the wire."""
        return sum(self.nbytes.values())

    @property
    def bandwidth(self) -> float:
        """Bits a second."""
        return 8 * self.total / self.seconds

    def kv_costs(self) -> KVCosts:
        """Bytes of a token of such a prompt; the codec's time is in `seconds` already."""
        anchor, residual = (self.nbytes[stream] / self.tokens for stream in (Stream.ANCHOR, Stream.RESIDUAL))
        return KVCosts(self.raw / self.tokens, anchor, residual)


def is_local(host: str) -> bool:
    """True for an address that means "this machine" to whoever uses it: loopback or unspecified (0.0.0.0)."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def tls_files(cert: str | None, key: str | None, ca: str | None) -> TlsConfig | None:
    """The files to fetch by TLS with, None for none. Raises ValueError where only some are given."""
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise ValueError("--tls-cert, --tls-key and --tls-ca are given together")
    return TlsConfig(cert, key, ca)


def round_trip(host: str, port: int, timeout: float) -> float:
    """Seconds that a TCP connection takes, the fastest of a few: one round trip.

    Raises:
        LinkError: there is none.
    """
    best = timeout
    for _ in range(CONNECTS):
        began = time.monotonic()
        try:
            socket.create_connection((host, port), timeout).close()
        except (OSError, UnicodeError) as error:  # the latter: no name of a host
            raise LinkError(f"{host}:{port}: {error}") from None
        best = min(best, time.monotonic() - began)
    return best


def fetch(prompt: RemotePrompt, timeout: float, tls: TlsConfig | None = None) -> Link:
    """Pulls both streams of a prompt that P holds; P lets go of it when it has encoded it, or hears of the failure.

    Every frame is checked as a decode instance checks it, and forgotten.

    Args:
        timeout: seconds for all of it.
        tls: files that P accepts, where it serves by TLS.

    Raises:
        LinkError: P is another engine, fails the transfer, or is too slow; or a frame is damaged, or a file of `tls`.
    """
    name = f"lynx-doctor-{uuid.uuid4().hex}"
    try:
        client = StreamClient(name, connect_timeout_s=timeout, connect_retries=0, stall_s=timeout, tls=tls)
    except TransportError as error:
        raise LinkError(str(error)) from None
    generation = time.time_ns() // 1000
    args: dict[str, str | int] = {"method": METHOD, "tokens": prompt.remote_tokens}
    try:
        for stream in streams(METHOD):
            client.pull(
                (prompt.remote_host, prompt.remote_port),
                prompt.remote_request_id,
                generation,
                stream,
                args,
                max_bytes=MAX_BYTES,
                engine_id=prompt.remote_engine_id,
            )
        return _receive(client, prompt.remote_tokens, time.monotonic() + timeout)
    except (TransportError, FrameError, ValueError) as error:
        raise LinkError(str(error)) from None
    finally:
        client.cancel(prompt.remote_request_id, generation)
        client.close()


def _receive(client: StreamClient, tokens: int, deadline: float) -> Link:
    expected = set(streams(METHOD))
    ends: dict[Stream, StreamEnd] = {}
    layers, raw = set(), 0
    while ends.keys() != expected:
        if time.monotonic() > deadline or not client.wait(deadline - time.monotonic()):
            raise LinkError("not complete in time")
        for item in client.drain(64):
            match item:
                case Received():
                    header = _checked(item)
                    layers.add((header.layer, header.is_value))
                    if item.stream is Stream.ANCHOR:
                        raw += header.tokens * header.heads * header.head_dim * TORCH_DTYPES[header.dtype].itemsize
                case StreamEnd():
                    ends[item.stream] = item
                case StreamFault():
                    raise LinkError(f"{item.stream.name.lower()} stream: {item.reason}")
    frames = len(layers) * num_pages(tokens, CodecConfig().page)
    for stream, end in ends.items():
        if end.frames != frames or not frames:
            raise LinkError(f"{stream.name.lower()} stream: {end.frames} frames, expected {frames}")
    seconds = max(end.last_at for end in ends.values()) - min(end.first_at for end in ends.values())
    if seconds <= 0:
        raise LinkError(f"{tokens} tokens are too few to be timed")
    return Link(tokens, raw, {stream: end.nbytes for stream, end in ends.items()}, seconds)


def _checked(item: Received) -> FrameHeader:
    frame = parse(item.frame)
    check_frame(frame)
    if frame.header.generation != item.generation or frame.header.stream is not item.stream:
        raise frame.header.error("generation", "a frame of another transfer or stream")
    return frame.header
