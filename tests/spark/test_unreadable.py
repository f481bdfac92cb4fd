"""What becomes of messages whose bodies cannot be read, from brokers and from files."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from poison import send_stored
from sparrowmq import (
    Admin,
    CompressionType,
    Message,
    MessageQueue,
    PollConsumer,
    Producer,
    SimpleConsumer,
)
from sparrowmq.errors import RemoteProtocolError, UnreadableMessage
from sparrowmq.model.message import INFLATED_BYTES_MAX
from sparrowmq.protocol.compression import COMPRESSED, compress_body
from sparrowmq.protocol.record import Record, encode_record
from sparrowmq.spark.batch_reader import RocketMQReader
from sparrowmq.spark.failures import RocketMQError
from sparrowmq.spark.options import parse_options, starting_at
from sparrowmq.spark.planning import QueueRange
from sparrowmq.spark.range_reader import read_ranges
from sparrowmq.spark.store_reader import StoreReader
from sparrowmq.spark.topic_queues import Cluster, disconnect
from sparrowmq.testing import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .conftest import FakeCluster
else:
    FakeCluster = SparkSession = Any

GARBAGE = b"no zlib stream"
START = {"T": {"broker-a": {"0": 0}}}
QUEUE = MessageQueue("T", "broker-a", 0)


def put(fake: FakeCluster, body: bytes, sys_flag: int = COMPRESSED) -> None:
    """Add a message whose body is stored as it is given."""
    queue = fake.topics["T"]["broker-a", 0]
    record = Record(
        topic="T",
        queue_id=0,
        body=body,
        sys_flag=sys_flag,
        properties="UNIQ_KEY\x01POISON",
        queue_offset=queue.max_offset,
    )
    queue.records.append(bytes(encode_record(record)))


@pytest.fixture
def poisoned(fake_cluster: FakeCluster) -> FakeCluster:
    """A queue of ten messages of which that at offset 7 cannot be read."""
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 7)
    put(fake_cluster, GARBAGE)
    fake_cluster.append("T", 0, 2)
    return fake_cluster


def read(name_server: str, count: int, **given: str) -> list[tuple[Any, ...]]:
    """Return offset and body of the messages read of the queue."""
    options = parse_options(
        {"nameServer": name_server, "topic": "T", "columns": "queueOffset,body", **given},
        scope="batch",
    )
    cluster = Cluster((name_server,), request_timeout_ms=5_000)
    try:
        batches = read_ranges(cluster, options, [(QueueRange(QUEUE, 0, count), 0)])
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    finally:
        cluster.driver.close()


def test_a_read_stops_and_names_message_queue_offset_and_cure(poisoned: FakeCluster) -> None:
    with pytest.raises(UnreadableMessage) as caught:
        read(poisoned.address, 10)

    text = str(caught.value)
    assert "message POISON at offset 7 of queue T/broker-a/0 cannot be read: its body is no" in text
    assert '.option("unreadablePolicy", "skip") leaves such messages out' in text


def test_messages_that_are_skipped_are_counted_in_one_warning(
    poisoned: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sparrowmq.spark")
    put(poisoned, b"x", COMPRESSED | 0x500)
    # Each answer holds few messages.
    poisoned.pulls_max = 3

    rows = read(poisoned.address, 11, unreadablePolicy="skip")

    assert [offset for offset, _ in rows] == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    (line,) = caplog.records
    assert "2 messages of queue T/broker-a/0 were skipped" in line.getMessage()
    assert "the first: message POISON at offset 7" in line.getMessage()


def test_bodies_that_are_not_read_need_not_be_readable(poisoned: FakeCluster) -> None:
    rows = read(poisoned.address, 10, columns="queueOffset")

    assert [(n,) for n in range(10)] == rows


@pytest.mark.slow
def test_a_bomb_is_named(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=1)
    put(
        fake_cluster,
        *compress_body(bytes(INFLATED_BYTES_MAX + 1), CompressionType.ZLIB, level=9),
    )

    with pytest.raises(UnreadableMessage, match=r"offset 0 of .* inflates beyond 16777216 bytes"):
        read(fake_cluster.address, 1)


@pytest.mark.parametrize(
    ("kind", "module"), [(CompressionType.LZ4, "lz4.frame"), (CompressionType.ZSTD, "zstandard")]
)
def test_other_compression_is_read_where_its_package_is_there(
    fake_cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    kind: CompressionType,
    module: str,
) -> None:
    fake_cluster.create_topic("T", queues=1)
    put(fake_cluster, *compress_body(b"body", kind, level=1))

    assert read(fake_cluster.address, 1) == [(0, b"body")]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnreadableMessage, match=r"pip install '\.\[compression\]' in a"):
        read(fake_cluster.address, 1)


def test_a_damaged_record_names_queue_and_offset_and_is_never_skipped(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 3)
    records = fake_cluster.topics["T"]["broker-a", 0].records
    # The body's size.
    records[2] = records[2][:84] + b"\x7f\xff\xff\xff" + records[2][88:]

    with pytest.raises(RemoteProtocolError) as caught:
        read(fake_cluster.address, 3, unreadablePolicy="skip")

    assert "damaged records of queue 0 of 'T'" in str(caught.value)
    assert "the record of queue offset 2 is damaged" in str(caught.value)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    """A queue of three messages of which that at offset 1 cannot be read."""
    with EmbeddedCluster(tmp_path / "data") as found:
        found.create_topic("T", queues=1)
        with Producer("GID_unreadable", name_server=found.name_server) as producer:
            producer.send(Message("T", b"0"))
            send_stored(found.broker, QUEUE, GARBAGE, msg_id="POISON")
            producer.send(Message("T", b"2"))
        yield found


@pytest.mark.slow
def test_the_broker_puts_the_message_among_the_dead_letters_of_the_group(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sparrowmq.spark")

    rows = read(cluster.name_server, 3, unreadablePolicy="dead-letter", group="GID_s")

    assert rows == [(0, b"0"), (2, b"2")]
    assert "1 messages of queue T/broker-a/0 went to the dead letters" in caplog.text
    dead_letters = MessageQueue("%DLQ%GID_s", "broker-a", 0)
    with Admin(name_server=cluster.name_server) as admin:
        assert admin.max_offset(dead_letters) == 1
    with (
        PollConsumer("GID_look", name_server=cluster.name_server) as looking,
        pytest.raises(UnreadableMessage, match="message POISON at offset 0 of %DLQ%GID_s"),
    ):
        looking.pull(dead_letters, 0)


@pytest.mark.slow
def test_dead_letters_go_into_the_namespace(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("ns%T", queues=1)
    send_stored(cluster.broker, QUEUE._replace(topic="ns%T"), GARBAGE, msg_id="POISON")
    given = {"nameServer": cluster.name_server, "topic": "T", "namespace": "ns", "group": "GID_s"}
    options = parse_options({**given, "unreadablePolicy": "dead-letter"}, scope="batch")
    reader = RocketMQReader(options)

    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    disconnect()

    assert sum(batch.num_rows for batch in batches) == 0
    assert "1 messages of queue T/broker-a/0 went to the dead letters" in caplog.text
    with Admin(name_server=cluster.name_server) as admin:
        assert admin.max_offset(MessageQueue("%DLQ%ns%GID_s", "broker-a", 0)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("start", ["earliest", "group"])
def test_a_group_by_message_gets_dead_letters_and_goes_on_popping(
    cluster: EmbeddedCluster, start: str
) -> None:
    given = {"unreadablePolicy": "dead-letter", "group": "GID_pops", "startingOffsets": start}
    with (
        Admin(name_server=cluster.name_server) as admin,
        SimpleConsumer("GID_pops", "T", name_server=cluster.name_server) as consumer,
    ):
        (first,) = consumer.receive(1, invisible=timedelta(hours=1))
        before = admin.group_lag("GID_pops", "T")

        rows = read(cluster.name_server, 3, **given)
        # A job fixes the start before its query begins.
        fixed = starting_at({"nameServer": cluster.name_server, "topic": "T", **given}, START)
        again = read(cluster.name_server, 3, **fixed)

        assert rows == again == [(0, b"0"), (2, b"2")]
        assert admin.max_offset(MessageQueue("%DLQ%GID_pops", "broker-a", 0)) == 2
        assert admin.group_lag("GID_pops", "T") == before
        consumer.ack(first)


@pytest.mark.slow
def test_files_are_read_by_the_same_policy(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    # A broker that runs writes the queues' last entries now and then; one that stops does.
    cluster.restart()
    store = cluster.log_path.parent / "store"

    def rows(**given: str) -> list[tuple[Any, ...]]:
        options = {"storePath": str(store), "topic": "T", "columns": "queueOffset,body", **given}
        reader = StoreReader(parse_options(options, scope="batch"))
        return [
            tuple(row.values())
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]

    assert rows(unreadablePolicy="skip") == [(0, b"0"), (2, b"2")]
    assert "1 messages of queue T/broker-a/0 were skipped for unreadablePolicy" in caplog.text
    with pytest.raises(RocketMQError, match="message POISON at offset 1 of queue T/broker-a/0"):
        rows()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_users_of_spark_see_one_line_or_the_other_rows(
    spark: SparkSession, cluster: EmbeddedCluster
) -> None:
    frame = spark.read.format("rocketmq").options(nameServer=cluster.name_server, topic="T")

    skipped = frame.option("unreadablePolicy", "skip").load().collect()
    with pytest.raises(PySparkException) as caught:
        frame.option("unreadablePolicy", "stop").load().collect()

    assert [bytes(row["body"]) for row in skipped] == [b"0", b"2"]
    text = str(caught.value)
    assert "sparrowmq: message POISON at offset 1 of queue T/broker-a/0 cannot be read" in text
    assert "Traceback" not in text
