"""The control messages of the split-stream transport and their framing on a socket (docs/transport.md, "Wire")."""

from __future__ import annotations

import struct
from typing import Annotated, Generic, TypeVar

import msgspec

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport.events import ProtocolError

PROTOCOL_VERSION = 1
MAX_MESSAGE = 64 << 10  # bytes of one encoded message, checked before anything of that size is allocated
MAX_NAME = 512  # characters of a transfer's or an engine's name
MAX_COUNT = 2**53  # readers that keep numbers as doubles hold it exactly
MAX_REASON = 1024  # characters of a Fault's reason; longer ones are cut by the sender

_LENGTH = struct.Struct("<I")

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Args = bytes | dict[str, str | int]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages: a msgpack array whose first element is the tag and whose length is exact."""


class Hello(Message, tag="hello", frozen=True):
    """Receiver to sender, first on every connection: who connects and which stream this connection carries."""

    version: Count
    engine_id: Name
    stream: Stream


class HelloReply(Message, tag="welcome", frozen=True):
    """Sender's answer. A sender of another version answers with its own version and then ignores the connection."""

    version: Count
    engine_id: Name


class Pull(Message, tag="pull", frozen=True):
    """Receiver asks for one stream of a transfer; `args` belong to the source and mean nothing to the transport."""

    transfer_id: Name
    generation: Count
    stream: Stream
    args: Args


class FrameHead(Message, tag="frame", frozen=True):
    """Announces `nbytes` raw bytes that follow this message at once; `sequence` counts from 0 within a stream."""

    transfer_id: Name
    generation: Count
    sequence: Count
    nbytes: Count


class End(Message, tag="end", frozen=True):
    """The stream is complete: how many frames and payload bytes were sent."""

    transfer_id: Name
    generation: Count
    frames: Count
    nbytes: Count


class Cancel(Message, tag="cancel", frozen=True):
    """Receiver no longer wants the transfer, on any stream. Idempotent."""

    transfer_id: Name
    generation: Count


class Fault(Message, tag="fault", frozen=True):
    """Sender cannot complete the transfer; sent on each of its unfinished streams."""

    transfer_id: Name
    generation: Count
    reason: str


ToSender = Hello | Pull | Cancel
ToReceiver = HelloReply | FrameHead | End | Fault

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """The bytes of `message` on the wire: u32 little-endian length, then msgpack.

    Raises:
        ProtocolError: the message is larger than MAX_MESSAGE, or holds a number or a string that msgpack has none for.
    """
    try:
        body = _encoder.encode(message)
    except (OverflowError, UnicodeEncodeError) as error:
        raise ProtocolError(f"{type(message).__name__}: {error}") from error
    if len(body) > MAX_MESSAGE:
        raise ProtocolError(f"{type(message).__name__} of {len(body)} bytes exceeds the cap of {MAX_MESSAGE}")
    return _LENGTH.pack(len(body)) + body


def check_transfer(transfer_id: str, generation: int) -> None:
    """Raises ValueError unless a message may name this transfer.

    The peer would close the connection, and so end every other transfer on it.
    """
    if not 1 <= len(transfer_id) <= MAX_NAME:
        raise ValueError(f"transfer_id: {len(transfer_id)} characters are outside 1 .. {MAX_NAME}")
    if not 0 <= generation <= MAX_COUNT:
        raise ValueError(f"generation: {generation} is outside 0 .. {MAX_COUNT}")


M = TypeVar("M")


class MessageBuffer(Generic[M]):
    """Incremental, sans-I/O reader of messages (and of the raw bytes between them) from one connection.

    Args:
        decoder: a msgspec decoder of the union of messages that this side accepts.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._decoder = decoder
        self._data = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        """Append what the socket gave."""
        self._data += data

    def next(self) -> M | None:
        """The next complete message, or None when more bytes are needed.

        Raises:
            ProtocolError: a message that is empty, larger than MAX_MESSAGE, of an unknown kind or malformed.
        """
        if len(self._data) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._data)
        if not 0 < size <= MAX_MESSAGE:
            tls = self._data[0] in (0x15, 0x16) and self._data[1] == 3  # the beginning of a record
            hint = ": the peer speaks TLS, and tls_cert, tls_key and tls_ca are not set here" if tls else ""
            raise ProtocolError(f"message of {size} bytes is outside 1 .. {MAX_MESSAGE}{hint}")
        end = _LENGTH.size + size
        if len(self._data) < end:
            return None
        try:
            message = self._decoder.decode(bytes(self._data[_LENGTH.size : end]))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ProtocolError(f"malformed message of {size} bytes: {error}") from error
        del self._data[:end]
        return message

    def pending(self) -> bool:
        """Whether part of a message is here already."""
        return bool(self._data)

    def take(self, limit: int) -> bytearray:
        """Up to `limit` buffered raw bytes: the part of a frame's payload that was read along with its head."""
        taken = self._data[:limit]
        del self._data[:limit]
        return taken


def sender_buffer() -> MessageBuffer[ToSender]:
    """A reader of what receivers send."""
    return MessageBuffer(msgspec.msgpack.Decoder(ToSender))


def receiver_buffer() -> MessageBuffer[ToReceiver]:
    """A reader of what senders send."""
    return MessageBuffer(msgspec.msgpack.Decoder(ToReceiver))
