"""Servers under a low limit of descriptors: they refuse to start, or they serve."""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from sparrowmq import Admin, Message, Producer
from sparrowmq.hosting.descriptor_limit import descriptors_needed
from sparrowmq.serving.descriptors import peer_descriptors_max

COMMAND = (sys.executable, "-m", "sparrowmq")
FREE_PORTS = ("--nameserver-port", "0", "--broker-port", "0", "--grpc-port", "0")
NEEDED = descriptors_needed()
# Every command that serves; no name server answers at the address of the last three.
NOWHERE = "127.0.0.1:1"
SERVERS = {
    "up": ("up", *FREE_PORTS),
    "two brokers": ("up", *FREE_PORTS[:4], "--grpc-port", "-1", "--brokers", "2"),
    "name server": ("nameserver", "--port", "0"),
    "broker": ("broker", "--port", "0", "--nameserver", NOWHERE),
    "page": ("dash", "--port", "0", "--nameserver", NOWHERE),
    "exporter": ("metrics", "--port", "0", "--nameserver", NOWHERE),
}

Limited = Callable[[Sequence[str], int], subprocess.Popen[str]]


def set_limit(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    """Starts a command that may have so many descriptors."""
    with (tmp_path / "log").open("w") as log:
        started: list[subprocess.Popen[str]] = []

        def start(options: Sequence[str], limit: int) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [*COMMAND, *options],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=partial(set_limit, limit),
            )
            started.append(process)
            return process

        yield start
        for process in started:
            process.terminate()
            process.communicate(timeout=60)


def addresses(process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the addresses of a server's ready line."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 60)[0], "not ready"
    ready = process.stdout.readline().split()
    assert ready[:1] == ["ready"], ready
    return dict(part.split("=", 1) for part in ready[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "limit"), [*((each, 24) for each in SERVERS), ("up", 16), ("up", NEEDED - 1)]
)
def test_a_server_that_could_serve_nobody_does_not_start(
    server: str, limit: int, limited: Limited, tmp_path: Path
) -> None:
    process = limited(SERVERS[server], limit)

    assert process.wait(60) == 2
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert f"may have {limit} files and connections open at once" in line
    assert f"ulimit -n {NEEDED}" in line


@pytest.mark.slow
def test_the_lowest_limit_is_enough(limited: Limited) -> None:
    up = limited((*SERVERS["up"], "--health-port", "0"), NEEDED)
    served = addresses(up)
    name_server = served["nameserver"]
    own = len(os.listdir(f"/proc/{up.pid}/fd"))
    for each in ("page", "exporter"):
        addresses(limited((*SERVERS[each][:-1], name_server), NEEDED))

    with Admin(name_server=name_server) as admin:
        for number in range(20):
            admin.create_topic(f"T{number}")
    with Producer("P", name_server=name_server) as producer:
        for number in range(20):
            for _ in range(8):
                producer.send(Message(f"T{number}", b"x"))

    # What `_OWN_MAX` allows: the process' own, the page's and the exporter's connections excepted.
    assert own <= 48


@pytest.mark.slow
def test_a_log_of_many_files_needs_a_higher_limit(limited: Limited, tmp_path: Path) -> None:
    log = tmp_path / "sparrowmq-data" / "store" / "commitlog"
    log.mkdir(parents=True)
    for number in range(300):
        (log / f"{number << 20:020}").touch()

    process = limited(SERVERS["up"], 600)

    assert process.wait(60) == 2
    (line,) = (tmp_path / "log").read_text().splitlines()[-1:]
    assert "with the 300 files of this log needs" in line
    assert f"ulimit -n {descriptors_needed(300)}" in line


@pytest.mark.slow
@pytest.mark.parametrize("server", ["up", "page", "exporter"])
def test_a_server_waits_for_descriptors_and_serves_again(
    server: str, limited: Limited, tmp_path: Path
) -> None:
    process = limited(SERVERS[server], NEEDED)
    url = next(iter(addresses(process).values()))
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    if url.startswith("http"):
        # It has opened all that it needs, once it answers.
        with socket.create_connection((host, int(port))) as first:
            first.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert first.recv(1)
    before = processor_s(process)
    highest = max(map(int, os.listdir(f"/proc/{process.pid}/fd")))
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (highest + 1, NEEDED))

    def wait_until_logged(text: str) -> None:
        while text not in log.read_text():
            assert process.poll() is None
            select.select([], [], [], 0.05)

    log = tmp_path / "log"
    waiting = [socket.create_connection((host, int(port))) for _ in range(9)]
    wait_until_logged("no connection is accepted")
    # Six more attempts.
    select.select([], [], [], 3)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (NEEDED, NEEDED))
    wait_until_logged("are accepted again")
    spent = processor_s(process) - before
    for each in waiting:
        each.close()
    with closing(socket.create_connection((host, int(port)), timeout=20)) as asked:
        asked.sendall(b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = asked.recv(1)

    assert answer
    assert log.read_text().count("no connection is accepted") == 1
    assert spent < 2


def processor_s(process: subprocess.Popen[str]) -> float:
    """Return the processor seconds that a process has spent."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_lowest_limit_leaves_half_to_peers() -> None:
    assert NEEDED == 256
    assert peer_descriptors_max(NEEDED) == NEEDED // 2
    assert [descriptors_needed(files) for files in (1_000, 60_000)] == [2_624, 61_632]
