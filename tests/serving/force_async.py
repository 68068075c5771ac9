"""Asynchronous scheduling on vLLM's CPU backend, which turns it off: the scheduler's and the runner's code of a device.

What a stream would do later is done at once here, so this shows nothing about the order of streams.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch


class _Done:
    """A stream or an event on which everything has already happened."""

    device = torch.device("cpu")

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, *args: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, *args: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...


def force_async() -> None:
    """For the rest of the process."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker import cpu_model_runner

    torch.Event = torch.cuda.Event = torch.cuda.Stream = _Done  # type: ignore[misc, assignment]
    torch.cuda.current_stream = lambda *args: _Done()  # type: ignore[assignment, return-value]
    torch.cuda.stream = lambda stream: contextlib.nullcontext()  # type: ignore[assignment, return-value]
    # The runner starts with stand-ins of its own, which know less.
    cpu_model_runner._torch_cuda_wrapper = contextlib.nullcontext
    check = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def check_and_update_config(cls: type[Any], vllm_config: Any) -> None:
        check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)  # type: ignore[assignment]
