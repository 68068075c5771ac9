"""The byte format of one page of one stream: write, parse, check. docs/frame.md is the authority."""

from .errors import FrameError
from .files import read_frames
from .frame import Frame, parse, seal
from .header import CODEC_NAMES, HEADER_BYTES, MAX_CHANNELS, MAX_PAYLOAD_BYTES, Center, CodecId, DType, FrameHeader

__all__ = [
    "CODEC_NAMES",
    "HEADER_BYTES",
    "MAX_CHANNELS",
    "MAX_PAYLOAD_BYTES",
    "Center",
    "CodecId",
    "DType",
    "Frame",
    "FrameError",
    "FrameHeader",
    "parse",
    "read_frames",
    "seal",
]
