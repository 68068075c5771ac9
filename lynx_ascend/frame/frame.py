"""One frame: a header and its payload in one buffer, sealed by a checksum."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from .header import CHECKSUM_OFFSET, HEADER_BYTES, FrameHeader

_ZERO = bytes(HEADER_BYTES - CHECKSUM_OFFSET)


@dataclass(frozen=True)
class Frame:
    """A frame that `parse` has accepted.

    Attributes:
        header: what it says.
        data: the whole frame as it is on the wire, a view of the caller's buffer.
    """

    header: FrameHeader
    data: memoryview

    @property
    def payload(self) -> memoryview:
        """header.payload_bytes bytes, a view."""
        return self.data[HEADER_BYTES:]


def seal(frame: bytearray | memoryview, header: FrameHeader) -> None:
    """Writes the header and the checksum into `frame`, whose payload is already in place behind 64 free bytes.

    Raises:
        FrameError: the buffer does not hold exactly header.payload_bytes of payload.
    """
    _check_size(len(frame), header)
    frame[:HEADER_BYTES] = header.pack()
    frame[:HEADER_BYTES] = header.pack(xxhash.xxh3_64_intdigest(frame))


def parse(data: bytes | bytearray | memoryview, expected: FrameHeader | None = None) -> Frame:
    """Checks one whole frame and returns a view of it; nothing is copied or allocated.

    Args:
        data: exactly one frame. expected: the header it must have, if the receiver knows (generation included).

    Raises:
        FrameError: naming the first field that is wrong. The payload's meaning is the codec's to check.
    """
    view = memoryview(data).cast("B")
    header, checksum = FrameHeader.unpack(view)
    if expected is not None:
        header.require(expected)
    _check_size(len(view), header)
    digest = xxhash.xxh3_64()
    digest.update(view[:CHECKSUM_OFFSET])
    digest.update(_ZERO)
    digest.update(view[HEADER_BYTES:])
    if digest.intdigest() != checksum:
        raise header.error("checksum", f"{checksum:#018x} is not that of the frame, {digest.intdigest():#018x}")
    return Frame(header, view)


def _check_size(size: int, header: FrameHeader) -> None:
    if size != HEADER_BYTES + header.payload_bytes:
        raise header.error(
            "payload_bytes", f"{header.payload_bytes}, but {size - HEADER_BYTES} bytes follow the header"
        )
