"""MMLU-Pro at an endpoint: the project's own servers answer as the in-process run; refusals, faults, retries."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from lynx_ascend.cli import app
from lynx_ascend.evaluation.cases import exact_cache
from lynx_ascend.evaluation.methods import choose
from lynx_ascend.evaluation.model import ensure_model
from lynx_ascend.evaluation.tasks.endpoint import Endpoint, EndpointError, _letter, choose_served, run_served
from lynx_ascend.evaluation.tasks.mmlu_pro import MMLUPro
from lynx_ascend.evaluation.tasks.report import scores, tables, write_report
from lynx_ascend.evaluation.tasks.run import run_task

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mmlu_pro"
Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


def quiet() -> Console:
    return Console(quiet=True)


class Faulty:
    """An endpoint whose answers a test decides: for what a healthy server does not do. asked: the bodies, in order."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[dict[str, Any]] = []
        self.at_once = self.most_at_once = 0
        lock, faulty = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    faulty.asked.append(body)
                    faulty.at_once += 1
                    faulty.most_at_once = max(faulty.most_at_once, faulty.at_once)
                status, value = answer(body)
                with lock:
                    faulty.at_once -= 1
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def faulty() -> Iterator[Callable[[Answer], Faulty]]:
    made: list[Faulty] = []

    def make(answer: Answer) -> Faulty:
        made.append(Faulty(answer))
        return made[-1]

    yield make
    for each in made:
        each.server.shutdown()
        each.server.server_close()


