"""What the doctor asks an OpenAI server of vLLM: version, models, completions. Every call has a time limit."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

T = TypeVar("T")
MAX_ANSWER = 4 << 20  # bytes; a models list or a short completion is far smaller
# Straight to the servers, as the KV goes, whatever http_proxy says.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(RuntimeError):
    """A server that does not answer as vLLM would; the message names the URL and what came instead."""


class Version(msgspec.Struct):
    """The answer of /version."""

    version: str


class Model(msgspec.Struct):
    """One entry of /v1/models. parent: of an adapter, the model it is for."""

    id: str
    max_model_len: int | None = None
    parent: str | None = None


class Models(msgspec.Struct):
    """The answer of /v1/models."""

    data: list[Model]


class Completion(msgspec.Struct):
    """The answer of /v1/completions, as far as it matters here."""

    choices: list[Any]
    kv_transfer_params: Any = None


class Server:
    """One server.

    Args:
        url: http(s)://host:port. timeout: seconds without a byte after which a call is given up.
        api_key: sent as a bearer token; None where the server asks for none.

    Raises:
        ValueError: url is no such address.
    """

    def __init__(self, url: str, timeout: float, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not http://HOST:PORT")
        self.url = url.rstrip("/")
        self.host = parts.hostname
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def version(self) -> str:
        """vLLM's version. Raises ServerError."""
        return self._ask("/version", Version).version

    def models(self) -> dict[str, int | None]:
        """max_model_len of each model by name, adapters left out. Raises ServerError."""
        models = self._ask("/v1/models", Models).data
        return {model.id: model.max_model_len for model in models if model.parent is None}

    def complete(self, model: str, prompt: list[int], max_tokens: int, **fields: Any) -> Completion:
        """A greedy completion of exactly `max_tokens` tokens. Raises ServerError."""
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        return self._ask("/v1/completions", Completion, {**body, **fields})

    def time(self, model: str, prompt: list[int], max_tokens: int) -> float:
        """Seconds that such a completion takes. Raises ServerError."""
        began = time.monotonic()
        self.complete(model, prompt, max_tokens)
        return time.monotonic() - began

    def _ask(self, path: str, answer: type[T], body: dict[str, Any] | None = None) -> T:
        where = f"{self.url}{path}"
        data = None if body is None else msgspec.json.encode(body)
        request = urllib.request.Request(where, data, self._headers)
        try:
            with _opener.open(request, timeout=self._timeout) as response:
                return msgspec.json.decode(response.read(MAX_ANSWER), type=answer)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(300).decode(errors="replace")
            raise ServerError(f"{where}: HTTP {error.code}: {text}") from None
        except urllib.error.URLError as error:
            raise ServerError(f"{where}: {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{where}: {type(error).__name__}: {error}") from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise ServerError(f"{where}: an answer of another kind: {error}") from None
