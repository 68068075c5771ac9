"""A streaming client of /v1/completions that stamps each token's arrival: every token it sees has been verified."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx


class CompletionError(RuntimeError):
    """The request was refused or broke off; the message holds the server's reason."""


@dataclass
class Completion:
    """One answer. Times are time.monotonic() seconds, the clock of the connector's trace on the same machine.

    Attributes:
        request_id: the answer's id; the servers' request ids start with it.
        arrivals: of each token of token_ids; tokens that came in one chunk share theirs.
    """

    sent_at: float
    request_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None

    def time_to(self, n: int) -> float | None:
        """Seconds from sending the request to its n-th token (from 1); None if the answer is shorter."""
        return self.arrivals[n - 1] - self.sent_at if n <= len(self.arrivals) else None

    @property
    def ttft(self) -> float | None:
        """Time to the first token, seconds."""
        return self.time_to(1)

    def decode_step(self) -> float:
        """Median time between two chunks, seconds: tokens of one chunk come from one step.

        Raises:
            ValueError: all tokens came in one chunk.
        """
        times = sorted(set(self.arrivals))
        if len(times) < 2:
            raise ValueError(f"{len(times)} chunks are too few to measure a decode step")
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(times))


def complete(
    url: str,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    xargs: Mapping[str, str | int | float] | None = None,
    timeout: float = 120.0,
    **body: Any,
) -> Completion:
    """Streams one greedy completion.

    Args:
        url: of the proxy, or of a server for an answer without transfer.
        prompt: token ids.
        xargs: the request's `vllm_xargs`: lynx_method, lynx_draft_cap, lynx_bandwidth.
        timeout: seconds without a byte after which the request is given up.
        body: more fields of the request.

    Raises:
        CompletionError: any answer but a complete one.
    """
    request = {
        "model": "model",
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
        "vllm_xargs": dict(xargs or {}),
        **body,
    }
    sent_at = time.monotonic()
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=request, timeout=timeout) as response:
            if response.status_code != 200:
                raise CompletionError(f"HTTP {response.status_code}: {response.read().decode(errors='replace')}")
            return collect(response.iter_lines(), sent_at)
    except httpx.HTTPError as error:
        raise CompletionError(f"{type(error).__name__}: {error}") from None


def collect(lines: Iterable[str], sent_at: float, clock: Callable[[], float] = time.monotonic) -> Completion:
    """Reads the lines of a server-sent event stream up to its [DONE].

    Raises:
        CompletionError: an error event, a malformed one, or an end without [DONE].
    """
    completion = Completion(sent_at)
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            return completion
        _take(completion, data, clock())
    raise CompletionError(f"the stream broke off after {len(completion.token_ids)} tokens")


def _take(completion: Completion, data: str, at: float) -> None:
    try:
        event = json.loads(data)
        if "error" in event:
            raise CompletionError(f"after {len(completion.token_ids)} tokens: {event['error']['message']}")
        completion.request_id = event["id"]
        for choice in event["choices"]:
            tokens = choice["token_ids"] or []
            completion.token_ids += tokens
            completion.arrivals += [at] * len(tokens)
            completion.text += choice["text"]
            completion.finish_reason = choice["finish_reason"] or completion.finish_reason
    except (ValueError, KeyError, TypeError) as error:
        raise CompletionError(f"malformed event ({error!r}): {data[:200]}") from None
