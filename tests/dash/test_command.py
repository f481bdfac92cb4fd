"""`sparrowmq dash` and `sparrowmq up --dashboard` as processes."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Start, starting
from sparrowmq.dash.page_protocol import CONNECTIONS_MAX
from sparrowmq.testing import EmbeddedCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def start() -> Iterator[Start]:
    with starting() as start:
        yield start


def find_line(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Return the match of the first line of stderr that has the pattern."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(pattern, line):
            return found
    pytest.fail(f"no {pattern} in {said}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_dash_prints_where_it_is_and_its_passwords_once_and_ends_cleanly(
    start: Start, cluster: EmbeddedCluster, tmp_path: Path, number: signal.Signals
) -> None:
    at = ("--nameserver", cluster.name_server, "--data", str(tmp_path), "--port", "0")
    process = start("dash", *at, "--allow-writes")
    assert process.stdout is not None
    ready = re.fullmatch(r"ready dash=(http://127\.0\.0\.1:\d+/)\n", process.stdout.readline())
    assert ready is not None
    password = find_line(process, r"password of the live page: ([a-z0-9-]{19})$")[1]
    assert find_line(process, r"password to read only: ([a-z0-9-]{19})$")[1] != password

    host, port = urllib.parse.urlsplit(ready[1]).netloc.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS_MAX + 50)]
    with urllib.request.urlopen(f"{ready[1]}login", timeout=20) as answer:
        page = answer.read().decode()
    # Each is closed, by a later one or in time.
    for each in silent:
        each.settimeout(30)
        assert each.recv(1) == b""
        each.close()
    form = urllib.parse.urlencode({"password": password, "next": "/events"}).encode()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    # A page that is open ends with the server, and is not an error.
    with browser.open(f"{ready[1]}login", data=form, timeout=20) as stream:
        assert stream.readline() == b"retry: 1000\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)

    assert 'type="password"' in page
    assert password not in page
    assert (process.returncode, out) == (0, "")
    assert err == ""
    assert (tmp_path / "dash.sqlite").is_file()


def test_up_serves_the_page_too_and_takes_it_along(start: Start, tmp_path: Path) -> None:
    free = ("--nameserver-port", "0", "--broker-port", "0", "--dashboard-port", "0")
    process = start("up", *free, "--dashboard", "--data", str(tmp_path))
    place = find_line(process, r"^ready dash=(\S+)")[1]

    with urllib.request.urlopen(f"{place}login", timeout=20) as answer:
        assert answer.status == 200
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert out.count("ready ") == 1
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{place}login", timeout=20)


@pytest.mark.parametrize(
    ("option", "server"), [("dashboard", "live page"), ("metrics", "metrics page")]
)
def test_up_starts_nothing_if_the_port_of_a_page_is_in_use(
    start: Start, tmp_path: Path, option: str, server: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        pages = ("--dashboard",) if option == "dashboard" else ()
        free = ("--nameserver-port", "0", "--broker-port", "0", f"--{option}-port", str(port))
        process = start("up", *free, *pages, "--data", str(tmp_path / "data"))
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith(f"sparrowmq: the {server} cannot listen on 127.0.0.1:{port}: ")
    assert f"--{option}-port" in line
    assert not (tmp_path / "data").exists()


def test_a_cluster_is_named_by_each_address_given(
    start: Start, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    here = cluster.name_server
    at = ("--nameserver", here, "--nameserver", "127.0.0.1:1")
    process = start("dash", *at, "--data", str(tmp_path), "--port", "0")
    assert process.stdout is not None
    place = process.stdout.readline().removeprefix("ready dash=").strip()
    password = find_line(process, r"password of the live page: ([a-z0-9-]{19})$")[1]

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    form = urllib.parse.urlencode({"password": password, "next": "/"}).encode()
    with browser.open(f"{place}login", data=form, timeout=20) as answer:
        front = answer.read().decode()
    with browser.open(f"{place}clusters/{here}/topics", timeout=20) as answer:
        assert answer.status == 200

    for address in (here, "127.0.0.1:1"):
        assert f'<a href="/clusters/{address}/">{address}</a>' in front


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--host", "0.0.0.0"), 2, "the password would pass in the open"),
        (("--host", "no.such.host.invalid"), 2, "is not an address of this machine"),
        (("--host", "two..dots"), 2, "is not an address of this machine"),
        (
            ("--allow-host", "https://dash"),
            2,
            "--allow-host 'https://dash' is not a name of a host",
        ),
        (("--tls-key", "page.key"), 2, "--tls-key needs --tls-cert"),
        (("--tls-cert", "missing.pem"), 2, "missing.pem"),
        (("--nameserver", "nonsense"), 2, "nonsense"),
        (("-n", "a:1", "-n", "b:1", "-c", "a", "-c", "b"), 2, "repeat --nameserver or --context"),
        (("--data", "/dev/null/x"), 2, "choose another --data"),
    ],
)
def test_a_wrong_option_is_one_line(
    start: Start, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    data = () if "--data" in arguments else ("--data", str(tmp_path))
    process = start("dash", "--port", "0", *data, *arguments)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (code, "")
    (line,) = err.splitlines()
    assert line.startswith("sparrowmq: ")
    assert words in line


def test_a_port_in_use_is_one_line(start: Start, tmp_path: Path) -> None:
    first = start("dash", "--port", "0", "--data", str(tmp_path))
    assert first.stdout is not None
    port = first.stdout.readline().rpartition(":")[2].strip("/\n")

    second = start("dash", "--port", port, "--data", str(tmp_path))
    _, err = second.communicate(timeout=60)

    assert second.returncode == 1
    assert err.startswith(f"sparrowmq: the live page cannot listen on 127.0.0.1:{port}: ")
    assert "choose another port by --port " in err
