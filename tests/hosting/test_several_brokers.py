"""`--brokers N`: several brokers beside one name server, each in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from certificates import Certificates
from server_processes import Servers
from sparrowmq import Admin, Message, Producer
from waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Servers]]:
    started: list[Servers] = []

    def run(*options: str) -> Servers:
        started.append(Servers(tmp_path / "data", *options))
        return started[-1]

    yield run
    for each in started:
        each.close()


def send(servers: Servers, count: int, tls: ssl.SSLContext | None = None) -> set[str]:
    """Send messages; return the brokers that took some."""
    with Producer("GID_p", name_server=servers.name_server, tls=tls) as producer:
        sent = [producer.send(Message("T", b"%d" % n)) for n in range(count)]
    return {each.queue.broker_name for each in sent}


def stored(servers: Servers) -> int:
    with Admin(name_server=servers.name_server) as admin:
        status = admin.topic_status("T")
    return sum(each.max_offset - each.min_offset for each in status.queues)


def test_both_take_messages_and_keep_them_over_a_clean_stop(
    start: Callable[..., Servers],
) -> None:
    first = start()
    with Admin(name_server=first.name_server) as admin:
        admin.create_topic("T", 2)
    taken_by = send(first, 40)
    was_ready = first.is_ready()
    code = first.end()
    has_abort = [(first.data / name / "abort").exists() for name in ("store", "store-2")]
    second = start()
    kept = stored(second)

    assert len(set(first.brokers)) == 2
    assert taken_by == {"broker-a", "broker-a-2"}
    assert (was_ready, code, has_abort) == ((True, []), 0, [False, False])
    assert kept == 40
    assert " broker-a-2 INFO sparrowmq.broker: store " in first.log


def test_one_that_is_killed_comes_back_at_its_port_and_the_other_serves(
    start: Callable[..., Servers],
) -> None:
    servers = start()
    with Admin(name_server=servers.name_server) as admin:
        admin.create_topic("T", 2)
    send(servers, 20)
    wait_until("both hold their stores", lambda: len(servers.children()) == 2)
    killed = servers.children()["store-2"]
    os.kill(killed, signal.SIGKILL)
    wait_until("said", lambda: servers.is_ready() == (False, ["broker-a-2 does not run"]))
    taken_by = send(servers, 8)
    wait_until("started again", lambda: servers.is_ready()[0])

    assert "broker-a" in taken_by
    assert killed != servers.children()["store-2"]
    assert "broker-a-2 has ended with code -9; it is started again in 1 s" in servers.log
    wait_until("both are found", lambda: stored(servers) == 28)
    host, _, port = servers.brokers[1].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10):
        pass
    assert servers.end() == 0


def test_brokers_end_with_their_parent_however_it_ends(start: Callable[..., Servers]) -> None:
    servers = start()
    wait_until("both hold their stores", lambda: len(servers.children()) == 2)
    pids = servers.children().values()
    servers.end(signal.SIGKILL)

    for pid in pids:
        wait_until("ended", lambda each=pid: not Path(f"/proc/{each}").exists())  # type: ignore[misc]
    assert not (servers.data / "store-2" / "abort").exists()


def test_ctrl_c_stops_all_cleanly(start: Callable[..., Servers]) -> None:
    servers = start()

    assert servers.end(signal.SIGINT) == 0
    assert not (servers.data / "store-2" / "abort").exists()
    assert "has ended with code" not in servers.log


def test_with_certificates_and_accounts_brokers_register(
    start: Callable[..., Servers], certificates: Certificates, tmp_path: Path
) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n- accessKey: orders-service\n  secretKey: orders-secret\n  admin: true\n"
    )
    cert, key = certificates.server
    servers = start("--tls-cert", str(cert), "--tls-key", str(key), "--acl", str(accounts))
    trusting = ssl.create_default_context(cafile=str(certificates.ca.path))
    keys = {"access_key": "orders-service", "secret_key": "orders-secret"}
    with Admin(name_server=servers.name_server, tls=trusting, **keys) as admin:  # type: ignore[arg-type]
        brokers = {each.name for each in admin.overview().brokers}

    assert brokers == {"broker-a", "broker-a-2"}
    command = b"".join(
        Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        for pid in servers.children().values()
    )
    assert b"secret" not in command.lower()


def test_one_that_cannot_start_ends_all(start: Callable[..., Servers], tmp_path: Path) -> None:
    store = tmp_path / "data" / "store-2"
    store.mkdir(parents=True)
    (store / "consumequeue").write_text("no directory")
    (store / "commitlog").mkdir()
    (store / "commitlog" / "notes.txt").touch()
    servers = start()

    assert servers.process.wait(60) == 1
    assert "notes.txt is not a file of the store" in servers.log
    assert "sparrowmq: broker-a-2 did not start: exit code 1" in servers.log
    assert not (tmp_path / "data" / "store" / "abort").exists()


def test_fewer_brokers_say_whose_messages_nobody_serves(
    start: Callable[..., Servers], tmp_path: Path
) -> None:
    (tmp_path / "data" / "store-3").mkdir(parents=True)
    servers = start()

    assert f"{tmp_path}/data/store-3 has messages that no broker serves" in servers.log


def test_ports_must_be_there(start: Callable[..., Servers]) -> None:
    servers = start("--broker-port", "65530")

    assert servers.process.wait(60) == 2
    assert "leaves no port for broker-a-2, which would have 65540" in servers.log
