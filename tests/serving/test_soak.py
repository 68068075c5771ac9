"""The soak, short: `python -m tests.serving.soak` runs it at any length and seed."""

from __future__ import annotations

import os

import pytest

from tests.serving.soak import soak

pytestmark = [
    pytest.mark.engine,
    pytest.mark.portable,
    pytest.mark.skipif(os.environ.get("LYNX_TEST_ASYNC") == "1", reason="it runs in both modes by itself"),
]
REQUESTS, SEED = 2000, 1
# What must have happened, or the soak shows nothing about it.
SEEN = {
    *("verified", "exact", "fallback", "failed before the anchor", "failed after the anchor", "repeated reports"),
    *("handed", "aborted in HANDED", "aborted in WAITING", "aborted in DRAFTING", "aborted in PARKED"),
    *("aborted in None", "preempted in DRAFTING", "preempted in PARKED", "preempted in None", "resets"),
    *("told to wait", "skip", "declined"),
    *("finished: stop", "finished: length", "finished: error", "cached blocks checked"),
}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_soak(model_path: str, mode: str) -> None:
    """No wrong token, nothing left, nobody starves."""
    counts = soak(model_path, REQUESTS, asynchronous=mode == "async", seed=SEED)
    # A synchronous step that verifies begins and ends at once, but for want of room.
    due = SEEN | ({"aborted in VERIFYING", "preempted in VERIFYING"} if mode == "async" else set())
    assert not {name for name in due if not counts[name]}
    assert 0.2 < counts["accepted"] / counts["drafted"] < 0.9
