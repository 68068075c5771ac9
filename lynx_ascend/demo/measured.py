"""A cluster for measuring: each request has a link and a method of its own, and yields its answer and its trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lynx_ascend.demo.client import Completion, complete
from lynx_ascend.demo.cluster import Cluster, ClusterOptions
from lynx_ascend.demo.trace import RequestTrace, read_events, trace_of
from lynx_ascend.evaluation.model import ensure_model

# Requests that are compared must not teach each other: no policy of drafting, the cap alone. And a first token is one
# that the method has brought, not the prefill server's, which comes at once with every method.
FIXED: Mapping[str, Any] = {"window": "fixed", "health": False, "first_token_handover": False}


@dataclass(frozen=True)
class Run:
    """One request seen from outside and from inside."""

    completion: Completion
    trace: RequestTrace

    def from_pull(self, n: int) -> float:
        """Seconds from the decode server's pull to the client's n-th token (from 1): no prefill in it.

        Raises:
            IndexError: the answer is shorter.
        """
        return self.completion.arrivals[n - 1] - self.trace.pulled_at


class MeasuredCluster(Cluster):
    """A cluster of the evaluation's model whose decode server finds nothing in a cache of its own.

    A prompt that was asked once stays in the prefill server's prefix cache: from then on all methods find the same
    state, and times are of transfer and decoding, plus one short step of prefill.

    Args:
        output: folder for logs and trace; the traces of an earlier run there are deleted.
        dtype: of weights, compute and KV cache.
        policies: more of both servers' kv_connector_extra_config.
        cache_gib: KV cache of each server; the prefill server's must hold all prompts.
        decode_args: more arguments of `vllm serve` for the decode server.
    """

    def __init__(
        self,
        output: Path,
        dtype: str,
        *,
        policies: Mapping[str, Any] = FIXED,
        cache_gib: int = 1,
        decode_args: Sequence[str] = (),
    ) -> None:
        self.trace_dir = output / "trace"
        for old in self.trace_dir.glob("*.jsonl"):
            old.unlink()
        options = ClusterOptions(
            model=ensure_model(),
            logs=output / "logs",
            dtype=dtype,
            trace_dir=self.trace_dir,
            extra={"request_bandwidth": True, **policies},
            cache_gib=cache_gib,
            decode_args=("--no-enable-prefix-caching", *decode_args),
        )
        super().__init__(options)

    def ask(self, prompt: Sequence[int], method: str, **how: Any) -> Run:
        """`ask_together` with one prompt."""
        return self.ask_together([prompt], method, **how)[0]

    def ask_together(
        self,
        asked: Sequence[Sequence[int]],
        method: str,
        *,
        max_tokens: int,
        bandwidth: float | Sequence[float | None] | None = None,
        timeout: float = 120.0,
        **xargs: str | int | float,
    ) -> list[Run]:
        """Greedy answers of exactly `max_tokens` tokens to several prompts, asked at the same time.

        Args:
            bandwidth: Mbit/s of each request's own emulated link, or one for each of them; None: loopback as it is.
            timeout: seconds without a byte after which a request is given up.
            xargs: more of the requests' `vllm_xargs`.

        Raises:
            ServiceError, CompletionError, TraceError: what went wrong, by name.
        """
        links = bandwidth if isinstance(bandwidth, Sequence) else [bandwidth] * len(asked)

        def one(request: tuple[Sequence[int], float | None]) -> Completion:
            prompt, link = request
            own = {} if link is None else {"lynx_bandwidth": link}
            every = {"lynx_method": method, **own, **xargs}
            return complete(self.url, prompt, max_tokens=max_tokens, xargs=every, timeout=timeout, ignore_eos=True)

        try:
            with ThreadPoolExecutor(len(asked)) as pool:
                completions = list(pool.map(one, zip(asked, links, strict=True)))
        finally:
            self.check()  # a dead server is the better explanation
        events = read_events(self.trace_dir)
        return [Run(completion, trace_of(events, completion.request_id)) for completion in completions]
