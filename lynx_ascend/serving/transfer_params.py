"""The `kv_transfer_params` that ride through the proxy: what the prefill side hands out and the decode side reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

MAX_ID = 512  # characters of an id that the transport carries


class TransferParamsError(ValueError):
    """`kv_transfer_params` that cannot be used; the message names the field."""


class RemotePrompt(msgspec.Struct, frozen=True):
    """A prompt whose KV waits on a prefill instance.

    The names are those of vLLM's own connectors, so that proxies pass them on. `remote_tokens` is the prompt's length
    in tokens; the block table stays on the prefill side, where `remote_request_id` finds it. `remote_first_token` is
    the one token that the prefill instance sampled on its own exact cache; None: there is none to hand over.
    """

    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    remote_tokens: int
    remote_first_token: int | None = None

    def to_params(self) -> dict[str, Any]:
        """What the prefill instance returns with its answer."""
        fields = msgspec.structs.asdict(self)
        return {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [], **fields}

    @classmethod
    def from_params(cls, params: Mapping[str, Any] | None) -> RemotePrompt | None:
        """The prompt to fetch, or None for a request that asks for none.

        Raises:
            TransferParamsError: it asks for one, but a field is missing or of the wrong type.
        """
        if params is not None and not isinstance(params, Mapping):
            raise TransferParamsError(f"kv_transfer_params: a {type(params).__name__} is not an object")
        if not params or not params.get("do_remote_prefill"):
            return None
        try:
            prompt = msgspec.convert(dict(params), cls, strict=True)
        except msgspec.ValidationError as error:
            raise TransferParamsError(f"kv_transfer_params: {error}") from None
        if not 0 < prompt.remote_port < 65536:
            raise TransferParamsError(f"kv_transfer_params: remote_port {prompt.remote_port} is outside 1 .. 65535")
        for name in ("remote_engine_id", "remote_request_id"):
            if not 1 <= len(getattr(prompt, name)) <= MAX_ID:
                raise TransferParamsError(f"kv_transfer_params: {name} is not 1 .. {MAX_ID} characters long")
        if prompt.remote_tokens < 1:
            raise TransferParamsError(f"kv_transfer_params: remote_tokens {prompt.remote_tokens} is not positive")
        if prompt.remote_first_token is not None and prompt.remote_first_token < 0:
            raise TransferParamsError(f"kv_transfer_params: remote_first_token {prompt.remote_first_token} is negative")
        return prompt


def wants_remote_decode(params: Mapping[str, Any] | None) -> bool:
    """True for a request that is only to be prefilled here."""
    return isinstance(params, Mapping) and bool(params.get("do_remote_decode"))
