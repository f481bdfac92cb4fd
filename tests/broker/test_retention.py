"""Messages expire: what the broker removes, and what its clients are told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sparrowmq import Message, PollConsumer, Producer
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.server import BrokerServer
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.doctor import diagnose
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.record import Record
from sparrowmq.serving.connections import Fact
from sparrowmq.store import MessageStore, StoreConfig
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.retention import RetentionConfig
from sparrowmq.testing import EmbeddedCluster, read_messages
from waiting import wait_until

HOUR_MS = 3_600_000
# It is not made smaller by the producer.
BODY = Random(0).randbytes(50_000)


def test_messages_expire_and_pulls_are_sent_on(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(retention=_by_age(disk_expire_percent=0))
    rig.create_topic("T", 4)
    peer = rig.connect()
    for _ in range(60):
        rig.send(peer, body=BODY)
    rig.timestamp_ms += 72 * HOUR_MS + 1
    rig.send(peer, body=BODY)
    rig.send(peer, topic="S", body=b"quiet")

    said = rig.advance(30_000)

    low, high = rig.store.queues.min_offset("T", 0), rig.store.queues.max_offset("T", 0)
    assert (low, high) == (40, 61)
    assert [fact.text.rpartition(": ")[2] for fact in said if isinstance(fact, Fact)] == [
        "they are older than 72 h"
    ]
    (reply,) = rig.replies(rig.pull(peer, queueOffset="3"))
    assert (reply.code, reply.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
    assert {"nextBeginOffset": "40", "minOffset": "40", "maxOffset": "61"}.items() <= (
        reply.ext_fields.items()
    )
    (reply,) = rig.replies(rig.pull(peer, queueOffset="40"))
    assert reply.code == 0
    (fields,) = [
        rig.call(peer, RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": "0"}).ext_fields
    ]
    assert fields["offset"] == "40"


def test_expired_messages_are_in_flight_no_more_and_the_group_goes_on_behind_them(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(retention=_by_age(disk_expire_percent=0))
    rig.create_topic("T", 1)
    peer = rig.connect()
    for _ in range(60):
        rig.send(peer, body=BODY)
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
    }
    popped = [rig.call(peer, RequestCode.POP_MESSAGE, fields) for _ in range(3)]
    assert {reply.code for reply in popped} == {0}
    count = len(rig.broker.state.pops)

    # The group pops no more.
    rig.timestamp_ms += 72 * HOUR_MS + 1
    rig.send(peer, body=BODY)
    rig.advance(60_000)

    assert 40 < count <= 60
    assert rig.store.queues.min_offset("T", 0) == 40
    assert len(rig.broker.state.pops) == count - 40
    assert rig.broker.state.offsets.find("G", "T", 0) == 40


# A check removes ten files; 260 messages fill thirteen.
@pytest.mark.parametrize(("count", "expired"), [(60, 40), (260, 240)])
def test_operators_have_expired_messages_removed_at_any_hour(
    make_rig: Callable[..., Any], count: int, expired: int
) -> None:
    rig = make_rig(retention=_by_age(disk_expire_percent=100, delete_when=_another_hour()))
    rig.create_topic("T", 4)
    peer = rig.connect()
    for _ in range(count):
        rig.send(peer, body=BODY)
    rig.timestamp_ms += 72 * HOUR_MS + 1
    rig.send(peer, body=BODY)
    rig.advance(30_000)
    before = rig.store.queues.min_offset("T", 0)

    reply = rig.call(peer, RequestCode.DELETE_EXPIRED_COMMITLOG)
    rig.advance(1_000)

    assert (reply.code, before, rig.store.queues.min_offset("T", 0)) == (0, 0, expired)


def _by_age(**settings: Any) -> RetentionConfig:
    """Return settings by which messages expire by their age, however full the machine's disk is."""
    return RetentionConfig(disk_force_percent=100, disk_full_percent=100, **settings)


def _another_hour() -> str:
    hour = datetime.fromtimestamp(1_700_000_000).hour
    return f"{(hour + 12) % 24:02d}"


