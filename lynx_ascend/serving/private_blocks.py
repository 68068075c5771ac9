"""Keeps requests with reconstructed KV out of the prefix cache."""

from __future__ import annotations

from typing import Any


def keep_out_of_prefix_cache(manager: Any, private: set[str]) -> None:
    """A reconstructed prompt is not what its hashes say: it must neither be found by them nor find others' blocks.

    Other requests would decode on it, and a locally cached prefix is exact where the transferred one is not: a hit
    would change the 8-bit cache.

    Args:
        manager: the scheduler's KVCacheManager.
        private: such requests, at any time.
    """
    cache_blocks, get_computed_blocks = manager.coordinator.cache_blocks, manager.get_computed_blocks

    def cache_public_blocks(request: Any, *args: Any, **kwargs: Any) -> Any:
        return None if request.request_id in private else cache_blocks(request, *args, **kwargs)

    def get_public_blocks(request: Any) -> Any:
        if request.request_id not in private:
            return get_computed_blocks(request)
        skip, request.skip_reading_prefix_cache = request.skip_reading_prefix_cache, True
        try:
            return get_computed_blocks(request)
        finally:
            request.skip_reading_prefix_cache = skip

    manager.coordinator.cache_blocks, manager.get_computed_blocks = cache_public_blocks, get_public_blocks
