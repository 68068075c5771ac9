"""Services end with their whole process group, also when they ignore SIGTERM or when their parent is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lynx_ascend.demo.services import ReservedPort, Servers, Service, ServiceError, stop_all, wait_until


def alive(pid: int) -> bool:
    """True unless the process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually_dead(pid: int, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(pid)


def pid_in(path: Path) -> int:
    until = time.monotonic() + 20
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < until, "the child did not start"
        time.sleep(0.05)
    return int(path.read_text())


def test_a_grandchild_that_ignores_sigterm_ends_too(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"(trap '' TERM; echo $BASHPID >{pid_file}; while :; do sleep 1; done) & wait"
    service = Service("parent", ["bash", "-c", script], tmp_path / "log")
    service.start()
    grandchild = pid_in(pid_file)
    stop_all([service])
    assert service.process is not None and service.process.returncode is not None
    assert eventually_dead(grandchild)


def test_a_killed_parent_takes_its_service_along(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = (
        "import time; from pathlib import Path; from lynx_ascend.demo.services import Service\n"
        f"s = Service('child', ['sleep', '600'], Path({str(tmp_path / 'log')!r})); s.start()\n"
        f"Path({str(pid_file)!r}).write_text(f'{{s.process.pid}}\\n'); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    child = pid_in(pid_file)
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert eventually_dead(child)


def test_a_service_that_dies_is_reported_with_its_log(tmp_path: Path) -> None:
    command = ["bash", "-c", "for i in $(seq 100); do echo line $i; done; exit 3"]
    service = Service("decode", command, tmp_path / "decode.log")
    service.start()
    with pytest.raises(ServiceError) as error:
        wait_until(lambda: False, [service], "not healthy", time.monotonic() + 20)
    assert "decode ended with status 3" in str(error.value)
    assert "line 100" in str(error.value) and "line 50\n" not in str(error.value)


def test_a_service_that_is_not_ready_in_time_is_reported(tmp_path: Path) -> None:
    service = Service("prefill", ["bash", "-c", "echo loading; exec sleep 600"], tmp_path / "log")
    service.start()
    try:
        with pytest.raises(ServiceError, match=r"not healthy in time \(prefill\)"):
            wait_until(lambda: False, [service], "not healthy", time.monotonic() + 0.5)
    finally:
        stop_all([service])


HEALTHY = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
time.sleep(float(sys.argv[2]))
print(time.monotonic(), flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def healthy(folder: Path, name: str, port: ReservedPort, after_s: float) -> tuple[Service, str]:
    command = [sys.executable, "-c", HEALTHY, str(port.number), str(after_s)]
    return Service(name, command, folder / name), port.url


def test_a_wave_of_servers_starts_when_the_one_before_is_healthy(tmp_path: Path) -> None:
    ports = [ReservedPort() for _ in range(3)]
    first = [healthy(tmp_path, "a", ports[0], 0.0), healthy(tmp_path, "b", ports[1], 1.0)]
    second = [healthy(tmp_path, "c", ports[2], 0.0)]
    with Servers([first, second], ports, start_s=20) as servers:
        servers.check()
        up = {service.name: float(service.log.read_text().splitlines()[0]) for service in servers.services}
        assert up["a"] < up["b"] < up["c"]
    assert all(service.process is not None and service.process.returncode is not None for service in servers.services)


def test_one_server_that_dies_ends_them_all(tmp_path: Path) -> None:
    ports = [ReservedPort() for _ in range(2)]
    dying = Service("dying", ["bash", "-c", "sleep 0.5; exit 3"], tmp_path / "dying"), ports[1].url
    servers = Servers([[healthy(tmp_path, "a", ports[0], 0.0), dying]], ports, start_s=20)
    with pytest.raises(ServiceError, match="dying ended with status 3"), servers:
        pytest.fail("entered")
    assert all(service.process is not None and service.process.returncode is not None for service in servers.services)


def test_a_command_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"decode: .*no-such-command"):
        Service("decode", ["no-such-command"], tmp_path / "log").start()


def test_environment_and_cores_reach_the_service(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    script = "import os; print(os.environ['LYNX_TEST'], os.sched_getaffinity(0))"
    command = [sys.executable, "-c", script]
    service = Service("child", command, tmp_path / "log", {"LYNX_TEST": "here"}, frozenset({core}))
    service.start()
    assert service.process is not None and service.process.wait(20) == 0
    assert service.log.read_text() == f"here {{{core}}}\n"


def test_a_reserved_port_can_be_served_but_is_given_to_nobody() -> None:
    port = ReservedPort()
    try:
        others = []
        for _ in range(200):
            other = socket.socket()
            other.bind(("127.0.0.1", 0))
            others.append(other)
        assert port.number not in [other.getsockname()[1] for other in others]
        for other in others:
            other.close()
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port.number))
            server.listen()
            with socket.create_connection(("127.0.0.1", port.number), timeout=5):
                assert server.accept()[0] is not None
    finally:
        port.close()
