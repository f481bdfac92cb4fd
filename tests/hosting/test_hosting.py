"""Servers as a process that needs no package beyond the client's."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sparrowmq import Admin
from sparrowmq.broker.config import BrokerConfig, DuplicateClientIdPolicy
from sparrowmq.client import identity
from sparrowmq.hosting import servers
from sparrowmq.hosting.__main__ import parse_settings
from sparrowmq.hosting.settings import HostSettings
from sparrowmq.store.config import FlushMode
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

# Of the extras; the fast event loop among them.
NOT_NEEDED = ("typer", "rich", "uvloop", "pyspark", "lz4", "zstandard")


def test_options_are_those_of_the_command() -> None:
    given = parse_settings(
        [
            *("--data", "here", "--flush", "async", "--broker-port", "0", "--salvage"),
            *("--no-auto-create-topics", "--duplicate-client-id", "reject", "--stop-with-stdin"),
        ]
    )

    assert given == HostSettings(
        data=Path("here"),
        broker_port=0,
        salvage=True,
        broker=BrokerConfig(
            flush=FlushMode.ASYNC,
            auto_create_topics=False,
            duplicate_client_id=DuplicateClientIdPolicy.REJECT,
        ),
        stop_with_stdin=True,
    )
    assert parse_settings([]) == HostSettings()


@pytest.mark.parametrize(
    "options", [["--flush", "later"], ["--broker-port", "x"], ["--brokers", "17"], ["--nothing"]]
)
def test_wrong_option_ends_with_code_2(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_settings(options)

    assert caught.value.code == 2
    assert options[0].strip("-") in capsys.readouterr().err


@pytest.mark.slow
def test_embedded_cluster_needs_none_of_the_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NOT_NEEDED:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with EmbeddedCluster() as cluster, Admin(name_server=cluster.name_server) as admin:
        cluster.create_topic("T", queues=2)
        queues = admin.route("T").subscribe_queues
    imported = subprocess.run(
        [sys.executable, "-c", "import sparrowmq.testing"], check=True, capture_output=True
    )

    assert len(queues) == 2
    assert imported.stderr == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "options", "words"),
    [
        ("0.0.0.0", "", "--host 0.0.0.0 can be reached from other machines"),
        ("0.0.0.0", "--tls-cert=cert", "--host 0.0.0.0 can be reached"),
        # Peers without TLS show no certificate.
        ("0.0.0.0", "--tls-client-ca=ca --tls-mode=permissive", "--host 0.0.0.0 can be reached"),
        ("two..dots", "", "--host 'two..dots' is not an address of this machine"),
        # Without a certificate nobody would be asked for one.
        ("127.0.0.1", "--tls-client-ca=ca", "--tls-key and --tls-client-ca need --tls-cert"),
    ],
)
def test_wrong_setting_is_one_line_and_code_2(
    host: str, options: str, words: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "sparrowmq.hosting", "--data", str(tmp_path), "--host", host]
    ended = subprocess.run(
        [*command, *options.split()], capture_output=True, text=True, check=False, timeout=60
    )

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"sparrowmq: {words}")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("named", "found", "advertised"),
    [
        ("10.0.0.7", "192.168.0.7", "10.0.0.7"),
        # Debian's hosts file.
        ("127.0.1.1", "192.168.0.7", "192.168.0.7"),
        (None, "192.168.0.7", "192.168.0.7"),
        # A machine without a network, and one that has only addresses of IPv6.
        ("127.0.1.1", "127.0.0.1", "127.0.1.1"),
        ("127.0.1.1", "[2001:db8::7]", "127.0.1.1"),
    ],
)
def test_servers_on_all_interfaces_advertise_an_address_that_others_reach(
    named: str | None, found: str, advertised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(_: str) -> str:
        if named is None:
            raise socket.gaierror("Name or service not known")
        return named

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    monkeypatch.setattr(identity, "find_local_address", lambda: found)

    assert servers._advertised("0.0.0.0", "") == advertised
    assert servers._advertised("127.0.0.1", "") == "127.0.0.1"


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_servers_serve_and_stop_cleanly_without_standard_streams(
    closed: str, tmp_path: Path
) -> None:
    ports = "--nameserver-port 0 --broker-port 0 --grpc-port -1"
    line = f'exec "$0" -m sparrowmq.hosting {ports} --data "$1" {closed}'
    with subprocess.Popen(["bash", "-c", line, sys.executable, str(tmp_path)]) as process:
        # The file is there once the broker has loaded its store; signals end the load itself.
        saved = tmp_path / "store" / "config" / "consumerOffset.json"
        wait_until("a start", lambda: saved.exists() or process.poll() is not None)
        process.terminate()

    assert process.returncode == 0
    assert (tmp_path / "store" / "stopped").exists()
