"""`sparrowmq metrics` and `sparrowmq up --metrics-port` as processes."""

from __future__ import annotations

import re
import signal
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Start, starting
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow

READY = r"ready metrics=(http://127\.0\.0\.1:\d+/metrics)\n"


@pytest.fixture
def start() -> Iterator[Start]:
    with starting() as start:
        yield start


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_exporter_says_where_it_is_and_ends_cleanly(
    start: Start, cluster: EmbeddedCluster, number: signal.Signals
) -> None:
    process = start("metrics", "--nameserver", cluster.name_server, "--port", "0")
    assert process.stdout is not None
    ready = re.fullmatch(READY, process.stdout.readline())
    assert ready is not None

    wait_until("a look", lambda: "sparrowmq_up 1.0" in scrape(ready[1]), timeout_s=30)
    host, port = urllib.parse.urlsplit(ready[1]).netloc.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(50)]
    assert "sparrowmq_up 1.0" in scrape(ready[1])
    for each in silent:
        each.close()
    process.send_signal(number)

    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_up_serves_metrics_too_and_takes_the_exporter_with_it(start: Start, tmp_path: Path) -> None:
    process = start(
        *("up", "--data", str(tmp_path), "--metrics-port", "0"),
        *("--nameserver-port", "0", "--broker-port", "0"),
    )
    assert process.stderr is not None
    url = next(found[1] for line in process.stderr if (found := re.fullmatch(READY, line)))

    wait_until("a look", lambda: "sparrowmq_broker_up{" in scrape(url), timeout_s=30)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode == 0
    with pytest.raises(OSError, match="refused"):
        scrape(url)


def test_wrong_settings_are_one_line(start: Start, cluster: EmbeddedCluster) -> None:
    at = ("--nameserver", cluster.name_server)
    port = cluster.broker.rpartition(":")[2]
    outcomes = {}
    given = (("--host", "0.0.0.0"), ("--host", "192.0.2.1"), ("--host", "here"), ("--port", port))
    for name, text in given:
        process = start("metrics", *at, name, text)
        _, said = process.communicate(timeout=60)
        outcomes[text] = (process.returncode, said)

    assert {said.count("\n") for _, said in outcomes.values()} == {1}
    assert [code for code, _ in outcomes.values()] == [2, 2, 2, 1]
    for host in ("0.0.0.0", "192.0.2.1"):
        assert "add --insecure if they may" in outcomes[host][1]
    assert "--host is 'here'" in outcomes["here"][1]
    assert "choose another port" in outcomes[port][1]
