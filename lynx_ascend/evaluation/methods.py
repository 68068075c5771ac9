"""The evaluated methods by name: Lynx's own, through the public API, and those to compare with."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import torch
import xxhash
from torch import Tensor

from lynx_ascend import api
from lynx_ascend.codec import config
from lynx_ascend.codec.baselines import affine, linear, method, payload
from lynx_ascend.codec.baselines.cachegen import CacheGen
from lynx_ascend.codec.baselines.dropping import HeavyHitters
from lynx_ascend.codec.baselines.fp8 import FP8
from lynx_ascend.codec.baselines.integers import ChannelInt, SplitInt8, TensorInt
from lynx_ascend.codec.baselines.kivi import KIVI
from lynx_ascend.codec.baselines.kvquant import KVQuant
from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.codec.baselines.payload import PayloadError, Reader
from lynx_ascend.codec.baselines.sparq import SparQ
from lynx_ascend.codec.baselines.turboquant import TurboQuant
from lynx_ascend.codec.baselines.uncompressed import HighByteFirst, Uncompressed


@dataclass(frozen=True)
class Lynx(Method):
    """A split codec of this project, by `lynx_ascend.encode`: its frames, headers included, are the streams' bytes."""

    config: config.CodecConfig
    source = "docs/frame.md; alg1: Lynx, arXiv 2607.01831, Alg. 1"
    num_streams: ClassVar[int] = 2

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        encoded = api.encode(x, self.config, layer=context.layer, is_value=context.is_value)
        packed = (msgspec.msgpack.encode(encoded.frames(stream)) for stream in ("anchor", "residual"))
        return [[torch.frombuffer(bytearray(part), dtype=torch.uint8)] for part in packed]

    def _decode(self, readers: Sequence[Reader]) -> Decoded:
        frames = []
        for reader in readers:
            try:
                frames.append(msgspec.msgpack.decode(reader.rest("frames"), type=list[bytes]))
            except msgspec.DecodeError as error:
                raise PayloadError(f"frames: {error}") from None
        return Decoded(api.EncodedKV.from_frames(*frames).decode("anchor" if len(frames) == 1 else "residual"))


@dataclass(frozen=True)
class AnchorOnly(Lynx):
    """Lynx-INT4, "quantise only": the Anchor is the final cache."""

    source = "Lynx, arXiv 2607.01831 (Lynx-INT4)"
    num_streams: ClassVar[int] = 1

    def _encode(self, x: Tensor, context: Context) -> Sequence[Sequence[Tensor]]:
        return super()._encode(x, context)[:1]


OURS = "lynx"
METHODS: dict[str, Method] = {
    "bf16": Uncompressed(),
    OURS: Lynx(config.CodecConfig()),
    "alg1": Lynx(config.CodecConfig("alg1", sink_tokens=0)),
    "lynx-int8": SplitInt8(),
    "lynx-int4": AnchorOnly(config.CodecConfig()),
    "bf16-msb": HighByteFirst(),
    "int8": TensorInt(8),
    "int8-channel": ChannelInt(8),
    "int8-chunk32": ChannelInt(8, 32),
    "int8-chunk64": ChannelInt(8, 64),
    "fp8-e4m3": FP8("e4m3"),
    "fp8-e5m2": FP8("e5m2"),
    "turboquant-8": TurboQuant(8),
    "int4": TensorInt(4),
    "int4-channel": ChannelInt(4),
    "int4-chunk32": ChannelInt(4, 32),
    "int4-chunk64": ChannelInt(4, 64),
    "turboquant-4": TurboQuant(4),
    "kivi-4": KIVI(4),
    "kivi-2": KIVI(2),
    "kvquant-4": KVQuant(4),
    "kvquant-4-1%": KVQuant(4, 0.01),
    "cachegen": CacheGen(),
    "cachegen-fine": CacheGen(bins=(1 / 6, 1 / 3, 1 / 2)),  # a level nearer to the others' bits
    "scissorhands-50%": HeavyHitters(0.5),
    "scissorhands-25%": HeavyHitters(0.25),
    "sparq": SparQ(),
}
# In whose reconstruction tokens are missing, so that no bits an element make them comparable.
DROPPING = frozenset({"scissorhands-50%", "scissorhands-25%", "sparq"})


def choose(names: str | None) -> dict[str, Method]:
    """Methods from comma-separated names, in that order; None: all.

    Raises:
        ValueError: an unknown name.
    """
    if names is None:
        return dict(METHODS)
    chosen = names.split(",")
    if unknown := [name for name in chosen if name not in METHODS]:
        raise ValueError(f"methods: {unknown[0]!r} is none of {', '.join(METHODS)}")
    return {name: METHODS[name] for name in chosen}


def fingerprint(method_: Method) -> str:
    """Of a method's parameters and of the code that it runs: another one, other results."""
    own = {Path(inspect.getfile(kind)) for kind in type(method_).__mro__ if kind.__module__.startswith("lynx_ascend")}
    files = own | {Path(module.__file__) for module in (affine, linear, payload, method) if module.__file__}
    digest = xxhash.xxh3_64(repr(method_).encode())
    if isinstance(method_, Lynx):
        files.discard(Path(__file__))  # the list of methods, which is no part of the codec
        root = Path(api.__file__).parent
        files |= {root / f"{name}.py" for name in ("api", "paged", "methods", "buffers")}
        files |= {*root.glob("codec/*.py"), *root.glob("frame/*.py")}
        extension = importlib.util.find_spec("lynx_ascend._C")
        assert extension and extension.origin  # `ops` has loaded it
        files.add(Path(extension.origin))
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()