@pytest.mark.parametrize(
    "code", [RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC]
)
def test_operators_have_empty_queues_of_deleted_topics_removed(
    make_rig: Callable[..., Any], code: int
) -> None:
    rig = make_rig(retention=_by_age(disk_expire_percent=0))
    for topic in ("gone", "full", "T"):
        rig.create_topic(topic, 4)
    peer = rig.connect()
    rig.send(peer, topic="gone", body=BODY)
    for _ in range(30):
        rig.send(peer, topic="T", body=BODY)
    rig.timestamp_ms += 72 * HOUR_MS + 1
    for _ in range(30):
        rig.send(peer, topic="T", body=BODY)
    rig.send(peer, topic="full", body=b"kept")
    rig.advance(30_000)
    assert list(rig.store.queues) == [("T", 0), ("full", 0), ("gone", 0)]
    rig.holds_work = True
    for topic in ("gone", "full"):
        fields = {"topic": topic}
        rig.handle(
            peer, RemotingCommand(code=RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields=fields)
        )

    # After a crash the topic is there again, since the disk has nothing of its deletion.
    assert rig.call(peer, code).code == 0
    rig.host.tick()
    assert ("gone", 0) in list(rig.store.queues)

    rig.holds_work = False
    rig.advance(1_000)
    assert rig.call(peer, code).code == 0
    rig.advance(1_000)

    assert list(rig.store.queues) == [("T", 0), ("full", 0)]


def test_no_message_is_taken_on_a_full_disk(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(retention=RetentionConfig(retention_hours=0, disk_full_percent=0))
    rig.create_topic("T", 4)
    rig.advance(100)

    reply = rig.send(rig.connect())

    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "% full, and 0 % are allowed" in reply.remark


async def test_a_store_from_before_says_that_it_keeps_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MessageStore(FileStorage(tmp_path), StoreConfig())
    store.load(timestamp_ms=1)
    store.put(Record(topic="T", queue_id=0, body=b"abc"), timestamp_ms=1)
    store.close()
    counts = []
    for hours in (None, 72, None):
        caplog.clear()
        config = BrokerConfig(
            address="127.0.0.1:10911", retention=RetentionConfig(retention_hours=hours)
        )
        await BrokerServer(tmp_path, config).stop()
        counts.append(
            len([r for r in caplog.records if "--retention-hours says" in r.getMessage()])
        )
        if hours is not None:
            (tmp_path / "expiring").unlink()

    assert counts == [0, 0, 1]


@pytest.mark.slow
def test_a_consumer_that_comes_late_goes_on_at_what_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = ("--log-file-mib", "1", "--disk-force-percent", "0")
    with EmbeddedCluster(options=options) as cluster:
        cluster.create_topic("T", 1)
        with Producer("GID_p", name_server=cluster.name_server) as producer:
            producer.send(Message("T", b"0 " + BODY))
            assert _read_to(0, cluster.name_server) == [0]
            for number in range(1, 90):
                producer.send(Message("T", b"%d " % number + BODY))
        log_directory = cluster.data_dir / "store" / "commitlog"
        wait_until("one file is left", lambda: len(list(log_directory.iterdir())) == 1)
        with BlockingDriver() as driver:
            directory = make_directory(cluster.name_server, timeout_ms=10_000)
            findings = diagnose(driver.run(take_snapshot(directory, "GID_c")))

        with caplog.at_level(logging.WARNING, "sparrowmq.client"):
            got = _read_to(89, cluster.name_server)
        read = read_messages(cluster.name_server, "T")

    assert list(range(got[0], 90)) == got == [message.queue_offset for message in read]
    assert 60 < got[0] < 90
    (lost,) = [finding for finding in findings if finding.rule == "Q22"]
    assert lost.evidence == (f"T at broker-a: 0: {got[0] - 1} messages from offset 1 on",)
    expected = f"has no offset 1 any more, because its messages expired; continuing at {got[0]}"
    assert expected in caplog.text


def _read_to(last: int, name_server: str) -> list[int]:
    got: list[int] = []
    with PollConsumer("GID_c", "T", name_server=name_server, start="first") as consumer:
        wait_until("all is read", lambda: _read(consumer, got)[-1:] == [last])
    return got


def _read(consumer: PollConsumer, got: list[int]) -> list[int]:
    for message in consumer.poll(timeout_ms=500):
        assert message.body == b"%d " % message.queue_offset + BODY
        got.append(message.queue_offset)
    return got
