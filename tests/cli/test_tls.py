"""Servers and clients over TLS, as processes and as users use them."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certificates import Certificates
from sparrowmq import (
    Admin,
    AsyncAdmin,
    AsyncProducer,
    Message,
    MessageExt,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.calling.tls import client_context
from sparrowmq.errors import ConnectFailed, SparrowError
from sparrowmq.testing import EmbeddedCluster, read_messages
from waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trusting(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca.path))


@pytest.fixture(scope="module")
def cluster(
    certificates: Certificates, trusting: ssl.SSLContext, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedCluster]:
    options = (
        *("--tls-cert", str(certificates.server.path)),
        *("--tls-key", str(certificates.server.key)),
    )
    with EmbeddedCluster(tmp_path_factory.mktemp("tls"), options=options, tls=trusting) as cluster:
        cluster.create_topic("T_tls", queues=4)
        yield cluster


@pytest.mark.parametrize(
    ("mode", "serves_tls", "serves_plain"),
    [("enforcing", True, False), ("permissive", True, True), ("disabled", False, True)],
)
def test_a_mode_says_which_peers_are_served(
    certificates: Certificates,
    trusting: ssl.SSLContext,
    *,
    mode: str,
    serves_tls: bool,
    serves_plain: bool,
) -> None:
    options = (
        *("--tls-cert", str(certificates.server.path)),
        *("--tls-key", str(certificates.server.key), "--tls-mode", mode),
    )
    served = []
    with EmbeddedCluster(options=options) as cluster:
        for tls in (trusting, None):
            with Admin(name_server=cluster.name_server, tls=tls) as admin:
                try:
                    admin.create_topic("T", 1)
                except SparrowError:
                    served.append(False)
                else:
                    served.append(True)

    assert served == [serves_tls, serves_plain]


def test_messages_pass_by_every_client(cluster: EmbeddedCluster, trusting: ssl.SSLContext) -> None:
    bodies = [b"%d" % number for number in range(200)] + [bytes(1024 * 1024)]
    settings: dict[str, Any] = {"name_server": cluster.name_server, "tls": trusting}
    consumed: list[bytes] = []
    lock = threading.Lock()

    def take(messages: list[MessageExt], _context: Any) -> None:
        with lock:
            consumed.extend(message.body for message in messages)

    with Producer("GID_p", send_timeout_ms=20_000, **settings) as producer:
        for body in bodies:
            producer.send(Message("T_tls", body))
    with PushConsumer("GID_c", "T_tls", listener=take, start="first", **settings):
        wait_until("all consumed", lambda: len(consumed) >= len(bodies))
    with PollConsumer("GID_l", "T_tls", start="first", **settings) as poller:
        polled = [message.body for message in take_messages(poller, len(bodies))]
    with Admin(**settings) as admin:
        lag = [queue.lag for queue in admin.group_lag("GID_c", "T_tls")]

    assert sorted(bodies) == sorted(consumed)
    assert sorted(bodies) == sorted(polled)
    assert lag == [0, 0, 0, 0]


def take_messages(poller: PollConsumer, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []

    def has_all() -> bool:
        found.extend(poller.poll())
        return len(found) >= count

    wait_until("all polled", has_all)
    return found


async def test_asyncio_face_speaks_it_too(
    cluster: EmbeddedCluster, trusting: ssl.SSLContext
) -> None:
    # A topic of its own: another test counts the messages of T_tls.
    cluster.create_topic("T_asyncio", queues=4)
    async with AsyncProducer("GID_a", name_server=cluster.name_server, tls=trusting) as producer:
        sent = await asyncio.gather(
            *(producer.send(Message("T_asyncio", b"a%d" % number)) for number in range(100))
        )
    async with AsyncAdmin(name_server=cluster.name_server, tls=trusting) as admin:
        route = await admin.route("T_asyncio")

    assert len({(result.queue, result.queue_offset) for result in sent}) == 100
    assert len(route.brokers) == 1


def test_client_without_tls_is_refused_and_told(cluster: EmbeddedCluster) -> None:
    with (
        Admin(name_server=cluster.name_server) as admin,
        pytest.raises(SparrowError, match="may want TLS"),
    ):
        admin.route("T_tls")

    wait_until("line in the log", lambda: "does not speak TLS" in cluster.log_path.read_text())


def test_client_that_trusts_another_authority_is_told(
    cluster: EmbeddedCluster, certificates: Certificates
) -> None:
    other = client_context(ca_file=certificates.other_ca.path)
    with (
        Producer("GID_p", name_server=cluster.name_server, tls=other) as producer,
        pytest.raises(ConnectFailed, match="certificate is not trusted"),
    ):
        producer.send(Message("T_tls", b"x"))


def test_versions_before_1_2_are_refused(cluster: EmbeddedCluster) -> None:
    host, port = cluster.name_server.split(":")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1

    with (
        socket.create_connection((host, int(port)), timeout=20) as sock,
        pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
    ):
        old.wrap_socket(sock)


def test_command_line_connects_by_tls(
    cluster: EmbeddedCluster, certificates: Certificates, trusting: ssl.SSLContext
) -> None:
    listener = lambda messages, context: None  # noqa: E731
    with PushConsumer(
        "GID_cli", "T_tls", name_server=cluster.name_server, listener=listener, tls=trusting
    ) as consumer:
        wait_until("all queues owned", lambda: len(consumer.assignment()) == 4)
        command = [
            *(sys.executable, "-m", "sparrowmq", "rebalance", "show", "GID_cli"),
            *("--nameserver", cluster.name_server, "--tls-ca", str(certificates.ca.path)),
            *("--interval", "0", "--json"),
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 0, result.stderr
    assert consumer.client_id in json.dumps(json.loads(result.stdout))


def test_only_clients_with_a_certificate_pass_where_one_is_asked_for(
    certificates: Certificates, trusting: ssl.SSLContext
) -> None:
    options = (
        *("--tls-cert", str(certificates.server.path)),
        *("--tls-key", str(certificates.server.key)),
        *("--tls-client-ca", str(certificates.ca.path)),
    )
    mine = client_context(
        ca_file=certificates.ca.path,
        certificate_file=certificates.client.path,
        key_file=certificates.client.key,
    )
    with EmbeddedCluster(options=options, tls=mine) as cluster:
        cluster.create_topic("T_mutual", queues=1)
        with Producer("GID_p", name_server=cluster.name_server, tls=mine) as producer:
            assert producer.send(Message("T_mutual", b"x")).queue_offset == 0
        with (
            Admin(name_server=cluster.name_server, tls=trusting) as admin,
            pytest.raises(SparrowError, match="client certificate"),
        ):
            admin.route("T_mutual")


def test_a_tests_questions_go_by_tls(cluster: EmbeddedCluster, trusting: ssl.SSLContext) -> None:
    with Producer("GID_p", name_server=cluster.name_server, tls=trusting) as producer:
        producer.send(Message("T_tls", b"asked", tags="asked"))

    found = read_messages(cluster.name_server, "T_tls", 1, tls=trusting)

    assert b"asked" in [message.body for message in found]


def test_broker_registers_by_tls_at_a_name_server_of_its_own(
    certificates: Certificates, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    tls = (
        *("--tls-cert", str(certificates.server.path)),
        *("--tls-key", str(certificates.server.key), "--stop-with-stdin"),
    )

    def start(*options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "sparrowmq", *options, *tls],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def address_of(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().partition("=")[2].strip()

    processes = [start("nameserver", "--port", "0", "--data", str(tmp_path / "n"))]
    try:
        name_server = address_of(processes[0])
        options = ("--nameserver", name_server, "--tls-ca", str(certificates.ca.path))
        processes.append(start("broker", "--port", "0", "--data", str(tmp_path / "b"), *options))
        broker = address_of(processes[1])
        with Admin(name_server=name_server, tls=trusting) as admin:
            route = admin.route("TBW102")
    finally:
        for process in reversed(processes):
            process.communicate(timeout=60)

    assert broker in str(route)


def test_key_without_a_certificate_is_refused(certificates: Certificates) -> None:
    command = [
        *(sys.executable, "-m", "sparrowmq", "up"),
        *("--tls-key", str(certificates.server.key)),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 2
    assert "need --tls-cert" in result.stderr
