"""A stream beside that of the forward passes, on which a prefill instance encodes; on the CPU there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


class SideStream:
    """One stream of `device`, for any thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._stream: Any = None if self._module is None else self._module.Stream(device)

    def mark(self) -> Any:
        """A point behind everything that the calling thread's current stream holds by now."""
        return None if self._module is None else self._module.current_stream(self._device).record_event()

    @contextlib.contextmanager
    def after(self, mark: Any) -> Iterator[None]:
        """Inside, what the calling thread gives to the device runs on the side stream, behind `mark`."""
        if self._module is None:
            yield
            return
        with self._module.device(self._device), self._module.stream(self._stream):
            self._stream.wait_event(mark)
            yield
