"""What operators and clients may ask for, and that anything else is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from lynx_ascend.serving.options import LynxOptions, OptionError, RequestOptions
from lynx_ascend.serving.transfer_params import MAX_ID, RemotePrompt, TransferParamsError, wants_remote_decode
from lynx_ascend.transport.tls import TlsConfig

PROMPT = RemotePrompt("engine", "request", "127.0.0.1", 4321, 77, 1234)


def test_defaults() -> None:
    options = LynxOptions.parse({})
    assert (options.method, options.draft_cap, options.host, options.port) == ("auto", 64, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"method": "zip"}, "method"),
        ({"method": 3}, "method"),
        ({"draft_cap": -1}, "draft_cap"),
        ({"draft_cap": 128}, "draft_cap"),
        ({"draft_cap": True}, "draft_cap"),
        ({"bandwidth": 0}, "bandwidth"),
        ({"bandwidth": "fast"}, "bandwidth"),
        ({"lease": 0}, "lease"),
        ({"deadline": -3}, "deadline"),
        ({"stall": float("nan")}, "stall"),
        ({"port": 70000}, "port"),
        ({"drafts": 7}, "drafts"),
        ({"window": "wide"}, "window"),
        ({"window": 16}, "window"),
        ({"health": "yes"}, "health"),
        ({"tls_cert": "c", "tls_key": "k"}, "tls_ca"),
        ({"tls_ca": "a"}, "tls_cert"),
        ({"tls_name": "p"}, "tls_cert"),
        ({"tls_cert": "c", "tls_key": "k", "tls_ca": "a", "tls_name": ""}, "tls_name"),
    ],
)
def test_bad_config_names_the_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(OptionError, match=field):
        LynxOptions.parse(config)


def test_tls_files() -> None:
    assert LynxOptions().tls is None
    options = LynxOptions.parse({"tls_cert": "c", "tls_key": "k", "tls_ca": "a", "tls_name": "p"})
    assert options.tls == TlsConfig("c", "k", "a", "p")


@pytest.mark.parametrize(
    ("host", "exposed"),
    [("127.0.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("10.1.2.3", True), ("p", True)],
)
def test_what_is_served_in_the_clear_beyond_this_machine_is_known(host: str, exposed: bool) -> None:
    assert LynxOptions(host=host).exposed is exposed
    assert not LynxOptions(host=host, tls_cert="c", tls_key="k", tls_ca="a").exposed


def test_request_overrides_what_it_may() -> None:
    options = LynxOptions.parse({"request_bandwidth": True})
    request = RequestOptions.parse(
        options, {"lynx_method": "int8", "lynx_draft_cap": 5, "lynx_window": "fixed", "lynx_bandwidth": 40, "other": 1}
    )
    assert request == RequestOptions("int8", 5, "fixed", 40.0)
    assert RequestOptions.parse(options, None) == RequestOptions("auto", 64, "adaptive", None)


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"lynx_method": "zip"}, "lynx_method"),
        ({"lynx_metod": "bf16"}, "lynx_metod"),
        ({"lynx_method": ["lynx"]}, "lynx_method"),
        ({"lynx_draft_cap": "9"}, "lynx_draft_cap"),
        ({"lynx_draft_cap": 1000}, "lynx_draft_cap"),
        ({"lynx_window": "wide"}, "lynx_window"),
        ({"lynx_window": True}, "lynx_window"),
        ({"lynx_bandwidth": 40}, "lynx_bandwidth"),  # the operator did not allow it
    ],
)
def test_bad_request_names_the_field(args: dict[str, Any], field: str) -> None:
    with pytest.raises(OptionError, match=field):
        RequestOptions.parse(LynxOptions(), args)


def test_transfer_params_go_through_a_proxy_unchanged() -> None:
    params = PROMPT.to_params()
    assert RemotePrompt.from_params(params) == PROMPT
    assert RemotePrompt.from_params({**params, "added_by_the_proxy": 1}) == PROMPT
    assert not wants_remote_decode(params)
    assert wants_remote_decode({"do_remote_decode": True})


@pytest.mark.parametrize("params", ["a string", ["a", "list"], 7])
def test_params_that_are_no_object_are_refused(params: Any) -> None:
    with pytest.raises(TransferParamsError, match="kv_transfer_params"):
        RemotePrompt.from_params(params)
    assert not wants_remote_decode(params)


def test_a_first_token_may_be_missing_but_not_wrong() -> None:
    """Its bound is the model's vocabulary, which D knows: test_handover."""
    params = PROMPT.to_params()
    for none in ({}, {"remote_first_token": None}):
        params.pop("remote_first_token", None)
        prompt = RemotePrompt.from_params(params | none)
        assert prompt is not None and prompt.remote_first_token is None
    for wrong in (-1, "1234", 1234.5, True, [1234]):
        with pytest.raises(TransferParamsError, match="remote_first_token"):
            RemotePrompt.from_params(params | {"remote_first_token": wrong})


@pytest.mark.parametrize("field", ["remote_engine_id", "remote_request_id"])
def test_an_id_is_no_longer_than_the_transport_carries(field: str) -> None:
    """The handover remembers both."""
    assert RemotePrompt.from_params(PROMPT.to_params() | {field: "x" * MAX_ID}) is not None
    for wrong in ("", "x" * (MAX_ID + 1)):
        with pytest.raises(TransferParamsError, match=field):
            RemotePrompt.from_params(PROMPT.to_params() | {field: wrong})


def test_requests_of_other_kinds_ask_for_nothing() -> None:
    assert RemotePrompt.from_params(None) is None
    assert RemotePrompt.from_params({}) is None
    assert RemotePrompt.from_params({"do_remote_decode": True}) is None
    assert not wants_remote_decode(None)


@pytest.mark.parametrize(
    "field", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_tokens"]
)
@pytest.mark.parametrize("value", [None, [], -1, "missing"])
def test_bad_transfer_params_name_the_field(field: str, value: Any) -> None:
    params = PROMPT.to_params()
    if value == "missing":
        del params[field]
    else:
        params[field] = value
    with pytest.raises(TransferParamsError, match=field):
        RemotePrompt.from_params(params)
