"""First-token handover: which requests begin with the token that P sampled for them, each token once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lynx_ascend.serving import compat
from lynx_ascend.serving.drafting import engine_may_draft, takes_first_token
from lynx_ascend.serving.options import LynxOptions
from lynx_ascend.serving.transfer_params import RemotePrompt, TransferParamsError

_REMEMBERED = 4096  # prompts whose first token has been handed over


class Handover:
    """The first tokens on their way from the requests' kv_transfer_params to the clients and to the worker's rows.

    Args:
        vocabulary: tokens of the model.
        enabled: hand over at all.
    """

    def __init__(self, vocabulary: int, *, enabled: bool) -> None:
        self.enabled = enabled
        self._vocabulary = vocabulary
        self._spent: dict[tuple[str, str], None] = {}  # prompts, by engine and request, the oldest first
        self._rowless: dict[str, int] = {}  # tokens of requests that have no row on the worker yet

    @classmethod
    def of(cls, options: LynxOptions, vllm_config: Any) -> Handover:
        """An engine's: none where it has logits processors of its own, or tells more of a token than P has told."""
        alike = engine_may_draft(vllm_config) and not compat.tells_more_than_tokens(vllm_config)
        return cls(vllm_config.model_config.get_vocab_size(), enabled=options.first_token_handover and alike)

    def __len__(self) -> int:
        """Tokens that no row has yet."""
        return len(self._rowless)

    def token_for(self, request: Any, source: RemotePrompt) -> int | None:
        """The token that a vLLM Request is to begin with; None: its first one is sampled here.

        Raises:
            TransferParamsError: the model has no such token.
        """
        token = source.remote_first_token
        if token is not None and token >= self._vocabulary:
            outside = f"outside the vocabulary of {self._vocabulary} tokens"
            raise TransferParamsError(f"kv_transfer_params: remote_first_token {token} is {outside}")
        return token if self.enabled and takes_first_token(request) else None

    def is_spent(self, source: RemotePrompt) -> bool:
        """Whether a request has taken the prompt's token, be it that it has ended since."""
        return _key(source) in self._spent

    def on_handed(self, request_id: str, source: RemotePrompt, token: int) -> None:
        """The request has its token: its row, if it gets one, is made with it."""
        self._rowless[request_id] = token
        self._spent[_key(source)] = None
        if len(self._spent) > _REMEMBERED:
            del self._spent[next(iter(self._spent))]

    def rows(self, new: Iterable[str]) -> dict[str, int]:
        """The tokens of those among the requests that get a row on the worker."""
        return {request_id: self._rowless.pop(request_id) for request_id in new if request_id in self._rowless}

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._rowless.pop(request_id, None)


def _key(source: RemotePrompt) -> tuple[str, str]:
    return source.remote_engine_id, source.remote_request_id
