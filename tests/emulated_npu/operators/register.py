"""Registers a function on CPU tensors as the kernel of an NPU operator, in torch_npu's own dispatcher."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

calls: Counter[str] = Counter()
"""How often each operator was called in this process."""

_libraries = {"npu": torch.library.Library("npu", "IMPL"), "atb": torch.library.Library("atb", "FRAGMENT")}


def kernel(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes the decorated function the PrivateUse1 kernel of `name`, an operator that is already defined.

    The function gets CPU tensors that share the device tensors' memory, after the current stream has run all that was
    queued on it (device/README.md, "Order"), so that it may write into arguments. What it returns is copied to the
    device. It is called with what was passed and is not a default: an argument that it does not have is refused.

    Args:
        name: qualified, for example "npu::npu_swiglu".

    Raises:
        AttributeError: there is no such operator.

    Raises (the kernel):
        NotImplementedError: an argument that the function does not have.
        Whatever the function raises.
    """
    namespace, short = name.split("::")
    getattr(getattr(torch.ops, namespace), short)  # registering a kernel for no operator would raise nothing

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            for unknown in kwargs.keys() - known.keys():
                raise NotImplementedError(f"{short}: argument {unknown} is not emulated")
            calls[short] += 1
            device = next(x.device for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
            result = function(*map(_host, args), **{key: _host(value) for key, value in kwargs.items()})
            return _to(result, device)

        _libraries[namespace].impl(short, run, "PrivateUse1")
        return function

    return decorate


def define(schema: str) -> None:
    """Defines an operator of namespace "atb", whose definitions are in a library that needs NNAL."""
    _libraries["atb"].define(schema)


def require(condition: bool, message: str) -> None:
    """Raises ValueError with `message` unless the condition holds."""
    if not condition:
        raise ValueError(message)


def _host(value: Any) -> Any:
    return torch.ops.emulated_npu.host(value) if isinstance(value, torch.Tensor) else value


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(_to(item, device) for item in value)
    return value.to(device) if isinstance(value, torch.Tensor) else value
