"""Golden files: makes them anew, says what changes, and writes only when asked (README.md here).

Usage: python tests/golden/make.py [--write]
Ends with 1 if a file differs from what the code gives and was not written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor

from lynx_ascend import CodecConfig, EncodedKV, encode
from lynx_ascend.api import StreamName
from lynx_ascend.codec.config import Stream
from lynx_ascend.paged import PagedKV, PageEncoder

FOLDER = Path(__file__).parent
TOKENS, HEADS, HEAD_DIM = 40, 2, 8
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SPLIT = {
    "grid": CodecConfig(codec="grid", alpha=0.0, center="midrange", chunk=8, page=32, sink_tokens=4, exact=True),
    "companded": CodecConfig(codec="grid", alpha=1.0, center="mean", chunk=16, page=32, sink_tokens=0, exact=False),
    "pair": CodecConfig(codec="pair", alpha=0.0, center="midrange", chunk=8, page=32, sink_tokens=4, exact=True),
    "alg1": CodecConfig(codec="alg1", alpha=100.0, center="mean", chunk=8, page=32, sink_tokens=4, exact=True),
}
# Methods of one stream take the page alone from their config.
MONOLITHIC = {"raw": "bf16", "int8": "int8", "int4": "int4"}
PAGE = CodecConfig(codec="grid", alpha=0.0, center="midrange", chunk=8, page=32, sink_tokens=0, exact=False)
LAYER, IS_VALUE = 3, True


def values(dtype: torch.dtype) -> Tensor:
    """The input, [40, 2, 8], by the recurrence that README.md gives."""
    state, numbers = 1, []
    for i in range(TOKENS * HEADS * HEAD_DIM):
        state = (1103515245 * state + 12345) % 2**31
        n, channel = (state >> 7) - 2**23, i % (HEADS * HEAD_DIM)
        x = n * 2.0**-20 * 2.0 ** -(channel % 5)
        numbers.append({3: 0.5, 7: n * 2.0**-149, 11: x if n % 2 else -0.0}.get(channel, x))
    return torch.tensor(numbers, dtype=torch.float32).view(TOKENS, HEADS, HEAD_DIM).to(dtype)


def contents() -> dict[str, bytes]:
    """File name -> bytes: frames one after another in `<codec>-<dtype>.<stream>`, tensors in `*.values`."""
    files = {}
    for name, dtype in DTYPES.items():
        x = values(dtype)
        files[f"input-{name}.values"] = to_bytes(x)
        for codec, config in SPLIT.items():
            encoded = encode(x, config, layer=LAYER, is_value=IS_VALUE)
            files |= _files(f"{codec}-{name}", encoded, ("anchor", "residual"))
            if config.exact:
                files[f"{codec}-{name}.exact"] = b"".join(encoded.frames("exact"))
        for codec, method in MONOLITHIC.items():
            source = PagedKV(x.unsqueeze(0), torch.zeros(1, dtype=torch.int64))
            encoder = PageEncoder(method, source, TOKENS, layer=LAYER, is_value=IS_VALUE, generation=0, config=PAGE)
            pages = [encoder.page(index)[Stream.ANCHOR] for index in range(encoder.num_pages)]
            files |= _files(f"{codec}-{name}", EncodedKV.from_frames(pages), ("anchor",))
    return files


def _files(name: str, encoded: EncodedKV, streams: tuple[StreamName, ...]) -> dict[str, bytes]:
    frames = {f"{name}.{stream}": b"".join(encoded.frames(stream)) for stream in streams}
    return frames | {f"{name}.{stream}.values": to_bytes(encoded.decode(stream)) for stream in streams}


def to_bytes(x: Tensor) -> bytes:
    """The elements of a tensor in order, little-endian."""
    return x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def stored() -> set[str]:
    """Names of the files that are there."""
    return {path.name for path in FOLDER.iterdir() if path.suffix not in (".py", ".md") and path.is_file()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    wanted, found = contents(), stored()
    changes = dict.fromkeys(found - wanted.keys(), "gone")
    for name, data in wanted.items():
        if name not in found:
            changes[name] = f"new, {len(data)} bytes"
        elif (old := (FOLDER / name).read_bytes()) != data:
            first = next(i for i in range(len(old) + 1) if old[: i + 1] != data[: i + 1])
            changes[name] = f"{len(old)} -> {len(data)} bytes, different from byte {first} on"
    for name, change in sorted(changes.items()):
        print(f"{name}: {change}")
        if write and name in wanted:
            (FOLDER / name).write_bytes(wanted[name])
        elif write:
            (FOLDER / name).unlink()
    print(f"{len(changes)} of {len(wanted)} files differ" + (", written" if write and changes else ""))
    return 1 if changes and not write else 0


if __name__ == "__main__":
    sys.exit(main())
