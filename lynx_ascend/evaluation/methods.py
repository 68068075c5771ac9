"""The evaluated methods by name: this project's own, and those to compare with."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import xxhash

from lynx_ascend import api
from lynx_ascend.codec import config
from lynx_ascend.codec.baselines import affine, linear, method, payload
from lynx_ascend.codec.baselines.cachegen import CacheGen
from lynx_ascend.codec.baselines.dropping import HeavyHitters
from lynx_ascend.codec.baselines.fp8 import FP8
from lynx_ascend.codec.baselines.integers import ChannelInt, SplitInt8, TensorInt
from lynx_ascend.codec.baselines.kivi import KIVI
from lynx_ascend.codec.baselines.kvquant import KVQuant
from lynx_ascend.codec.baselines.method import Method
from lynx_ascend.codec.baselines.sparq import SparQ
from lynx_ascend.codec.baselines.turboquant import TurboQuant
from lynx_ascend.codec.baselines.uncompressed import HighByteFirst, Uncompressed
from lynx_ascend.evaluation.ours import AnchorOnly, Lynx

OURS = "pair"  # what others are compared with
METHODS: dict[str, Method] = {
    "bf16": Uncompressed(),
    OURS: Lynx(config.CodecConfig("pair")),
    "lynx": Lynx(config.CodecConfig()),
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
    "cachegen-fine": CacheGen(bins=(1 / 6, 1 / 3, 1 / 2)),  # levels of a third and a fifth of the default's bins, which
    "cachegen-finer": CacheGen(bins=(0.1, 0.2, 0.3)),  # take about as many bits as the 4-bit methods
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
        root = Path(api.__file__).parent
        files |= {root / f"{name}.py" for name in ("api", "paged", "methods", "buffers")}
        files |= {*root.glob("codec/*.py"), *root.glob("frame/*.py")}
        extension = importlib.util.find_spec("lynx_ascend._C")
        assert extension and extension.origin  # `ops` has loaded it
        files.add(Path(extension.origin))
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()
