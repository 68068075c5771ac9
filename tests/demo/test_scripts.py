"""scripts/serve_*.sh as an operator runs them: a pair with TLS behind the router, its metrics, the doctor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from lynx_ascend.cli import app
from lynx_ascend.demo.cluster import _SERVER_ENV
from lynx_ascend.demo.services import ReservedPort, Servers, Service
from lynx_ascend.serving.metrics import METRICS
from tests.certificates import Authority

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
PROMPT = [100 + i % 800 for i in range(600)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def urls(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """P, D and the proxy are up."""
    from lynx_ascend.evaluation.model import ensure_model

    model, logs = str(ensure_model()), tmp_path_factory.mktemp("logs")
    ports = [ReservedPort() for _ in range(4)]
    p, d, proxy, metrics = (str(port.number) for port in ports)
    small = ["--dtype", "float32", "--block-size", "32", "--max-model-len", "2048", "--enforce-eager"]

    def server(script: str, port: str, **options: Any) -> Service:
        files = authority.issue(script)
        lynx = {"tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca, **options}
        env = {**_SERVER_ENV, "VLLM_CPU_KVCACHE_SPACE": "1", "LYNX_OPTIONS": json.dumps(lynx)}
        command = ["bash", str(SCRIPTS / f"{script}.sh"), model, port, *small, "--served-model-name", "model"]
        return Service(script, command, logs / f"{script}.log", env)

    urls = p_url, d_url, proxy_url = (ports[0].url, ports[1].url, ports[2].url)
    command = ["bash", str(SCRIPTS / "serve_proxy.sh"), proxy, p_url, d_url, "--prometheus-port", metrics]
    pair = [
        (server("serve_prefill", p, bandwidth=60), p_url),
        (server("serve_decode", d, tls_name="serve_prefill"), d_url),
    ]
    router = Service("serve_proxy", command, logs / "serve_proxy.log")
    with Servers([pair, [(router, proxy_url)]], ports, 300) as servers:
        yield urls
        servers.check()


def ask(url: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "model", "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **fields}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def scrape(url: str) -> dict[str, float]:
    """Sums of the Lynx samples at a server's /metrics by name, over their labels."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=30).text):
        for sample in family.samples:
            if sample.name.startswith("vllm:lynx_") and not sample.name.endswith(("_created", "_bucket")):
                name = sample.name.removeprefix("vllm:")
                sums[name] = sums.get(name, 0) + sample.value
    return sums


def test_an_answer_through_the_proxy_is_counted_on_both_sides(urls: tuple[str, str, str]) -> None:
    prefill, decode, proxy = urls
    at_rest = scrape(decode)
    assert set(at_rest.values()) == {0.0}
    assert {name.removesuffix("_count").removesuffix("_sum") for name in at_rest} == METRICS.keys()
    exact = ask(proxy, vllm_xargs={"lynx_method": "bf16"})["choices"][0]
    drafting = {"lynx_method": "lynx", "lynx_window": "fixed"}
    lynx = [ask(proxy, vllm_xargs=drafting)["choices"][0] for _ in range(2)]
    assert lynx[0]["text"] == lynx[1]["text"] and lynx[0]["text"] and exact["text"]
    p, d = scrape(prefill), scrape(decode)
    assert d["lynx_pulls_total"] == d["lynx_transfers_total"] == p["lynx_held_prompts_total"] == 3
    assert d["lynx_verifications_total"] == 2 and d["lynx_failed_transfers_total"] == 0
    assert d["lynx_drafted_tokens_total"] >= 2 and d["lynx_staging_bytes"] == 0
    # What a transfer's last bytes add on P shows with its next step.
    assert 0 < p["lynx_sent_bytes_total"] <= d["lynx_received_bytes_total"]
    assert p["lynx_received_bytes_total"] == d["lynx_sent_bytes_total"] == 0
    ask(prefill, max_tokens=1)
    assert scrape(prefill)["lynx_sent_bytes_total"] == d["lynx_received_bytes_total"]


def test_doctor(urls: tuple[str, str, str], authority: Authority) -> None:
    prefill, decode, proxy = urls
    ours = authority.issue("doctor")
    command = ["doctor", "--prefill", prefill, "--decode", decode, "--proxy", proxy, "--tokens", "1000", "--json"]
    result = CliRunner().invoke(app, [*command, "--tls-cert", ours.cert, "--tls-key", ours.key, "--tls-ca", ours.ca])
    report = json.loads(result.stdout)
    statuses = {finding["name"]: finding["status"] for finding in report["findings"]}
    wanted = ["P", "D", "model", "handover", "KV port", "KV link", "decode step", "proxy"]
    assert {name: statuses[name] for name in wanted} == dict.fromkeys(wanted, "ok"), report
    assert report["healthy"] and result.exit_code == 0
    # The link is emulated at 60 Mbit/s; the time counts from the first byte's reading, which may be late.
    assert 30e6 < report["link"]["bits_per_s"] < 90e6


@pytest.mark.parametrize("script", ["serve_prefill", "serve_decode"])
def test_without_a_model_the_usage_is_shown(script: str, tmp_path: Path) -> None:
    service = Service(script, ["bash", str(SCRIPTS / f"{script}.sh")], tmp_path / "log")
    service.start()
    assert service.process is not None and service.process.wait(30) == 2
    assert "Usage: scripts/serve_" in service.log.read_text()
