"""TLS with Apache RocketMQ on the other side: our clients on its servers, its clients on ours."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from certificates import Certificates
from sparrowmq import (
    Admin,
    AsyncProducer,
    Message,
    Producer,
    PushConsumer,
)
from sparrowmq.calling.tls import client_context
from sparrowmq.errors import ConnectFailed, SparrowError
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

COUNT = 200
Start = Callable[..., Any]


def properties(**settings: object) -> str:
    """JVM options, as JAVA_TOOL_OPTIONS has them."""
    return " ".join(f"-D{name.replace('_', '.')}={value}" for name, value in settings.items())


@pytest.fixture
def start_apache(
    java: Any, rig: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    started: list[Any] = []

    def start(tls: ssl.SSLContext | None = None, **settings: object) -> Any:
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", properties(**settings))
        started.append(rig.ApacheCluster(java, tmp_path / "apache" / "store"))
        started[-1].tls = tls
        started[-1].start()
        return started[-1]

    yield start
    for cluster in started:
        cluster.kill()


def produce_and_consume(name_server: str, tls: ssl.SSLContext) -> None:
    """Send by both faces, consume, and compare."""
    topic = "tls-all"
    got: list[bytes] = []
    settings: dict[str, Any] = {"name_server": name_server, "tls": tls}
    # The last is longer than a TLS record and than what a socket takes at once.
    bodies = [b"m-%d" % number for number in range(COUNT)] + [bytes(2 * 1024 * 1024)]

    async def send_more() -> None:
        async with AsyncProducer("GID_tls_p", **settings) as producer:
            await asyncio.gather(
                *(producer.send(Message(topic, b"a-%d" % number)) for number in range(COUNT))
            )

    with Admin(**settings) as admin:
        admin.create_topic(topic, 4)
    with Producer("GID_tls_p", send_timeout_ms=20_000, **settings) as producer:
        for body in bodies:
            producer.send(Message(topic, body))
    asyncio.run(send_more())
    with PushConsumer(
        "GID_tls",
        topic,
        listener=lambda messages, context: got.extend(message.body for message in messages),
        start="first",
        **settings,
    ):
        wait_until("all consumed", lambda: len(got) >= len(bodies) + COUNT, timeout_s=60)

    assert sorted([*bodies, *(b"a-%d" % number for number in range(COUNT))]) == sorted(got)


def test_our_clients_on_apaches_servers_with_a_certificate_of_their_own(
    start_apache: Start, certificates: Certificates
) -> None:
    trusting = client_context(ca_file=certificates.ca.path)
    cluster = start_apache(
        trusting,
        tls_enable="true",
        tls_server_mode="enforcing",
        tls_test_mode_enable="false",
        tls_server_certPath=certificates.server.path,
        tls_server_keyPath=certificates.server.key,
        tls_client_authServer="true",
        tls_client_trustCertPath=certificates.ca.path,
    )
    produce_and_consume(cluster.name_server, trusting)

    with (
        Admin(name_server=cluster.name_server) as plain,
        pytest.raises(SparrowError, match="may want TLS"),
    ):
        plain.route("tls-all")
    other = client_context(ca_file=certificates.other_ca.path)
    with (
        Admin(name_server=cluster.name_server, tls=other) as distrusting,
        pytest.raises(ConnectFailed, match="certificate is not trusted"),
    ):
        distrusting.route("tls-all")


def test_our_clients_on_apaches_servers_as_they_come(start_apache: Start) -> None:
    cluster = start_apache()
    unchecked = ssl.create_default_context()
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE

    produce_and_consume(cluster.name_server, unchecked)
    with Admin(name_server=cluster.name_server) as plain:
        assert plain.route("tls-all").brokers


def test_javas_clients_on_our_servers(
    java: Any,
    rig: ModuleType,
    certificates: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    java_producer: Callable[..., list[dict[str, Any]]],
    java_push_consumer: Start,
) -> None:
    options = (
        *("--tls-cert", str(certificates.server.path)),
        *("--tls-key", str(certificates.server.key)),
    )
    cluster = rig.OurCluster(java, tmp_path / "data", options=options)
    monkeypatch.setenv(
        "JAVA_TOOL_OPTIONS",
        properties(
            tls_enable="true",
            tls_test_mode_enable="false",
            tls_client_authServer="true",
            tls_client_trustCertPath=certificates.ca.path,
        ),
    )
    cluster.start()
    try:
        java.run_peer(
            "create-topic", nameServer=cluster.name_server, broker=cluster.broker, topic="tls-java"
        )
        consumer = java_push_consumer(cluster, topic="tls-java", group="GID_tls_java")
        sent = java_producer(cluster, topic="tls-java", count=COUNT)
        consumer.wait_for("messages", lambda: len(consumer.named("message")) >= COUNT)
        got = consumer.named("message")
        assert consumer.stop() == 0
    finally:
        cluster.stop()

    assert {event["status"] for event in sent} == {"SEND_OK"}
    assert sorted(f"m-{number}" for number in range(COUNT)) == sorted(
        event["body"] for event in got
    )
