"""Health and readiness over HTTP, and certificates that are renewed, of servers that run."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from certificates import Certificate, Certificates
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.server import BrokerServer
from sparrowmq.hosting.health import serve_health
from sparrowmq.serving.http_pages import CONNECTIONS_MAX
from sparrowmq.serving.remoting_server import bind
from waiting import wait_until

Ask = Callable[[str], tuple[int, dict[str, Any]]]


@asynccontextmanager
async def serving(
    healthy: list[str] | None = None, ready: list[str] | None = None
) -> AsyncGenerator[tuple[str, int]]:
    listening = bind("127.0.0.1", 0)
    address = listening.getsockname()[:2]
    async with serve_health(listening, health=lambda: healthy or [], ready=lambda: ready or []):
        yield address


async def talk(address: tuple[str, int], data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("line", "status", "body"),
    [
        (b"GET /health HTTP/1.1", 200, {"status": "ok"}),
        (b"GET /health?x=1 HTTP/1.0", 200, {"status": "ok"}),
        (b"GET /ready HTTP/1.1", 503, {"status": "failing", "reasons": ["disk full"]}),
        (b"HEAD /ready HTTP/1.1", 503, None),
        (b"GET / HTTP/1.1", 404, {"status": "failing", "reasons": ["Not Found"]}),
        (b"POST /health HTTP/1.1", 405, {"status": "failing", "reasons": ["Method Not Allowed"]}),
        (b"GET /health", 400, {"status": "failing", "reasons": ["Bad Request"]}),
        (b"\xff \xff \xff", 400, {"status": "failing", "reasons": ["Bad Request"]}),
    ],
)
async def test_answers(line: bytes, status: int, body: dict[str, Any] | None) -> None:
    async with serving(ready=["disk full"]) as address:
        answer = await talk(address, line + b"\r\nHost: x\r\n\r\n")

    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert body == (json.loads(content) if content else None)
    assert (b"Content-Length: %d" % len(content) in head) is (body is not None)


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["without end", "in one piece"])
async def test_a_request_that_is_too_large_is_refused(end: bytes) -> None:
    async with serving() as address:
        answer = await talk(address, b"GET /health HTTP/1.1\r\nX: " + b"x" * 9000 + end)

    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_probes_are_answered_whoever_is_silent() -> None:
    async with serving() as address:
        silent = [socket.create_connection(address) for _ in range(3 * CONNECTIONS_MAX)]
        for each in silent[::2]:
            # Half a head is silence too.
            each.sendall(b"GET /health HTTP/1.1\r\nX: ")
        probes = [await talk(address, b"GET /health HTTP/1.1\r\n\r\n") for _ in range(5)]
        for each in silent:
            each.close()

    assert [probe[:15] for probe in probes] == [b"HTTP/1.1 200 OK"] * 5


async def test_a_broker_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    server = BrokerServer(tmp_path, BrokerConfig(address="127.0.0.1:1"), name_servers=[NOBODY])
    listening = bind("127.0.0.1", 0)
    await server.start(listening)
    unfound = server.obstacles()
    server.broker.state.store.refusal = "the disk is full"
    full = server.obstacles()
    failures = server.failures()
    await server.stop()
    listening.close()

    assert unfound == ["no name server is reached"]
    assert full == ["the store takes no messages: the disk is full", "no name server is reached"]
    assert failures == []
    assert "the broker stops" in server.obstacles()


NOBODY = "127.0.0.1:1"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., dict[str, str]]]:
    processes: list[subprocess.Popen[bytes]] = []

    def run(*options: str) -> dict[str, str]:
        command = [sys.executable, "-m", "sparrowmq.hosting", "--stop-with-stdin"]
        ports = ("--nameserver-port", "0", "--broker-port", "0", "--health-port", "0")
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *ports, "--data", str(tmp_path / "data"), *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("ready "), (tmp_path / "log").read_text()
        return dict(re.findall(r"(\w+)=(\S+)", line))

    yield run
    for process in processes:
        process.communicate(timeout=60)


def ask(address: str, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.slow
def test_servers_that_run_are_healthy_and_ready(start: Callable[..., dict[str, str]]) -> None:
    address = start()["health"]

    assert ask(address, "/health") == (200, {"status": "ok"})
    assert ask(address, "/ready") == (200, {"status": "ok"})
    assert ask(address, "/")[0] == 404


def shown_certificate(address: str, certificates: Certificates) -> bytes:
    context = ssl.create_default_context(cafile=str(certificates.ca.path))
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        return connection.getpeercert(binary_form=True) or b""


def as_shown(certificate: Certificate) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.path.read_text())


@pytest.mark.slow
def test_a_renewed_certificate_is_shown_by_servers_that_run(
    start: Callable[..., dict[str, str]], certificates: Certificates, tmp_path: Path
) -> None:
    first, second = certificates.issue("first"), certificates.issue("second")
    used = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    used.path.write_bytes(first.path.read_bytes())
    used.key.write_bytes(first.key.read_bytes())
    servers = start("--tls-cert", str(used.path), "--tls-key", str(used.key))
    addresses = [servers["nameserver"], servers["broker"]]

    assert [as_shown(first)] * 2 == [shown_certificate(a, certificates) for a in addresses]
    # Of which the key does not fit yet.
    used.path.write_bytes(second.path.read_bytes())
    wait_until("said", lambda: b"stay as they were" in (tmp_path / "log").read_bytes())
    assert [as_shown(first)] * 2 == [shown_certificate(a, certificates) for a in addresses]
    used.key.write_bytes(second.key.read_bytes())
    for address in addresses:
        wait_until(
            "renewed",
            lambda a=address: as_shown(second) == shown_certificate(a, certificates),  # type: ignore[misc]
        )
    # The broker's connection to the name server was made with the first one; the next with the
    # second.
    assert ask(servers["health"], "/ready") == (200, {"status": "ok"})
