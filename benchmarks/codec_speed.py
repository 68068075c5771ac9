"""Codec throughput of each instruction set on this machine, beside a plain copy: GB/s of the bf16 side, one thread.

Usage: python benchmarks/codec_speed.py [--tokens 4096] [--heads 8] [--head-dim 128] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from lynx_ascend import _C
from lynx_ascend.codec import ops
from lynx_ascend.codec.config import CodecConfig
from lynx_ascend.codec.layout import page_layout

BLOCK_SIZE = 128
CONFIGS = {
    "grid": CodecConfig(),
    "grid mean": CodecConfig(center="mean"),
    "grid a=1": CodecConfig(alpha=1.0),
    "alg1": CodecConfig(codec="alg1"),
}


def gigabytes_per_second(work: Callable[[], object], nbytes: int, seconds: float = 0.5) -> float:
    """The best of the runs that fit into `seconds`: other processes only ever slow a run down."""
    work()
    best, deadline = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return nbytes / best / 1e9


def measure(tokens: int, heads: int, head_dim: int) -> dict[str, dict[str, float]]:
    """GB/s for each config with this process's instruction set; rows are "copy" and the names in CONFIGS."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    blocks = -(-tokens // BLOCK_SIZE)
    cache = torch.randn(blocks, BLOCK_SIZE, heads, head_dim, generator=generator).bfloat16()
    out = torch.empty_like(cache)
    ids = torch.randperm(blocks, generator=generator)
    nbytes = tokens * heads * head_dim * cache.element_size()
    results = {"copy": {"copy": gigabytes_per_second(lambda: out.copy_(cache), nbytes)}}
    for name, config in CONFIGS.items():
        pages = -(-tokens // config.page)
        layout = page_layout(config, cache.dtype, min(tokens, config.page), heads * head_dim, config.page)
        sink = config.sink_tokens * heads * head_dim * cache.element_size()
        anchor = torch.empty(pages, layout.anchor_bytes + sink, dtype=torch.uint8)
        residual = torch.empty(pages, layout.residual_bytes, dtype=torch.uint8)

        def encode(config: CodecConfig = config, a: torch.Tensor = anchor, r: torch.Tensor = residual) -> None:
            ops.encode(cache, ids, 0, tokens, config, a, r)

        def decode(r: torch.Tensor | None, config: CodecConfig = config, a: torch.Tensor = anchor) -> None:
            ops.decode(a, r, 0, tokens, config, ids, out)

        results[name] = {
            "encode": gigabytes_per_second(encode, nbytes),
            "anchor decode": gigabytes_per_second(lambda decode=decode: decode(None), nbytes),
            "full decode": gigabytes_per_second(lambda decode=decode, r=residual: decode(r), nbytes),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(args.tokens, args.heads, args.head_dim)))
        return
    results = {}
    shape = [f"--tokens={args.tokens}", f"--heads={args.heads}", f"--head-dim={args.head_dim}"]
    for isa in _C.supported_isas():  # a process chooses its kernels once
        command = [sys.executable, __file__, "--worker", *shape]
        env = {**os.environ, "LYNX_ASCEND_ISA": isa}
        results[isa] = json.loads(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE).stdout)
    if args.json:
        print(json.dumps(results))
        return
    for isa, rows in results.items():
        for name, row in rows.items():
            figures = "  ".join(f"{what} {speed:6.2f}" for what, speed in row.items())
            print(f"{isa:10} {name:10} {figures}")


if __name__ == "__main__":
    main()
