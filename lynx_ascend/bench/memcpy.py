"""The yardstick: plain copies of a buffer, by libc's memcpy and by PyTorch's copy_, with a given thread count."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from .rounds import Work

_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcpy.restype = ctypes.c_void_p


def memcpys(source: Tensor, target: Tensor, threads: int) -> list[Work]:
    """Both copies, each byte counted once. Which one is faster depends on the machine and on what else it does.

    Args:
        source, target: contiguous, of one dtype and shape, touched before.
    """
    nbytes = source.numel() * source.element_size()
    return [
        Work("libc", "memcpy", "copy", nbytes, _libc_copy(source, target, threads)),
        Work("torch", "memcpy", "copy", nbytes, lambda: target.copy_(source)),  # torch.set_num_threads holds for it
    ]


def _libc_copy(source: Tensor, target: Tensor, threads: int) -> Callable[[], object]:
    """Each thread copies a part: ctypes releases the GIL for the call."""
    nbytes = source.numel() * source.element_size()
    if threads == 1:
        return lambda: _memcpy(target.data_ptr(), source.data_ptr(), nbytes)
    pool = ThreadPoolExecutor(threads)
    size = -(-nbytes // threads)
    parts = [(first, min(size, nbytes - first)) for first in range(0, nbytes, size)]

    def part(at: tuple[int, int]) -> None:
        _memcpy(target.data_ptr() + at[0], source.data_ptr() + at[0], at[1])

    return lambda: list(pool.map(part, parts))
