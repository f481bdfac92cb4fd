"""The readers as Spark calls them, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.spark import cluster
from sparrowmq.spark.batch_reader import RocketMQReader
from sparrowmq.spark.failures import DataLossError, RocketMQError
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.stream_reader import RocketMQStreamReader

if TYPE_CHECKING:
    from .conftest import FakeCluster
else:
    FakeCluster = Any

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # What a query may know from its last trigger, a test asks again.
    monkeypatch.setattr("sparrowmq.spark.stream_reader.BOUNDS_AGE_MS_MAX", 0)
    monkeypatch.setattr("sparrowmq.spark.stream_reader.ROUTE_AGE_MS_MAX", -1)
    yield
    cluster.disconnect()


def make_stream(fake: FakeCluster, **changes: str) -> RocketMQStreamReader:
    given = {
        "nameServer": fake.address,
        "topic": "T",
        "startingOffsets": "earliest",
        "columns": "queueId,queueOffset",
        "fetchRetries": "2",
        "retryIntervalMs": "1",
        **changes,
    }
    return RocketMQStreamReader(parse_options(given, scope="stream"))


def make_batch(fake: FakeCluster, **changes: str) -> RocketMQReader:
    given = {
        "nameServer": fake.address,
        "topic": "T",
        "columns": "queueId,queueOffset",
        "fetchRetries": "0",
        **changes,
    }
    given = {name: text for name, text in given.items() if text}
    return RocketMQReader(parse_options(given, scope="batch"))


def offsets_of(*numbers: int, topic: str = "T") -> dict[str, Any]:
    return {topic: {"broker-a": {str(queue): number for queue, number in enumerate(numbers)}}}


def rows_of(reader: Any, partitions: Any) -> list[tuple[int, int]]:
    return sorted(
        (row["queueId"], row["queueOffset"])
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    )


def test_a_stream_reads_what_came_since(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 3)
    stream = make_stream(fake_cluster)

    start = stream.initialOffset()
    first = stream.latestOffset(start, ALL)
    fake_cluster.append("T", 1, 2)
    second = stream.latestOffset(first, ALL)

    assert [offsets_of(0, 0), offsets_of(3, 0), offsets_of(3, 2)] == [start, first, second]
    assert second == stream.latestOffset(second, ALL)
    assert [(0, 0), (0, 1), (0, 2)] == rows_of(stream, stream.partitions(start, first))
    assert [(1, 0), (1, 1)] == rows_of(stream, stream.partitions(first, second))
    assert second == stream.reportLatestOffset()


def test_latest_begins_at_the_end(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 1, 4)

    assert offsets_of(0, 4) == make_stream(fake_cluster, startingOffsets="latest").initialOffset()


def test_the_limit_is_kept_and_shared_out(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 90)
    fake_cluster.append("T", 1, 10)
    stream = make_stream(fake_cluster, maxOffsetsPerTrigger="20")
    limit = stream.getDefaultReadLimit()

    assert ReadMaxRows(20) == limit
    assert offsets_of(17, 3) == stream.latestOffset(stream.initialOffset(), limit)


def test_available_now_freezes_its_end(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 5)
    stream = make_stream(fake_cluster)

    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    fake_cluster.append("T", 0, 5)
    fake_cluster.create_topic("T", queues=3)
    end = stream.latestOffset(start, ALL)

    assert offsets_of(5, 0) == end
    assert end == stream.latestOffset(end, ALL)


def test_a_new_queue_is_found_between_batches(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=1)
    stream = make_stream(fake_cluster)
    start = stream.initialOffset()

    fake_cluster.create_topic("T", queues=2)
    fake_cluster.append("T", 1, 2)
    end = stream.latestOffset(start, ALL)

    assert offsets_of(0, 2) == end
    assert [(1, 0), (1, 1)] == rows_of(stream, stream.partitions(start, end))


def test_a_replayed_batch_is_planned_by_a_reader_that_knows_nothing(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 9)
    stream = make_stream(fake_cluster)

    partitions = stream.partitions(offsets_of(2), offsets_of(5))

    assert [(0, 2), (0, 3), (0, 4)] == rows_of(stream, partitions)


def test_what_is_processed_is_committed_under_the_group(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 9)
    stream = make_stream(fake_cluster, group="G", commitOffsets="true")

    end = stream.latestOffset(stream.initialOffset(), ALL)
    first = dict(fake_cluster.committed)
    stream.latestOffset(end, ALL)

    assert {("G", "T", 0): 0, ("G", "T", 1): 0} == first
    assert {("G", "T", 0): 9, ("G", "T", 1): 0} == fake_cluster.committed


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("retention", "begins at 5 now; 2 messages are gone"),
        ("truncation", "the queue ends at 1 now"),
        ("queue", "T/broker-a/1: it is not there any more; offset 0 was to be read next"),
    ],
)
def test_lost_messages_stop_the_query_unless_the_user_says_otherwise(
    fake_cluster: FakeCluster, damage: str, words: str
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 9)
    strict, lenient = make_stream(fake_cluster), make_stream(fake_cluster, failOnDataLoss="false")
    strict.initialOffset()
    lenient.initialOffset()
    queue = fake_cluster.topics["T"]["broker-a", 0]
    if damage == "retention":
        queue.min_offset = 5
    elif damage == "truncation":
        del queue.records[1:]
    else:
        del fake_cluster.topics["T"]["broker-a", 1]

    with pytest.raises(DataLossError) as caught:
        strict.latestOffset(offsets_of(3, 0), ALL)
    end = lenient.latestOffset(offsets_of(3, 0), ALL)

    assert str(caught.value).startswith("sparrowmq: messages are lost: queue T/broker-a/")
    assert words in str(caught.value)
    assert end == lenient.latestOffset(end, ALL)


def test_a_deleted_topic_is_one_clear_error(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    stream = make_stream(fake_cluster)
    start = stream.initialOffset()
    del fake_cluster.topics["T"]

    with pytest.raises(RocketMQError) as caught:
        stream.latestOffset(start, ALL)

    assert "knows no broker with topic 'T'" in str(caught.value)


def test_a_query_goes_on_when_its_queues_come_back(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cluster.create_topic("T", queues=2)
    fake_cluster.append("T", 1, 3)
    stream = make_stream(fake_cluster)
    start = stream.initialOffset()
    queues = fake_cluster.topics["T"]
    routes_given = 0
    give_route = fake_cluster._route

    def restart(*args: Any) -> Any:
        nonlocal routes_given
        routes_given += 1
        fake_cluster.topics["T"] = (
            queues if routes_given > 1 else {("broker-a", 0): queues["broker-a", 0]}
        )
        return give_route(*args)

    monkeypatch.setattr(fake_cluster, "_route", restart)

    assert offsets_of(0, 3) == stream.latestOffset(start, ALL)


def test_a_batch_lies_between_its_offsets(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 9)
    fake_cluster.append("T", 1, 9)
    batch = make_batch(
        fake_cluster,
        startingOffsets='{"T": {"broker-a": {"0": 7, "1": -1}}}',
        endingOffsets='{"T": {"broker-a": {"0": 9}}}',
    )

    assert [(0, 7), (0, 8)] == rows_of(batch, batch.partitions())


def test_assigned_queues_alone_are_read(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 1)
    fake_cluster.append("T", 1, 1)
    options = {
        "nameServer": fake_cluster.address,
        "assign": '{"T": {"broker-a": [1]}}',
        "columns": "queueId,queueOffset",
    }
    batch = RocketMQReader(parse_options(options, scope="batch"))

    assert [(1, 0)] == rows_of(batch, batch.partitions())


def test_partition_numbers_count_queues_in_order(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=3)
    fake_cluster.append("T", 0, 1)
    fake_cluster.append("T", 2, 2)
    batch = make_batch(fake_cluster, profile="kafka", columns="")

    rows = [row for p in batch.partitions() for each in batch.read(p) for row in each.to_pylist()]

    assert [(0, 0), (2, 0), (2, 1)] == [(row["partition"], row["offset"]) for row in rows]
    assert [b"T-0-0", b"T-2-0", b"T-2-1"] == [row["key"] for row in rows]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topic": "nope"}, "knows no broker with topic 'nope'"),
        ({"nameServer": "127.0.0.1:1"}, "no name server answers at 127.0.0.1:1"),
        ({"startingOffsets": '{"T": {"broker-a": {"9": 1}}}'}, "name queue T/broker-a/9"),
        ({"startingOffsets": '{"T": {"broker-a": {"0": 99}}}'}, "the queue ends at 9 now"),
        (
            {"startingOffsets": "latest", "endingOffsets": '{"T": {"broker-a": {"0": 1}}}'},
            "startingOffsets 9 lies behind endingOffsets 1",
        ),
    ],
)
def test_a_wrong_batch_is_one_clear_error(
    fake_cluster: FakeCluster, changes: dict[str, str], words: str
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 9)

    with pytest.raises(RocketMQError) as caught:
        make_batch(fake_cluster, **changes).partitions()

    assert str(caught.value).startswith("sparrowmq: ")
    assert words in str(caught.value)


def test_no_permission_is_one_clear_error(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 9)
    batch = make_batch(fake_cluster)
    fake_cluster.answers = [(ResponseCode.NO_PERMISSION, 0)]
    (partition,) = batch.partitions()

    with pytest.raises(RocketMQError) as caught:
        list(batch.read(partition))

    assert str(caught.value).startswith("sparrowmq: answer code 16 from 127.0.0.1:")
