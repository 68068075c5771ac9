"""What an operator sets (kv_connector_extra_config) and what a client may ask for (vllm_xargs), both checked."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from lynx_ascend.paged import METHODS
from lynx_ascend.speculation.window import MAX_DRAFTS
from lynx_ascend.transport.tls import TlsConfig

WINDOWS = ("adaptive", "fixed")
_REQUEST_FIELDS = ("lynx_method", "lynx_draft_cap", "lynx_window", "lynx_bandwidth")
AUTO = "auto"  # of bf16, lynx without drafts and lynx, the one that is expected to be the fastest


class OptionError(ValueError):
    """A setting or a request field that cannot be used; the message names it."""


class LynxOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of `kv_connector_extra_config`. Times in seconds, rates in Mbit/s (10^6 bits)."""

    method: str = AUTO  # for requests that name none
    draft_cap: int = 64  # most tokens drafted on the anchor; 0 waits for the residual
    window: str = "adaptive"  # adaptive: as many drafts as are worth it, up to the cap; fixed: the cap
    health: bool = True  # while drafting loses time, requests wait for both streams instead; a few go on as probes
    first_token_handover: bool = True  # on D: the token that P sampled is the answer's first, and sent at once
    host: str = "127.0.0.1"  # where a prefill instance listens, and the address it hands out
    port: int = 0  # 0: the system picks one
    bandwidth: float | None = None  # emulated link of a prefill instance, shared by its streams; None: the real one
    request_bandwidth: bool = False  # let a request ask for a link of its own (experiments)
    lease: float = 60.0  # a prompt's blocks wait this long on the prefill side for the first pull
    deadline: float = 120.0  # a transfer that is not complete after this is given up
    stall: float = 20.0  # so is one that moved no byte for this long
    tls_cert: str | None = None  # PEM files of mutual TLS, all three or none: this engine's certificate,
    tls_key: str | None = None  # its private key,
    tls_ca: str | None = None  # and the CA that peers' certificates must be from
    tls_name: str | None = None  # a decode instance also wants this DNS name in a prefill instance's certificate
    trace_dir: str | None = None  # write what happened when, one JSON line an event, into this folder

    @classmethod
    def parse(cls, extra_config: Mapping[str, Any]) -> LynxOptions:
        """Raises OptionError naming the field."""
        try:
            options = msgspec.convert(dict(extra_config), cls, strict=True)
        except msgspec.ValidationError as error:
            raise OptionError(f"kv_connector_extra_config: {error}") from None
        _check_name("kv_connector_extra_config.method", options.method, (AUTO, *METHODS))
        _check_name("kv_connector_extra_config.window", options.window, WINDOWS)
        _check_cap("kv_connector_extra_config.draft_cap", options.draft_cap)
        for name in ("bandwidth", "lease", "deadline", "stall"):
            value = getattr(options, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise OptionError(f"kv_connector_extra_config.{name}: {value} is not a positive number")
        if not 0 <= options.port <= 65535:
            raise OptionError(f"kv_connector_extra_config.port: {options.port} is outside 0 .. 65535")
        unset = [name for name in ("tls_cert", "tls_key", "tls_ca") if getattr(options, name) is None]
        if unset and (len(unset) < 3 or options.tls_name):
            raise OptionError(f"kv_connector_extra_config.{unset[0]}: TLS needs tls_cert, tls_key and tls_ca")
        if options.tls_name == "":
            raise OptionError("kv_connector_extra_config.tls_name: is empty")
        return options

    @property
    def tls(self) -> TlsConfig | None:
        """The files of mutual TLS; None: connections are in the clear."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        return TlsConfig(self.tls_cert, self.tls_key, self.tls_ca, self.tls_name)

    @property
    def exposed(self) -> bool:
        """True where a prefill instance would serve in the clear beyond this machine."""
        return self.tls is None and not _is_loopback(self.host)


class RequestOptions(msgspec.Struct, frozen=True):
    """What one request is served with, after the defaults."""

    method: str
    draft_cap: int
    window: str
    bandwidth: float | None

    @classmethod
    def parse(cls, options: LynxOptions, extra_args: Mapping[str, Any] | None) -> RequestOptions:
        """Reads `lynx_method`, `lynx_draft_cap`, `lynx_window` and `lynx_bandwidth` from a request's `vllm_xargs`.

        They ride in the body, so proxies that rewrite `kv_transfer_params` leave them alone.

        Raises:
            OptionError: a value that cannot be used, naming the field.
        """
        args = dict(extra_args or {})
        for name in args:
            if str(name).startswith("lynx_") and name not in _REQUEST_FIELDS:
                raise OptionError(f"{name}: none of {', '.join(_REQUEST_FIELDS)}")
        method = args.get("lynx_method", options.method)
        _check_name("lynx_method", method, (AUTO, *METHODS))
        cap = args.get("lynx_draft_cap", options.draft_cap)
        _check_cap("lynx_draft_cap", cap)
        window = args.get("lynx_window", options.window)
        _check_name("lynx_window", window, WINDOWS)
        bandwidth = args.get("lynx_bandwidth")
        if bandwidth is not None:
            if not options.request_bandwidth:
                raise OptionError("lynx_bandwidth: not allowed here (kv_connector_extra_config.request_bandwidth)")
            if isinstance(bandwidth, bool) or not isinstance(bandwidth, int | float) or not 1e-3 <= bandwidth <= 1e6:
                raise OptionError(f"lynx_bandwidth: {bandwidth!r} is not a number of Mbit/s from 0.001 to 10^6")
            bandwidth = float(bandwidth)
        return cls(method=method, draft_cap=cap, window=window, bandwidth=bandwidth)


def _check_name(name: str, value: object, names: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in names:
        raise OptionError(f"{name}: {value!r} is none of {', '.join(names)}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_cap(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DRAFTS:
        raise OptionError(f"{name}: {value!r} is not an integer of 0 .. {MAX_DRAFTS}")
