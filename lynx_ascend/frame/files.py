"""Frames one after another in a file: what a store of KV reads back, all of it or the frames that it wants."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from .frame import Frame, parse
from .header import HEADER_BYTES, FrameHeader


def read_frames(file: BinaryIO, wanted: Callable[[FrameHeader], bool] | None = None) -> Iterator[Frame]:
    """The frames from the file's position to its end, each checked by `parse`.

    Args:
        file: frames without gaps, open for reading in binary; io.BytesIO(data) for bytes.
        wanted: called with each header. Where it says False the payload is not read but sought over (the file must be
            seekable), and the frame's checksum is not looked at: its header is then checked for sense alone.

    Raises:
        FrameError: a frame that is wrong or cut off; nothing that follows it can be found.
    """
    while head := _read(file, HEADER_BYTES):
        header, _ = FrameHeader.unpack(head)  # an unchecked size, but never more than MAX_PAYLOAD_BYTES
        if wanted is None or wanted(header):
            yield parse(head + _read(file, header.payload_bytes))
        else:
            _skip(file, header)


def _read(file: BinaryIO, size: int) -> bytes:
    """`size` bytes, fewer at the file's end. Files without a buffer may give fewer than they are asked for."""
    parts: list[bytes] = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _skip(file: BinaryIO, header: FrameHeader) -> None:
    """Seeks over a payload. Its last byte is read, because a seek beyond the end of a file succeeds."""
    if header.payload_bytes:
        file.seek(header.payload_bytes - 1, os.SEEK_CUR)
        if not file.read(1):
            raise header.error("payload_bytes", f"{header.payload_bytes}, but the file ends before")
