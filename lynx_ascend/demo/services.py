"""Child processes that never outlive us: each with a process group, a log file, and a signal at its parent's death."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_GRACE_S = 15.0
_GROUP_GRACE_S = 5.0
TAIL_LINES = 25


class ServiceError(RuntimeError):
    """A service that died or did not become ready; the message ends with its log's last lines."""


@dataclass
class Service:
    """One command under supervision.

    Attributes:
        name: for messages, and of its log file.
        env: added to this process's environment.
        cores: CPUs that it may run on; empty: all of them.
    """

    name: str
    command: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cores: frozenset[int] = frozenset()
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises ServiceError if the command cannot be run."""
        with open(self.log, "wb") as log:
            try:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.env},
                    start_new_session=True,
                    preexec_fn=_child_setup(os.getpid(), self.cores),
                )
            except OSError as error:
                raise ServiceError(f"{self.name}: {error}") from None

    def check(self) -> None:
        """Raises ServiceError if it has ended."""
        if self.process is not None and (code := self.process.poll()) is not None:
            raise ServiceError(self.with_tail(f"{self.name} ended with status {code}"))

    def with_tail(self, message: str) -> str:
        """The message, then the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"{message}; {self.log} ends with:", *(f"  {line}" for line in lines[-TAIL_LINES:])])


def _child_setup(parent: int, cores: frozenset[int]) -> Callable[[], None]:
    def setup() -> None:
        if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM):
            raise OSError(ctypes.get_errno(), "prctl")
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)
        if cores:
            os.sched_setaffinity(0, cores)

    return setup


def wait_until(ready: Callable[[], bool], services: Iterable[Service], what: str, deadline: float) -> None:
    """Returns once `ready()`; `deadline` is in time.monotonic() seconds.

    Raises:
        ServiceError: a service ended, or the deadline passed.
    """
    services = list(services)
    while not ready():
        for service in services:
            service.check()
        if time.monotonic() > deadline:
            raise ServiceError("\n".join(s.with_tail(f"{what} in time ({s.name})") for s in services))
        time.sleep(0.1)


class Servers:
    """Context manager: HTTP servers are up inside it, and gone after it.

    Args:
        waves: services and where they listen; those of a wave start together, when all before them are healthy.
        ports: to be held for them, and given back in the end.
        start_s: seconds until everything must be up.

    Raises (on entering):
        ServiceError: one of them died or was not up in time, with its log's tail.
    """

    def __init__(
        self, waves: Sequence[Sequence[tuple[Service, str]]], ports: Sequence[ReservedPort], start_s: float
    ) -> None:
        self._waves, self._ports, self._start_s = waves, ports, start_s

    @property
    def services(self) -> list[Service]:
        """All of them, in the order in which they are ended."""
        return [service for wave in self._waves for service, _ in wave]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """Raises ServiceError if one of them has died."""
        for service in self.services:
            service.check()

    def stop(self) -> None:
        """Ends every process that was started."""
        stop_all(self.services)
        for port in self._ports:
            port.close()

    def _start(self) -> None:
        deadline = time.monotonic() + self._start_s
        started: list[Service] = []
        for wave in self._waves:
            for service, _ in wave:
                service.start()
                started.append(service)
            for _, url in wave:
                wait_until(lambda url=url: _healthy(url), started, "not healthy", deadline)  # type: ignore[misc]


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False


def stop_all(services: Iterable[Service]) -> None:
    """Ends every process group: SIGTERM to the leaders all at once, SIGKILL to whatever is left. Never raises."""
    running = [s.process for s in services if s.process is not None]
    for process in running:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _end_group(process.pid)


def _end_group(group: int) -> None:
    """Kills what the leader has left behind, after a moment: Python's resource trackers free shared memory last."""
    until = time.monotonic() + _GROUP_GRACE_S
    try:
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # the group is empty, as it should be


class ReservedPort:
    """A free TCP port of the loopback interface that the kernel gives to nobody else while this is held.

    The socket is bound and does not listen; servers that set SO_REUSEADDR, as all of ours do, can bind beside it.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        """Of the server that will listen here."""
        return f"http://127.0.0.1:{self.number}"

    def close(self) -> None:
        """Gives the port back to the system."""
        self._socket.close()
