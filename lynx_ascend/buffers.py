"""Memory that frames are encoded into: a host's own, and what a device copies from and to without waiting."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from .frame import HEADER_BYTES

__all__ = ["FrameBuffer", "as_tensor", "wait"]


class FrameBuffer:
    """One frame, and its payload as the codec sees it.

    Attributes:
        data: the frame, of HEADER_BYTES + payload_bytes bytes: a bytearray, or for a device a view of pinned memory.
        payload: uint8 [payload_bytes], the part of `data` behind the header.
        target: uint8 [payload_bytes] on the device, where its payload is encoded; on the CPU `payload` itself.
    """

    def __init__(self, payload_bytes: int, device: torch.device) -> None:
        size = HEADER_BYTES + payload_bytes
        self.data: bytearray | memoryview
        if device.type == "cpu":
            self.data = bytearray(size)
            self.payload = torch.frombuffer(self.data, dtype=torch.uint8)[HEADER_BYTES:]
            self.target = self.payload
        else:
            whole = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            self.data = _view(whole)
            self.payload = whole[HEADER_BYTES:]
            self.target = torch.empty(payload_bytes, dtype=torch.uint8, device=device)

    def fetch(self) -> None:
        """Queues the copy of a device's payload on its current stream; `wait` before it is read."""
        if self.target is not self.payload:
            self.payload.copy_(self.target, non_blocking=True)


def wait(device: torch.device) -> None:
    """Waits for what the device's current stream holds."""
    if device.type != "cpu":
        torch.get_device_module(device).current_stream(device).synchronize()


def as_tensor(payload: memoryview, device: torch.device) -> Tensor:
    """uint8 1-D on `device`. On the CPU it is the payload itself, unless that is read-only: then a copy.

    To a device the copy is queued on the current stream and not waited for; the payload may change meanwhile.
    """
    if not payload.nbytes:
        return torch.empty(0, dtype=torch.uint8, device=device)
    host = torch.frombuffer(bytearray(payload) if payload.readonly else payload, dtype=torch.uint8)
    # PyTorch keeps a pinned tensor's memory until the copies that read it have run.
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def _view(tensor: Tensor) -> memoryview:
    """The bytes of a uint8 CPU tensor, which live as long as the view."""
    array: Any = (ctypes.c_uint8 * tensor.numel()).from_address(tensor.data_ptr())
    array.tensor = tensor
    return memoryview(array).cast("B")
