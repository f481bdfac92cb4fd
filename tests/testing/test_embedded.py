"""The embedded cluster, and what it proves: a killed broker loses nothing it has acknowledged."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from processor_time import children_s, python_start_s
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import Operation, invoke, join, spawn
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.record import decode_messages
from sparrowmq.testing import ClusterFailed, EmbeddedCluster, embedded

pytestmark = pytest.mark.slow


@pytest.fixture
def driver() -> Iterator[BlockingDriver]:
    driver = BlockingDriver()
    yield driver
    driver.close()


def request(code: int, ext_fields: dict[str, str], body: bytes | None = None) -> RemotingCommand:
    return RemotingCommand(code=code, ext_fields=ext_fields, body=body)


def send(topic: str, queue_id: int, body: bytes, properties: str = "") -> RemotingCommand:
    fields = {
        "a": "GID_p",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
    }
    return request(RequestCode.SEND_MESSAGE_V2, fields, body)


def pull(topic: str, queue_id: int) -> RemotingCommand:
    fields = {
        "consumerGroup": "GID_c",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": "0",
        "maxMsgNums": "2048",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    return request(RequestCode.PULL_MESSAGE, fields)


def commit(topic: str, offset: int) -> RemotingCommand:
    fields = {
        "consumerGroup": "GID_c",
        "topic": topic,
        "queueId": "0",
        "commitOffset": str(offset),
    }
    return request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def invoke_all(address: str, requests: list[RemotingCommand]) -> Operation[list[RemotingCommand]]:
    """Have many requests under way at once."""
    tasks = []
    for number, each in enumerate(requests):
        operation = invoke(address, each, timeout_ms=10_000)
        tasks.append((yield from spawn(operation, name=str(number))))
    replies = []
    for task in tasks:
        replies.append((yield from join(task)))
    return replies


def bodies(driver: BlockingDriver, address: str, topic: str, queue_id: int) -> list[bytes]:
    reply = driver.run(invoke(address, pull(topic, queue_id), timeout_ms=10_000))
    messages = decode_messages(reply.body or b"", broker_name="broker-a").messages
    return [message.body for message in messages]


def test_servers_that_never_serve_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr(embedded, "_START_TIMEOUT_S", 1.0)
    cluster = EmbeddedCluster(tmp_path)

    with pytest.raises(ClusterFailed, match="the servers did not start within 1 s"):
        cluster.start()

    with pytest.raises(UsageError, match="does not run"):
        _ = cluster.pid


def test_killed_broker_keeps_what_it_acknowledged(driver: BlockingDriver) -> None:
    with EmbeddedCluster() as cluster:
        cluster.create_topic("T", queues=2)
        broker = cluster.broker
        requests = [send("T", number % 2, b"%d" % number) for number in range(400)]
        replies = driver.run(invoke_all(broker, requests))
        auto = driver.run(invoke(broker, send("made-by-a-send", 3, b"x"), timeout_ms=10_000))

        cluster.kill()
        cluster.start()

        assert broker == cluster.broker
        assert {reply.code for reply in [*replies, auto]} == {0}
        assert [b"%d" % n for n in range(0, 400, 2)] == bodies(driver, broker, "T", 0)
        assert [b"%d" % n for n in range(1, 400, 2)] == bodies(driver, broker, "T", 1)
        assert bodies(driver, broker, "made-by-a-send", 3) == [b"x"]


def test_offsets_delays_topics_and_texts_survive_a_clean_stop(driver: BlockingDriver) -> None:
    query = request(
        RequestCode.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "GID_c", "topic": "read", "queueId": "0"},
    )
    text = {"namespace": "n", "key": "k", "value": "v"}
    with EmbeddedCluster(flush="async") as cluster:
        cluster.create_topic("T", queues=1)
        driver.run(invoke(cluster.broker, send("T", 0, b"late", "DELAY\x011"), timeout_ms=5_000))
        cluster.create_topic("read", queues=1)
        for _ in range(7):
            driver.run(invoke(cluster.broker, send("read", 0, b"x"), timeout_ms=5_000))
        driver.run(invoke(cluster.broker, commit("read", 7), timeout_ms=5_000))
        put = request(RequestCode.PUT_KV_CONFIG, text)
        driver.run(invoke(cluster.name_server, put, timeout_ms=5_000))

        cluster.restart()

        offset = driver.run(invoke(cluster.broker, query, timeout_ms=5_000))
        get = request(RequestCode.GET_KV_CONFIG, text)
        found = driver.run(invoke(cluster.name_server, get, timeout_ms=5_000))
        held = pull("T", 0)
        held.ext_fields = {
            **(held.ext_fields or {}),
            "sysFlag": "6",
            "suspendTimeoutMillis": "20000",
        }
        late = driver.run(invoke(cluster.broker, held, timeout_ms=25_000))
        assert offset.ext_fields == {"offset": "7"}
        assert found.ext_fields == {"value": "v"}
        assert b"late" in (late.body or b"")


def test_cluster_is_started_once_and_needs_to_run_to_have_a_process(tmp_path: Path) -> None:
    cluster = EmbeddedCluster(tmp_path)
    with pytest.raises(UsageError):
        _ = cluster.pid

    with cluster:
        with pytest.raises(UsageError):
            cluster.start()
        assert cluster.pid > 0

    cluster.stop()
    assert (tmp_path / "store").is_dir()
    assert "store" in cluster.log_path.read_text()


def test_cluster_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        EmbeddedCluster(tmp_path),
        pytest.raises(ClusterFailed, match="in use"),
        EmbeddedCluster(tmp_path),
    ):
        pytest.fail("the second cluster started")


class _Interrupted(selectors.DefaultSelector):
    """A wait that Ctrl-C ends."""

    def select(self, timeout: float | None = None) -> NoReturn:
        raise KeyboardInterrupt


def test_start_that_fails_or_is_interrupted_leaves_no_directory_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(ClusterFailed, match="broker_port is 99999"),
        EmbeddedCluster(options=("--broker-port", "99999")),
    ):
        pytest.fail("the cluster started")
    assert not list(tmp_path.iterdir())

    monkeypatch.setattr(selectors, "DefaultSelector", _Interrupted)
    cluster = EmbeddedCluster()
    with pytest.raises(KeyboardInterrupt), cluster:
        pytest.fail("the cluster started")

    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="does not run"):
        _ = cluster.pid


def test_cluster_that_starts_again_after_its_end_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cluster = EmbeddedCluster()
    for _ in range(2):
        with cluster:
            assert list(tmp_path.iterdir()) == [cluster.data_dir]
            assert cluster.data_dir.stat().st_mode & 0o077 == 0
        assert not list(tmp_path.iterdir())


def test_directory_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for data_dir in (tmp_path / "file", tmp_path / "file" / "below"):
        with (
            pytest.raises(ClusterFailed, match=rf"have their files in '{data_dir}': .*; give"),
            EmbeddedCluster(data_dir),
        ):
            pytest.fail("the cluster started")


def test_cluster_that_is_never_closed_leaves_no_directory_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = (
        "from sparrowmq.testing import EmbeddedCluster\n"
        "cluster = EmbeddedCluster(); cluster.start(); cluster.create_topic('T')\n"
        "print(cluster.pid)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)

    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)
    assert not list(tmp_path.iterdir())


def test_end_of_a_forked_process_leaves_the_directory_to_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = (
        "import os, sys\n"
        "from sparrowmq.testing.own_directory import OwnDirectory\n"
        "directory = OwnDirectory()\n"
        "if os.fork() == 0: sys.exit()\n"
        "os.wait()\n"
        "print(os.listdir(os.environ['TMPDIR']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)

    assert ended.stdout.startswith(b"['sparrowmq-")
    assert not list(tmp_path.iterdir())


def test_cluster_stays_on_its_directory_when_the_current_one_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: BlockingDriver
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with EmbeddedCluster("data") as cluster:
        driver.run(invoke(cluster.broker, send("T", 0, b"before"), timeout_ms=10_000))
        monkeypatch.chdir("elsewhere")
        cluster.restart()

        assert bodies(driver, cluster.broker, "T", 0) == [b"before"]


@pytest.mark.parametrize("options", [("--brokers", "2"), ("--brokers=2",)])
def test_cluster_of_several_brokers_is_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"--brokers.*has one broker"):
        EmbeddedCluster(options=options)


def test_options_that_are_not_texts_are_refused() -> None:
    wrong: list[Any] = ["--acl", ("--retention-hours", 1), (None,)]
    for options in wrong:
        with pytest.raises(ConfigError, match="it must be a tuple of texts"):
            EmbeddedCluster(options=options)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two sockets have one port")
def test_ports_of_servers_that_are_away_are_nobody_elses() -> None:
    def take(address: str) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", int(address.rpartition(":")[2])))

    with EmbeddedCluster(serves_grpc=True) as cluster:
        addresses = (cluster.name_server, cluster.broker, cluster.grpc)
        cluster.kill()

        # Nobody has connected to these two, so that no connection keeps their ports for a minute.
        for address in addresses[1:]:
            with pytest.raises(OSError, match="Address already in use"):
                take(address)
        cluster.start()

        assert (cluster.name_server, cluster.broker, cluster.grpc) == addresses
    for address in addresses[1:]:
        take(address)


def test_cluster_takes_a_port_for_health() -> None:
    with EmbeddedCluster(options=("--health-port", "0")) as cluster:
        assert cluster.broker
        assert cluster.name_server
        # Ctrl-C on the terminal of a test reaches the test alone.
        assert os.getsid(cluster.pid) == cluster.pid


def test_start_of_a_process_takes_little_of_the_processor() -> None:
    """Some four times what Python takes itself, most of it imports."""
    taken = [
        (children_s(lambda: EmbeddedCluster().__enter__().close()), python_start_s())
        for _ in range(3)
    ]
    assert min(whole / alone for whole, alone in taken) < 6
