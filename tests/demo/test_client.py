"""The client counts tokens by when they came, and takes nothing but a complete answer for one."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from lynx_ascend.demo.client import Completion, CompletionError, collect, complete


def event(tokens: list[int], text: str, finish: str | None = None) -> str:
    choice = {"index": 0, "text": text, "token_ids": tokens, "finish_reason": finish}
    return "data: " + json.dumps({"id": "cmpl-7", "choices": [choice]})


def ticking() -> Iterator[float]:
    return itertools.count(11.0, 0.5)


def read(lines: list[str]):
    clock = ticking()
    return collect(lines, sent_at=10.0, clock=lambda: next(clock))


def test_tokens_of_one_chunk_share_their_arrival() -> None:
    answer = read([event([5, 6, 7], "abc"), "", event([8], "d"), event([9], "e", "length"), "", "data: [DONE]"])
    assert answer.token_ids == [5, 6, 7, 8, 9]
    assert answer.text == "abcde"
    assert answer.arrivals == [11.0, 11.0, 11.0, 11.5, 12.0]
    assert (answer.ttft, answer.time_to(3), answer.time_to(4), answer.time_to(5)) == (1.0, 1.0, 1.5, 2.0)
    assert answer.time_to(6) is None
    assert (answer.request_id, answer.finish_reason) == ("cmpl-7", "length")


def test_a_decode_step_is_the_median_time_between_chunks() -> None:
    answer = Completion(0.0, arrivals=[1.0, 1.0, 1.0, 1.25, 1.5, 3.5])
    assert answer.decode_step() == 0.25
    with pytest.raises(ValueError, match="1 chunks are too few"):
        Completion(0.0, arrivals=[1.0, 1.0]).decode_step()


def test_an_event_without_tokens_counts_none() -> None:
    usage = "data: " + json.dumps({"id": "cmpl-7", "choices": [], "usage": {"completion_tokens": 1}})
    answer = read([": comment", event([5], "a"), event([], "", "stop"), usage, "data: [DONE]"])
    assert answer.token_ids == [5]
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([event([5], "a")], "broke off after 1 tokens"),
        ([event([5], "a"), 'data: {"error": {"message": "engine died", "code": 500}}'], "after 1 tokens: engine died"),
        (["data: {", "data: [DONE]"], "malformed event"),
        (['data: {"id": "x", "choices": [{"text": "a"}]}'], "malformed event .*token_ids"),
    ],
)
def test_anything_but_a_complete_answer_is_an_error(lines: list[str], reason: str) -> None:
    with pytest.raises(CompletionError, match=reason):
        read(lines)


def test_the_request_and_a_refusal_over_http() -> None:
    seen: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b"prompt too long")

        def log_message(self, *args: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(CompletionError, match="HTTP 400: prompt too long"):
            url = f"http://127.0.0.1:{server.server_port}"
            complete(url, [1, 2], max_tokens=3, xargs={"lynx_method": "int8"}, timeout=10)
        thread.join()
    assert seen[0]["prompt"] == [1, 2]
    assert seen[0]["vllm_xargs"] == {"lynx_method": "int8"}
    assert (seen[0]["temperature"], seen[0]["stream"], seen[0]["return_token_ids"]) == (0, True, True)


def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(CompletionError, match="Connect"):
        complete("http://127.0.0.1:1", [1], max_tokens=1, timeout=5)