def completion(top: dict[str, float] | None, text: str = "B") -> tuple[int, dict[str, Any]]:
    """What an OpenAI endpoint answers."""
    logprobs = None
    if top is not None:
        logprobs = {"top_logprobs": [top], "tokens": ["B"], "token_logprobs": [-1.0], "text_offset": [0]}
    choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": logprobs}
    return 200, {"id": "1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


def refusal(message: str, status: int = 400) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": message, "type": "invalid_request_error", "code": status}}


def test_what_is_asked_and_what_counts(faulty: Callable[[Answer], Faulty], tmp_path: Path) -> None:
    server = faulty(lambda body: completion({"A": -2.0, " B": -1.5, "B": -3.0, "The": -0.1, "Z": -0.2}))
    result = run_served(MMLUPro(SAMPLE, 3), Endpoint(server.url, "m", 2), choose_served("lynx"), tmp_path, quiet())
    assert len(server.asked) == 6 and server.most_at_once <= 2
    assert sorted(body["vllm_xargs"]["lynx_method"] for body in server.asked) == ["bf16"] * 3 + ["lynx"] * 3
    for body in server.asked:
        assert body["prompt"].endswith("step by step. The answer is (") and body["model"] == "m"
        assert (body["max_tokens"], body["temperature"], body["logprobs"]) == (1, 0, 20)
    answers = [rows["lynx"]["all"]["answer"] for _, rows in result.items]
    assert {answer["text"] for answer in answers} == {"B"}
    assert answers[0]["log_p"][:3] == [-2.0, -1.5, None]
    assert [row.agreement.value for row in scores(result)] == [1, 1]
    value = write_report(result, tmp_path)
    assert value["methods"][0]["bits"] is None and value["prompts"][0]["tokens"] is None
    assert "nan" not in (tmp_path / "mmlu-pro.md").read_text().lower()
    assert tables(result)[0][2][1][:2] == ["lynx", ""]
    # A second run asks nothing that was answered: here one method more.
    run_served(MMLUPro(SAMPLE, 3), Endpoint(server.url, "m"), choose_served("lynx,int4"), tmp_path, quiet())
    assert [body["vllm_xargs"]["lynx_method"] for body in server.asked[6:]] == ["int4"] * 3


def test_requests_that_name_no_method(faulty: Callable[[Answer], Faulty], tmp_path: Path) -> None:
    server = faulty(lambda body: completion(None, " It is 4.\nThe answer is (C)."))
    result = run_served(MMLUPro(SAMPLE, 2, 50), Endpoint(server.url, "m"), choose_served(None), tmp_path, quiet())
    assert all("vllm_xargs" not in body and body["max_tokens"] == 50 for body in server.asked)
    assert all(body["stop"] == ["Question:"] and "logprobs" not in body for body in server.asked)
    assert [rows["as served"]["all"]["answer"]["text"] for _, rows in result.items] == ["C", "C"]
    assert tables(result)[0][2][0][:3] == ["as served", "", ""]  # nothing to agree with
    write_report(result, tmp_path)
    assert "<img" not in (tmp_path / "mmlu-pro.html").read_text()


def test_a_refused_prompt_is_asked_with_fewer_exemplars(faulty: Callable[[Answer], Faulty], tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        too_long = body["prompt"].count("Question:") > 2
        return refusal("maximum context length is 9 tokens") if too_long else completion({"A": -1.0})

    server = faulty(answer)
    result = run_served(MMLUPro(SAMPLE, 1), Endpoint(server.url, "m"), choose_served(None), tmp_path, quiet())
    assert [body["prompt"].count("Question:") for body in server.asked] == [3, 2]
    [prompt] = write_report(result, tmp_path)["prompts"]
    assert prompt["methods"]["as served"]["all"]["answer"]["exemplars"] == 1
    server = faulty(lambda body: refusal("lynx_method: 'x' is none of"))
    with pytest.raises(EndpointError, match=r"http://127.*/v1, biology 5, as served: .*lynx_method: 'x' is none of"):
        run_served(MMLUPro(SAMPLE, 1), Endpoint(server.url, "m"), choose_served(None), tmp_path / "b", quiet())


def test_faults_are_retried_then_named(faulty: Callable[[Answer], Faulty], tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return refusal("busy", 503) if len(server.asked) < 3 else completion({"A": -1.0})

    server, task = faulty(answer), MMLUPro(SAMPLE, 1)
    run_served(task, Endpoint(server.url, "m", retries=3), choose_served(None), tmp_path / "a", quiet())
    assert len(server.asked) == 3
    for status, value, message in (
        (*refusal("broken", 500), "InternalServerError: .*broken"),
        (*refusal("no model 'm'", 404), "NotFoundError: .*no model 'm'"),
        (*completion(None), r"no top log-probabilities of the first token \(20 were asked for\)"),
        (200, {"choices": []}, "IndexError"),
    ):
        server = faulty(lambda body, got=(status, value): got)  # type: ignore[misc]
        with pytest.raises(EndpointError, match=f"biology 5, as served: .*{message}"):
            run_served(task, Endpoint(server.url, "m", retries=0), choose_served(None), tmp_path / "b", quiet())
    server.server.shutdown()
    server.server.server_close()
    started = time.monotonic()
    with pytest.raises(EndpointError, match=r"biology 5, as served: APIConnectionError"):
        run_served(task, Endpoint(server.url, "m", retries=1), choose_served(None), tmp_path / "b", quiet())
    assert time.monotonic() - started < 30


def test_what_was_answered_before_a_fault_is_kept(faulty: Callable[[Answer], Faulty], tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return completion({"A": -1.0}) if len(server.asked) != 3 else refusal("broken", 500)

    server, task = faulty(answer), MMLUPro(SAMPLE, 4)
    with pytest.raises(EndpointError, match="broken"):
        run_served(task, Endpoint(server.url, "m", 1, retries=0), choose_served(None), tmp_path, quiet())
    run_served(task, Endpoint(server.url, "m", 1, retries=0), choose_served(None), tmp_path, quiet())
    assert len(server.asked) == 3 + 2


def test_no_letter_among_the_most_likely_tokens_is_no_answer() -> None:
    logprobs = SimpleNamespace(top_logprobs=[{"the": -0.1, "K": -0.3}])
    assert _letter(logprobs, 3) == {"text": "", "log_p": [None, None, None]}


def test_the_command_refuses_what_it_cannot_ask(tmp_path: Path) -> None:
    base = ["eval", "mmlu-pro", "--data", str(SAMPLE), "--report", str(tmp_path), "--endpoint", "http://127.0.0.1:9/v1"]
    for arguments, message in (
        ([], "serves its model is needed"),
        (["--model", "m", "--methods", "kivi-4"], "'kivi-4' is none of bf16"),
        (["--model", "m", "--context", "500"], "context: is counted in tokens"),
    ):
        done = CliRunner().invoke(app, [*base, *arguments])
        said = " ".join(done.output.replace("│", " ").split())
        assert done.exit_code in (1, 2) and message in said and "Traceback" not in said


@pytest.mark.parametrize("url", ["127.0.0.1:8000/v1", "http://", "ftp://a/v1", "http://[::1", "http://a:99999/v1", ""])
def test_a_url_that_is_none_is_refused_at_once(tmp_path: Path, url: str) -> None:
    base = ["eval", "mmlu-pro", "--data", str(SAMPLE), "--report", str(tmp_path), "--model", "m", "--endpoint", url]
    done = CliRunner().invoke(app, base)
    said = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2 and f"endpoint: {url!r} is no http or https URL with a host" in said


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_served_answers_are_those_of_the_in_process_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two real vLLM servers, the proxy and the connector in float32: letters by log-probability, then reasoning."""
    from lynx_ascend.demo.cluster import Cluster, ClusterOptions

    methods, letters, reasoning = "bf16,int8,lynx", MMLUPro(SAMPLE, 4), MMLUPro(SAMPLE, 2, 12)
    with Cluster(ClusterOptions(ensure_model(), tmp_path / "logs", "float32", method="bf16", start_s=300)) as cluster:
        endpoint = Endpoint(f"{cluster.url}/v1", "model", 2)
        served = run_served(letters, endpoint, choose_served(methods), tmp_path / "letters", quiet())
        said = run_served(reasoning, endpoint, choose_served(methods), tmp_path / "said", quiet())
        base = ["eval", "mmlu-pro", "--data", str(SAMPLE), "--limit", "1", "--report", str(tmp_path / "command")]
        done = CliRunner().invoke(app, [*base, "--endpoint", f"{cluster.url}/v1", "--model", "model", "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["methods"][0]["method"] == "as served"
    # On the servers' fp32 cache: of one in bf16 many of int8's codes would be others.
    monkeypatch.setattr("lynx_ascend.evaluation.tasks.run.exact_cache", partial(exact_cache, dtype=torch.float32))
    here = run_task(letters, choose(methods), tmp_path / "here", quiet())
    for (item, theirs), (same, ours) in zip(served.items, here.items, strict=True):
        assert item.name == same.name and item.wanted == same.wanted
        for name in methods.split(","):
            got, expected = (rows[name]["all"]["answer"]["log_p"] for rows in (theirs, ours))
            pairs = [(a, b) for a, b in zip(got, expected, strict=True) if a is not None]
            bound = 0.001 if name == "bf16" else 0.03  # a code may round the other way
            assert len(pairs) >= 2 and max(abs(a - b) for a, b in pairs) < bound
            best = sorted(b for _, b in pairs)
            if best[-1] - best[-2] > 2 * bound:
                assert theirs[name]["all"]["answer"]["text"] == ours[name]["all"]["answer"]["text"]
    spoken = run_task(reasoning, choose(methods), tmp_path / "spoken", quiet())
    # To the end of "The answer is (" in the second one: on the 8-bit cache J and A are 0.0014 nats apart then.
    for (_, theirs), (_, ours), alike in zip(said.items, spoken.items, (20, 15), strict=True):
        for name in methods.split(","):
            said_there, said_here = (rows[name]["all"]["answer"]["reasoning"] for rows in (theirs, ours))
            assert said_there[:alike] == said_here[:alike]
