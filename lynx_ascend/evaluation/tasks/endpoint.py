"""MMLU-Pro asked of a served OpenAI endpoint, by every KV transfer method that a request to it may name."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any
from urllib.parse import urlsplit

from openai import APIError, AsyncOpenAI, BadRequestError
from rich.console import Console

from lynx_ascend.evaluation.data import Question
from lynx_ascend.evaluation.session import progress_bar, versions
from lynx_ascend.evaluation.store import Results, digest_of
from lynx_ascend.evaluation.tasks.mmlu_pro import MMLUPro, extract, item_of
from lynx_ascend.evaluation.tasks.run import EXACT, StreamAnswer, TaskResult, TaskRow
from lynx_ascend.evaluation.tasks.task import Answer, Item
from lynx_ascend.paged import METHODS

AS_SERVED = "as served"  # the method of requests that name none
_TOP = 20  # log-probabilities that are asked for: the most that vLLM gives by default


class EndpointError(OSError):
    """The endpoint was not reached, refused a question, or answered something else; the message names both."""


@dataclass(frozen=True)
class Endpoint:
    """Where questions go.

    Attributes:
        url: base URL, such as http://127.0.0.1:8000/v1. model: the served name.
        concurrency: questions under way at once. retries: of a request that found no answer, or 429 or 5xx; waits grow.
        timeout: seconds for an answer.

    Raises:
        ValueError: another URL than http or https with a host.
    """

    url: str
    model: str
    concurrency: int = 8
    retries: int = 5
    timeout: float = 300.0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # an address or a port that is none
            named = False
        if not named:
            raise ValueError(f"endpoint: {self.url!r} is no http or https URL with a host")


@dataclass(frozen=True)
class Served:
    """A method that requests name in `vllm_xargs`."""

    name: str
    num_streams: int = 1
    source: str = "the endpoint"


def choose_served(names: str | None) -> dict[str, Served]:
    """From comma-separated names, bf16 first; None: as served.

    Raises:
        ValueError: a name that the connector does not serve.
    """
    chosen = [AS_SERVED] if names is None else list(dict.fromkeys([EXACT, *names.split(",")]))
    if unknown := [name for name in chosen if name not in (AS_SERVED, *METHODS)]:
        raise ValueError(f"methods: {unknown[0]!r} is none of {', '.join(METHODS)}, which requests may name")
    return {name: Served(name) for name in chosen}


def run_served(
    task: MMLUPro, endpoint: Endpoint, methods: Mapping[str, Served], folder: Path, console: Console
) -> TaskResult:
    """Asks what is missing in `folder`; what is there counts for the same URL, model, prompt and method.

    Raises:
        ValueError, OSError: data that cannot be read, no questions; EndpointError: the answers until then are kept.
    """
    if task.context:
        raise ValueError("context: is counted in tokens, which an endpoint does not tell")
    questions = task.questions()
    if not questions:
        raise ValueError(f"{task.name}: no prompts")
    keys = [
        [task.name, task.version, task.answer_tokens, endpoint.url, endpoint.model, task.text(*q)] for q in questions
    ]
    stores = [Results[Answer](folder / "prompts" / f"{digest_of(key)}.json") for key in keys]
    missing = [(i, name) for i, store in enumerate(stores) for name in methods if store.get(name, name) is None]
    with progress_bar(console) as progress:
        bar = progress.add_task(endpoint.url, total=len(missing))

        def keep(index: int, name: str, answer: Answer) -> None:
            stores[index].put(name, name, answer)
            progress.update(bar, advance=1)

        asyncio.run(_ask_all(task, endpoint, questions, missing, keep))
    found: list[tuple[Item, Mapping[str, TaskRow]]] = []
    for (question, _), store in zip(questions, stores, strict=True):
        answers = ((name, store.get(name, name)) for name in methods)
        streams = {name: StreamAnswer(bits=math.nan, answer=answer) for name, answer in answers if answer is not None}
        rows = {name: TaskRow(first=stream, all=stream) for name, stream in streams.items()}
        found.append((item_of(question), rows))
    setting = {
        "endpoint": asdict(endpoint),
        "task": {"parameters": repr(task), "version": task.version},
        "compute": "the endpoint's, greedy",
        "versions": versions(),
    }
    return TaskResult(task, found, methods, setting, exact=EXACT if EXACT in methods else AS_SERVED)


async def _ask_all(
    task: MMLUPro,
    endpoint: Endpoint,
    questions: Sequence[tuple[Question, Sequence[Question]]],
    missing: Sequence[tuple[int, str]],
    keep: Callable[[int, str, Answer], None],
) -> None:
    """`missing` (question, method), at most `concurrency` of them at once, in order; the first error ends all."""
    key = os.environ.get("OPENAI_API_KEY", "none")
    waiting = iter(missing)
    async with AsyncOpenAI(
        base_url=endpoint.url, api_key=key, max_retries=endpoint.retries, timeout=endpoint.timeout
    ) as client:

        async def work() -> None:
            for index, name in waiting:
                keep(index, name, await _ask(client, endpoint, task, *questions[index], name))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(endpoint.concurrency):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None


async def _ask(
    client: AsyncOpenAI, endpoint: Endpoint, task: MMLUPro, asked: Question, exemplars: Sequence[Question], method: str
) -> Answer:
    """With as many exemplars as the endpoint takes: a prompt that it refuses is asked with one less."""
    body = None if method == AS_SERVED else {"vllm_xargs": {"lynx_method": method}}
    where = f"{endpoint.url}, {asked.name}, {method}"
    for shots in range(len(exemplars), -1, -1):
        prompt = task.text(asked, exemplars[:shots])
        try:
            if task.answer_tokens:
                completion = await client.completions.create(
                    model=endpoint.model, prompt=prompt, max_tokens=task.answer_tokens, temperature=0,
                    stop=["Question:"], extra_body=body,
                )  # fmt: skip
                said = completion.choices[0].text.strip()
                return Answer(text=extract(said, len(asked.options)), reasoning=said, exemplars=shots)
            completion = await client.completions.create(
                model=endpoint.model, prompt=prompt, max_tokens=1, temperature=0, logprobs=_TOP, extra_body=body
            )
            answer = _letter(completion.choices[0].logprobs, len(asked.options))
            answer["exemplars"] = shots
            return answer
        except BadRequestError as error:
            if not shots:
                raise EndpointError(f"{where}: {error}") from None
        except (APIError, IndexError, ValueError) as error:
            raise EndpointError(f"{where}: {type(error).__name__}: {error}") from None
    raise AssertionError("the last try returns or raises")


def _letter(logprobs: Any, choices: int) -> Answer:
    """The letter with the highest log-probability among the most likely tokens; none of them a letter: no answer.

    Raises:
        ValueError: the endpoint told no log-probabilities.
    """
    if logprobs is None or not logprobs.top_logprobs:
        raise ValueError(f"no top log-probabilities of the first token ({_TOP} were asked for)")
    known: dict[str, float] = {}
    for token, value in logprobs.top_logprobs[0].items():
        letter = token.strip()
        known[letter] = max(value, known.get(letter, -math.inf))
    log_p = [known.get(letter) for letter in ascii_uppercase[:choices]]
    best = max((value for value in log_p if value is not None), default=None)
    return Answer(text="" if best is None else ascii_uppercase[log_p.index(best)], log_p=log_p)
