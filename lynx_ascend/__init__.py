"""Progressive speculative KV transfer for disaggregated LLM serving."""

from .api import EncodedKV, encode
from .codec.config import CodecConfig
from .frame import FrameError

__all__ = ["CodecConfig", "EncodedKV", "FrameError", "encode"]
