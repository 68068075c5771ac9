"""What scripts/verify_on_npu.sh asks: environment, device, nibbles. A failed check exits with 1, no NPU with 2."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def no_npu(reason: str) -> None:
    print(f"verify_on_npu: no NPU: {reason}")
    sys.exit(2)


def device() -> str:
    """The first NPU's name; ends the process where there is none."""
    try:
        import torch
        import torch_npu  # noqa: F401
    except (ImportError, OSError) as error:
        no_npu(f"torch_npu cannot be imported ({error}); source CANN's set_env.sh")
    if not torch.npu.is_available():
        no_npu("torch_npu sees no device (npu-smi info)")
    kind = "" if "ASCEND_HOME_PATH" in os.environ else " (emulated: this says nothing about hardware)"
    return str(torch.npu.get_device_name(0)) + kind


def environment() -> None:
    name = device()
    import torch
    import torch_npu

    from lynx_ascend.codec import ops

    properties = torch.npu.get_device_properties(0)
    print(f"device     {name}, {properties.vector_core_num} vector cores, {properties.total_memory >> 20} MiB")
    print(f"host       {platform.machine()}, Python {platform.python_version()}")
    print(f"torch      {torch.__version__}, torch_npu {torch_npu.__version__}")
    print(f"CANN       {os.environ.get('ASCEND_HOME_PATH', 'none')}")
    ops.check_kernels(torch.device("npu", 0))
    from lynx_ascend import _npu

    print(f"kernels    {_npu.kernels()}")
    if (_npu.kernels() == "twin") != ("ASCEND_HOME_PATH" not in os.environ):
        print("verify_on_npu: FAILED: these kernels are for another device; build again (docs/ascend.md)")
        sys.exit(1)
    try:
        print(subprocess.run(["npu-smi", "info"], capture_output=True, text=True, timeout=30, check=True).stdout)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"npu-smi    {error}")


def nibbles() -> None:
    """Anchor nibbles 0x21: the even channel's code is 1, the odd one's 2, if the low nibble is the even element."""
    device()
    import torch

    from lynx_ascend.codec import ops
    from lynx_ascend.codec.config import CodecConfig
    from lynx_ascend.codec.layout import page_layout

    config = CodecConfig(sink_tokens=0)
    at = page_layout(config, torch.float16, 32, 64)
    anchor = torch.zeros(1, at.anchor_bytes, dtype=torch.uint8)
    anchor[0, : at.gamma_max] = torch.full((64,), -1.0, dtype=torch.float16).view(torch.uint8)
    anchor[0, at.gamma_max : at.mu] = torch.full((64,), 1.0, dtype=torch.float16).view(torch.uint8)
    anchor[0, at.mu : at.sigma], anchor[0, at.sigma : at.codes] = 128, 255
    anchor[0, at.codes :] = 0x21
    want = torch.zeros(1, 32, 1, 64, dtype=torch.float16)
    ops.decode(anchor, None, 0, 32, config, torch.zeros(1, dtype=torch.int64), want)
    got = torch.zeros_like(want).npu()
    ops.decode(anchor.npu(), None, 0, 32, config, torch.zeros(1, dtype=torch.int32).npu(), got)
    found, low, high = got.cpu(), want[0, 0, 0, 0].item(), want[0, 0, 0, 1].item()
    assert low != high
    pair = found[0, 0, 0, :2].tolist()
    if torch.equal(found, want):
        print(f"even element is the low nibble: {pair}, as on the CPU")
        return
    swapped = torch.equal(found[..., 0::2], want[..., 1::2]) and torch.equal(found[..., 1::2], want[..., 0::2])
    reason = "the even element is the HIGH nibble" if swapped else "neither order explains it"
    print(f"verify_on_npu: FAILED: {pair}, on the CPU [{low}, {high}]: {reason}")
    sys.exit(1)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["environment"]:
            environment()
        case ["nibbles"]:
            nibbles()
        case ["device"]:
            print(device())
        case _:
            sys.exit(__doc__)
