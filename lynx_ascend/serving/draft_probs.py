"""The distributions that drafts were sampled from, kept on the worker until the rejection sampler judges by them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

MAX_BYTES = 1 << 30  # of all rows: nothing else bounds them, and an engine that runs out of memory ends


class DraftProbs:
    """One row, float32 [vocabulary], a draft of each request that drafts by random sampling.

    A draft sampled from q is accepted with probability min(1, p / q), else replaced by one sampled from max(0, p - q):
    what comes out follows p, the verify pass's distribution, exactly, but only for the q that it was sampled from. So
    the row is taken where the sampler draws: after penalties, temperature, top-k and top-p. Where a row is missing the
    draft is judged as one that was certain to be proposed (q is 1 there): that is exact too, and accepts less.

    The rows stay on the device: 4 * vocabulary bytes a draft, for 64 drafts of one request 12.6 MB with a vocabulary
    of 49,152 and 33 MB with 128,256. A request whose next row would be too much loses all of its rows.

    Args:
        max_bytes: of the rows of all requests.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rows: dict[str, list[torch.Tensor]] = {}
        self._lost: set[str] = set()  # requests with a row that was not kept: later ones would stand for other drafts
        self._drafting: frozenset[str] = frozenset()

    def begin_step(self, drafting: Collection[str], verified: Collection[str]) -> None:
        """Before a forward pass.

        Args:
            drafting: requests whose drafts are sampled at random and have not been verified; the rows of all others
                are forgotten.
            verified: requests whose drafts this pass verifies.
        """
        self._rows = {request_id: rows for request_id, rows in self._rows.items() if request_id in drafting}
        self._lost &= set(drafting)
        self._drafting = frozenset(drafting) - frozenset(verified) - self._lost

    def capture(
        self, request_ids: Sequence[str], logits: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None
    ) -> None:
        """Keeps the rows of the requests that draft in this pass.

        Args:
            request_ids: of the batch's rows.
            logits: float32 [requests, vocabulary], after everything but top-k and top-p.
            top_k, top_p: [requests], or None where no request asks for one.
        """
        rows = [row for row, request_id in enumerate(request_ids) if request_id in self._drafting]
        if not rows:
            return
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        index = torch.tensor(rows, device=logits.device)
        kept = [None if limits is None else limits[index] for limits in (top_k, top_p)]
        probs = apply_top_k_top_p(logits[index], *kept).softmax(dim=-1, dtype=torch.float32)
        for row, request_probs in zip(rows, probs.unbind(), strict=True):
            request_id = request_ids[row]
            if (len(self) + 1) * request_probs.nbytes > self._max_bytes:
                self._rows.pop(request_id, None)
                self._lost.add(request_id)
            else:  # A row of its own: a view would keep the others of its step alive.
                self._rows.setdefault(request_id, []).append(request_probs.clone())

    def take(
        self, request_ids: Sequence[str], num_drafts: Sequence[int], drafts: torch.Tensor, vocabulary: int
    ) -> torch.Tensor | None:
        """The rows of the drafts that this pass verifies, and forgets them.

        Args:
            request_ids: of the batch's rows.
            num_drafts: drafts of each of them, 0 for one that verifies nothing.
            drafts: [sum(num_drafts)] token ids.

        Returns:
            float32 [sum(num_drafts), vocabulary]; None where no request of the batch has rows.
        """
        verified = [(request_id, count) for request_id, count in zip(request_ids, num_drafts, strict=True) if count]
        if not any(request_id in self._rows for request_id, _ in verified):
            return None
        probs = torch.zeros(len(drafts), vocabulary, device=drafts.device)
        start = 0
        for request_id, count in verified:
            part = slice(start, start := start + count)
            # Drafts that were in flight when the draft was complete, or that the token budget cut off, come last.
            rows = self._rows.pop(request_id, [])[:count]
            if len(rows) == count:
                torch.stack(rows, out=probs[part])
            else:
                probs[part].scatter_(1, drafts[part, None].long(), 1.0)
        return probs

    def __len__(self) -> int:
        """Rows held."""
        return sum(map(len, self._rows.values()))
