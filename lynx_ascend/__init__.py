"""Progressive speculative KV transfer for disaggregated LLM serving."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

import torch  # noqa: F401  the compiled modules are linked with its libraries

# `lynx-ascend doctor` must be able to say what is wrong where _C does not load. Whoever uses a name of this package
# meets the error itself.
with contextlib.suppress(ImportError):
    from . import _C  # noqa: F401  registers torch.ops.lynx_ascend

if TYPE_CHECKING:
    from .api import EncodedKV, encode
    from .codec.config import CodecConfig
    from .frame import FrameError

__all__ = ["CodecConfig", "EncodedKV", "FrameError", "encode"]

_HOMES = {"CodecConfig": ".codec.config", "EncodedKV": ".api", "FrameError": ".frame", "encode": ".api"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
