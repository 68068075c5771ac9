"""A pair of servers under the doctor: real sockets and a real Producer; faults are named, nothing is left on P."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from typer.testing import CliRunner, Result

from lynx_ascend.cli import app
from lynx_ascend.doctor.link import LinkError, fetch, is_local
from lynx_ascend.frame import FrameHeader, seal
from lynx_ascend.methods import wire_bytes
from lynx_ascend.serving.metadata import SendOrder
from lynx_ascend.serving.producer import Producer
from lynx_ascend.serving.transfer_params import RemotePrompt
from tests.certificates import Authority
from tests.doctor.servers import ENGINE, HEAD_DIM, HEADS, LAYERS, TOKENS, TPOT, Script, producing, serving

BANDWIDTH = 40.0  # Mbit/s: 0.14 s for what is pulled here
Doctor = Callable[..., tuple[Result, dict[str, Any], dict[str, str]]]


@pytest.fixture
def producer() -> Iterator[Producer]:
    with producing(bandwidth=BANDWIDTH) as producer:
        yield producer


@pytest.fixture
def prefill(producer: Producer) -> Script:
    return Script(producer=producer)


@pytest.fixture
def decode() -> Script:
    return Script()


@pytest.fixture
def doctor(prefill: Script, decode: Script) -> Iterator[Doctor]:
    """Runs the command against both; gives the result, its JSON object and the status of each finding by name."""
    with serving(prefill) as p, serving(decode) as d:

        def run(*args: str) -> tuple[Result, dict[str, Any], dict[str, str]]:
            command = ["doctor", "--prefill", p, "--decode", d, "--tokens", str(TOKENS), "--timeout", "10", "--json"]
            result = CliRunner().invoke(app, [*command, *args])
            assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
            found = json.loads(result.stdout)  # one object and nothing else
            return result, found, {finding["name"]: finding["status"] for finding in found["findings"]}

        yield run


def found(report: dict[str, Any], name: str) -> str:
    return next(finding["found"] for finding in report["findings"] if finding["name"] == name)


def test_all_is_well(doctor: Doctor, producer: Producer, prefill: Script, decode: Script) -> None:
    with serving(Script()) as proxy:
        result, report, statuses = doctor("--proxy", proxy)
    assert result.exit_code == 0 and report["healthy"]
    names = ["P", "D", "model", "handover", "KV port", "KV link", "decode step", "proxy", "gain at 1024"]
    assert list(statuses) == names
    assert {name: statuses[name] for name in names[:-1]} == dict.fromkeys(names[:-1], "ok")
    link = report["link"]
    sizes = wire_bytes("lynx", TOKENS, heads=HEADS, head_dim=HEAD_DIM, dtype=torch.bfloat16)
    assert link["wire_bytes"] == {s.name.lower(): 2 * LAYERS * nbytes for s, nbytes in sizes.items()}
    assert link["uncompressed_bytes"] == 2 * LAYERS * TOKENS * HEADS * HEAD_DIM * 2
    # The emulated link's bucket is full at first: a little more than its rate.
    assert 0.2 * BANDWIDTH < link["bits_per_s"] / 1e6 < 1.3 * BANDWIDTH
    assert 0.5 * TPOT < report["decode_step_s"] < 10 * TPOT
    assert prefill.requests[0]["max_tokens"] == 1 and len(prefill.requests) == 1
    assert not any(request.get("kv_transfer_params") for request in decode.requests)
    assert released(producer) == {"cmpl-1"}
    assert idle(producer)


def test_gain_follows_from_what_was_measured(doctor: Doctor, prefill: Script, decode: Script) -> None:
    prefill.models["model"] = decode.models["model"] = 32768
    _, report, statuses = doctor()
    choices = {choice["tokens"]: choice for choice in report["gain"]["choices"]}
    assert list(choices) == [1024, 4096, 16384]  # not what the model does not take
    per_token = report["link"]["uncompressed_bytes"] / TOKENS
    longest = choices[16384]
    raw = 16384 * per_token * 8 / report["link"]["bits_per_s"]
    assert longest["seconds"]["bf16"] == pytest.approx(raw + 64 * report["decode_step_s"], rel=0.02)
    assert longest["method"] == "lynx" and statuses["gain at 16384"] == "ok"  # the Residual takes 100s of steps
    assert "SmolLM2" in report["gain"]["assumptions"]


def released(producer: Producer) -> set[str]:
    """What P's engine can free; encoding ends on a thread of its own, just after the last frame is sent."""
    deadline = time.monotonic() + 5
    while not (finished := producer.finished()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return finished


def idle(producer: Producer) -> bool:
    """Whether no connection is left, after the moment that the server takes to see one end."""
    deadline = time.monotonic() + 5
    while producer.server.queue.connections and time.monotonic() < deadline:
        time.sleep(0.01)
    return not producer.server.queue.connections


def test_prefill_is_down(decode: Script) -> None:
    with socket.socket() as nobody, serving(decode) as url:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        dead = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        result = CliRunner().invoke(app, ["doctor", "--prefill", dead, "--decode", url, "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == 1 and not report["healthy"]
    assert [(f["name"], f["status"]) for f in report["findings"]] == [("P", "problem"), ("D", "ok")]
    assert "refused" in found(report, "P") and dead in found(report, "P")


def test_silent_server_is_given_up(decode: Script) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, serving(decode) as url:
        mute = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        result = CliRunner().invoke(app, ["doctor", "--prefill", mute, "--decode", url, "--timeout", "0.3", "--json"])
    assert time.monotonic() - began < 5
    assert "timed out" in found(json.loads(result.stdout), "P")


def test_not_a_lynx_prefill(doctor: Doctor, prefill: Script) -> None:
    prefill.producer = None
    result, report, statuses = doctor()
    assert result.exit_code == 1 and statuses["handover"] == "problem"
    assert "without kv_transfer_params" in found(report, "handover")
    assert "KV link" not in statuses and "gain at 1024" not in statuses and statuses["decode step"] == "ok"


def test_another_connector(doctor: Doctor, prefill: Script) -> None:
    prefill.handover = lambda prompt: {"do_remote_prefill": True, "remote_engine_id": "x", "remote_block_ids": [1]}
    result, report, statuses = doctor()
    assert result.exit_code == 1 and statuses["handover"] == "problem"
    assert "remote_request_id" in found(report, "handover")


def test_prefill_refuses(doctor: Doctor, prefill: Script) -> None:
    prefill.refuse = 500
    result, report, statuses = doctor()
    assert result.exit_code == 1 and statuses["handover"] == "problem"
    assert "HTTP 500" in found(report, "handover") and "the engine says no" in found(report, "handover")


def test_api_key(doctor: Doctor, prefill: Script, decode: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill.api_key = decode.api_key = "secret"
    result, report, _ = doctor()
    assert result.exit_code == 1 and "HTTP 401" in found(report, "handover")
    assert doctor("--api-key", "secret")[0].exit_code == 0
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    result, _, _ = doctor()
    assert result.exit_code == 0 and "secret" not in result.output


def test_kv_port_is_closed(doctor: Doctor, producer: Producer) -> None:
    producer.close()
    result, report, statuses = doctor()
    assert result.exit_code == 1 and statuses["KV port"] == "problem"
    assert f"127.0.0.1:{producer.server.port}" in found(report, "KV port")
    assert "KV link" not in statuses


def test_another_engine_at_the_kv_port(doctor: Doctor, prefill: Script) -> None:
    prefill.handover = lambda prompt: msgspec.structs.replace(prompt, remote_engine_id="restarted").to_params()
    result, report, statuses = doctor()
    assert result.exit_code == 1 and statuses["KV link"] == "problem"
    assert "restarted" in found(report, "KV link")


def test_unknown_prompt(doctor: Doctor, prefill: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lynx_ascend.serving.producer.ARRIVAL_WAIT_S", 0.1)
    prefill.handover = lambda prompt: msgspec.structs.replace(prompt, remote_request_id="gone").to_params()
    result, report, statuses = doctor()
    assert result.exit_code == 1 and statuses["KV link"] == "problem"
    assert "'gone'" in found(report, "KV link")


def test_damaged_frame(doctor: Doctor, producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_bit_off(frame: bytearray, header: FrameHeader) -> None:
        seal(frame, header)
        frame[-1] ^= 1

    monkeypatch.setattr("lynx_ascend.paged.seal", one_bit_off)
    result, report, statuses = doctor()
    assert result.exit_code == 1 and statuses["KV link"] == "problem"
    assert "checksum" in found(report, "KV link") and "gain" not in report
    assert released(producer) == {"cmpl-1"} and idle(producer)


def test_slow_link_is_given_up_and_leaves_nothing() -> None:
    with producing(bandwidth=0.5) as producer:
        producer.hold(SendOrder("cmpl-1", list(range(19)), TOKENS))
        prompt = RemotePrompt(ENGINE, "cmpl-1", "127.0.0.1", producer.server.port, TOKENS)
        with pytest.raises(LinkError, match="in time"):
            fetch(prompt, 0.5)
        assert released(producer) == {"cmpl-1"} and idle(producer)


def test_tls(prefill: Script, decode: Script, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    p, ours = authority.issue("p"), authority.issue("doctor")
    files = {"tls_cert": p.cert, "tls_key": p.key, "tls_ca": p.ca}
    args = ["--tls-cert", ours.cert, "--tls-key", ours.key, "--tls-ca", ours.ca]
    with producing(**files) as prefill.producer, serving(prefill) as first, serving(decode) as second:
        command = ["doctor", "--prefill", first, "--decode", second, "--tokens", "600", "--json"]
        report = json.loads(CliRunner().invoke(app, [*command, *args]).stdout)
        assert "Gbit/s" in found(report, "KV link") and report["link"]["tokens"] == 600
        report = json.loads(CliRunner().invoke(app, command).stdout)
        assert "the peer speaks TLS" in found(report, "KV link")
        report = json.loads(CliRunner().invoke(app, [*command, *args[:2], "--tls-key", "none", *args[4:]]).stdout)
        assert "tls_key none" in found(report, "KV link")
        result = CliRunner().invoke(app, [*command, *args[:4]])
        assert result.exit_code == 2 and "--tls-ca" in result.stderr


def test_models_differ(doctor: Doctor, decode: Script) -> None:
    decode.models = {"other": 4096}
    result, report, statuses = doctor()
    assert result.exit_code == 1 and list(statuses.items())[-1] == ("model", "problem")
    assert found(report, "model") == "P serves model, D serves other"


def test_lengths_differ(doctor: Doctor, decode: Script) -> None:
    decode.models = {"model": 512}
    result, report, statuses = doctor()
    assert result.exit_code == 0 and statuses["model"] == "warning"
    assert "4096 on P, 512 on D" in found(report, "model")
    assert report["link"]["tokens"] == 511  # what both take


def test_unsupported_release(doctor: Doctor, decode: Script) -> None:
    decode.version = "0.11.0"
    result, report, statuses = doctor()
    assert result.exit_code == 1 and statuses["D"] == "problem" and "0.11.0" in found(report, "D")
    assert statuses["KV link"] == "ok"


def test_decode_refuses(doctor: Doctor, decode: Script) -> None:
    decode.refuse = 503
    result, report, statuses = doctor()
    assert result.exit_code == 1 and statuses["decode step"] == "problem"
    assert "HTTP 503" in found(report, "decode step") and "gain" not in report


def test_proxy_that_fails(doctor: Doctor) -> None:
    with serving(Script(refuse=502)) as proxy:
        result, report, statuses = doctor("--proxy", proxy)
    assert result.exit_code == 1 and statuses["proxy"] == "problem" and "HTTP 502" in found(report, "proxy")


def test_loopback_handed_to_another_machine(prefill: Script, decode: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve("127.0.0.1" if host == "decode.example" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with serving(prefill) as p, serving(decode) as d:
        remote = d.replace("127.0.0.1", "decode.example")
        result = CliRunner().invoke(app, ["doctor", "--prefill", p, "--decode", remote, "--tokens", "600", "--json"])
    report = json.loads(result.stdout)
    statuses = {finding["name"]: finding["status"] for finding in report["findings"]}
    assert statuses["KV address"] == "warning" and "decode.example is D itself" in found(report, "KV address")
    assert result.exit_code == 0 and statuses["KV link"] == "ok"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost", "0.0.0.0", "::"])
def test_local_addresses(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "fd00::1", "p.example"])
def test_other_addresses(host: str) -> None:
    assert not is_local(host)


@pytest.mark.parametrize("args", [["--prefill", "http://p:1"], ["--proxy", "http://p:1"]])
def test_half_a_pair_is_refused(args: list[str]) -> None:
    result = CliRunner().invoke(app, ["doctor", *args])
    assert result.exit_code == 2 and "both" in result.stderr


def test_no_url_is_refused() -> None:
    result = CliRunner().invoke(app, ["doctor", "--prefill", "p:8000", "--decode", "http://d:1"])
    assert result.exit_code == 2 and "p:8000" in result.stderr


def test_lines_for_a_reader(prefill: Script, decode: Script) -> None:
    with serving(prefill) as p, serving(decode) as d:
        result = CliRunner().invoke(app, ["doctor", "--prefill", p, "--decode", d, "--tokens", "600"])
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and lines[0].split()[:2] == ["ok", "P"]
    assert any("Gbit/s from P to here" in line for line in lines) and lines[-1].startswith("gains: one request alone")
