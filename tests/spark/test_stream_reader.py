"""The readers as Spark calls them, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.spark import topic_queues
from sparrowmq.spark.batch_reader import RocketMQReader
from sparrowmq.spark.failures import DataLossError, RocketMQError
from sparrowmq.spark.lag import lag_of
from sparrowmq.spark.lag_listener import LagListener
from sparrowmq.spark.narrowing import Narrowing
from sparrowmq.spark.options import SourceOptions, parse_options
from sparrowmq.spark.partition import RangesPartition
from sparrowmq.spark.stream_reader import RocketMQStreamReader
from sparrowmq.spark.unlimited_stream_reader import UnlimitedStreamReader

if TYPE_CHECKING:
    from .conftest import FakeCluster
else:
    FakeCluster = Any

BORN_MS = 1_357_000_000_000

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # What a query may know from its last trigger, a test asks again.
    monkeypatch.setattr("sparrowmq.spark.queue_watch.BOUNDS_AGE_MS_MAX", 0)
    monkeypatch.setattr("sparrowmq.spark.queue_watch.ROUTE_AGE_MS_MAX", -1)
    yield
    topic_queues.disconnect()


def options_of(fake: FakeCluster, **changes: str) -> SourceOptions:
    given = {
        "nameServer": fake.address,
        "topic": "T",
        "startingOffsets": "earliest",
        "columns": "queueId,queueOffset",
        "waitForBrokers": "400ms",
        **changes,
    }
    given = {name: text for name, text in given.items() if text}
    return parse_options(given, scope="stream")


def make_stream(fake: FakeCluster, **changes: str) -> RocketMQStreamReader:
    return RocketMQStreamReader(options_of(fake, **changes))


def make_batch(fake: FakeCluster, **changes: str) -> RocketMQReader:
    given = {
        "nameServer": fake.address,
        "topic": "T",
        "columns": "queueId,queueOffset",
        "waitForBrokers": "0s",
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
    assert rows_of(stream, stream.partitions(start, first)) == [(0, 0), (0, 1), (0, 2)]
    assert rows_of(stream, stream.partitions(first, second)) == [(1, 0), (1, 1)]
    assert second == stream.reportLatestOffset()


def test_latest_begins_at_the_end(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 1, 4)

    assert offsets_of(0, 4) == make_stream(fake_cluster, startingOffsets="latest").initialOffset()


def test_a_start_that_is_gone_is_a_loss(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 9)
    fake_cluster.topics["T"]["broker-a", 0].min_offset = 4
    gone = {"startingOffsets": '{"T": {"broker-a": {"0": 1}}}'}
    lenient = {**gone, "failOnDataLoss": "false"}

    with pytest.raises(DataLossError, match="begins at 4 now; 3 messages are gone"):
        make_stream(fake_cluster, **gone).initialOffset()
    with pytest.raises(DataLossError, match="begins at 4 now; 3 messages are gone"):
        make_batch(fake_cluster, **gone).partitions()
    assert make_stream(fake_cluster, **lenient).initialOffset() == offsets_of(4)
    batch = make_batch(fake_cluster, **lenient)
    assert rows_of(batch, batch.partitions()) == [(0, offset) for offset in range(4, 9)]


def test_the_limit_is_kept_and_shared_out(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 90)
    fake_cluster.append("T", 1, 10)
    stream = make_stream(fake_cluster, maxOffsetsPerTrigger="20")
    limit = stream.getDefaultReadLimit()

    assert limit == ReadMaxRows(20)
    assert offsets_of(17, 3) == stream.latestOffset(stream.initialOffset(), limit)
    # Trigger.Once reads all.
    assert offsets_of(90, 10) == stream.latestOffset(stream.initialOffset(), ALL)


def test_available_now_freezes_its_end(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 5)
    stream = make_stream(fake_cluster)

    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), ALL)
    fake_cluster.append("T", 0, 5)
    fake_cluster.create_topic("T", queues=3)

    assert offsets_of(5, 0) == end
    assert end == stream.latestOffset(end, ALL)


def test_available_now_does_not_go_back_behind_a_start_at_latest(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 5)
    stream = make_stream(fake_cluster, startingOffsets="latest")

    stream.prepareForTriggerAvailableNow()
    fake_cluster.append("T", 0, 5)
    start = stream.initialOffset()

    assert offsets_of(10, 0) == start == stream.latestOffset(start, ALL)


def test_available_now_ends_while_messages_still_come(fake_cluster: FakeCluster) -> None:
    fake_cluster.tells_times = True
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 5)
    stream = make_stream(fake_cluster)
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), ALL)
    fake_cluster.append("T", 0, 5)

    # Spark compares what it writes to the checkpoint, times included.
    assert end == stream.latestOffset(end, ALL)
    assert end["@storedBy"] == offsets_of(BORN_MS + 5)


def test_available_now_sees_that_a_queue_was_filled_again(fake_cluster: FakeCluster) -> None:
    fake_cluster.tells_times = True
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 9)
    stream = make_stream(fake_cluster)
    stream.prepareForTriggerAvailableNow()
    checkpoint = {**offsets_of(5), "@storedBy": offsets_of(BORN_MS)}

    with pytest.raises(DataLossError, match="emptied and filled again: before offset 5 it has a"):
        stream.latestOffset(checkpoint, ALL)


def test_a_brokers_clock_that_was_set_back_is_no_lost_store(fake_cluster: FakeCluster) -> None:
    fake_cluster.tells_times = True
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.step_ms = 1_000
    fake_cluster.append("T", 0, 10)
    fake_cluster.step_ms = 1
    fake_cluster.append("T", 0, 10)
    stream = make_stream(fake_cluster, startingOffsets='{"T": {"broker-a": {"0": 8}}}')

    end = stream.latestOffset(stream.initialOffset(), ALL)

    assert end == {**offsets_of(20), "@storedBy": offsets_of(BORN_MS + 20)}


def test_available_now_reads_from_a_broker_that_starts_when_the_query_does(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrowmq.spark.queue_watch.BOUNDS_AGE_MS_MAX", 60_000)
    fake_cluster.create_topic("T", queues=1)
    stream = make_stream(fake_cluster)
    stream.prepareForTriggerAvailableNow()
    fake_cluster.create_topic("T", queues=2)
    fake_cluster.append("T", 1, 3)

    assert offsets_of(0, 3) == stream.latestOffset(offsets_of(0, 0), ALL)
    fake_cluster.request_codes.clear()
    assert offsets_of(0, 3) == stream.latestOffset(offsets_of(0, 3), ALL)
    assert not fake_cluster.request_codes


@pytest.mark.parametrize(
    "chosen",
    [
        {"topic": "T,U"},
        {"topic": "", "topicPattern": "[TU]"},
        {"topic": "", "assign": '{"T": {"broker-a": [0, 1]}, "U": {"broker-a": [0, 1]}}'},
    ],
)
def test_available_now_goes_on_without_a_topic_that_is_gone(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture, chosen: dict[str, str]
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 3)
    start = offsets_of(1, 0) | offsets_of(7, 8, topic="U")
    stream = make_stream(fake_cluster, failOnDataLoss="false", **chosen)

    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(start, ALL)

    assert end == offsets_of(3, 0) | offsets_of(7, 8, topic="U")
    assert end == stream.latestOffset(end, ALL)
    assert rows_of(stream, stream.partitions(start, end)) == [(0, 1), (0, 2)]
    assert caplog.text.count("U/broker-a/1: it is not there any more; offset 8") == 1


def test_a_new_queue_is_found_between_batches(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=1)
    stream = make_stream(fake_cluster)
    start = stream.initialOffset()

    fake_cluster.create_topic("T", queues=2)
    fake_cluster.append("T", 1, 2)
    end = stream.latestOffset(start, ALL)

    assert offsets_of(0, 2) == end
    assert rows_of(stream, stream.partitions(start, end)) == [(1, 0), (1, 1)]


def test_a_replayed_batch_is_planned_by_a_reader_that_knows_nothing(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 9)
    stream = make_stream(fake_cluster)

    partitions = stream.partitions(offsets_of(2), offsets_of(5))

    assert rows_of(stream, partitions) == [(0, 2), (0, 3), (0, 4)]


def test_a_replayed_batch_passes_over_a_queue_that_is_gone_if_the_user_says_so(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.create_topic("U", queues=1)
    fake_cluster.append("T", 0, 9)
    batch = (
        {**offsets_of(2, 0), **offsets_of(0, topic="U")},
        {**offsets_of(5, 4), **offsets_of(3, topic="U")},
    )
    del fake_cluster.topics["T"]["broker-a", 1], fake_cluster.topics["U"]
    lenient, both = {"failOnDataLoss": "false"}, {"topic": "T,U"}
    readers = (
        make_stream(fake_cluster, **both, **lenient),
        UnlimitedStreamReader(options_of(fake_cluster, **both, **lenient)),
    )

    for reader in readers:
        found = rows_of(reader, reader.partitions(*batch))
        assert found == [(0, 2), (0, 3), (0, 4)]
    for queue in ("T/broker-a/1", "U/broker-a/0"):
        assert f"queue {queue}: it is not there any more" in caplog.text
    del batch[0]["U"], batch[1]["U"]
    with pytest.raises(DataLossError, match="T/broker-a/1: it is not there any more; offsets 0 to"):
        make_stream(fake_cluster).partitions(*batch)


@pytest.mark.parametrize("is_available_now", [True, False])
def test_a_batch_that_is_run_again_looks_first_whether_its_queues_are_still_the_same(
    fake_cluster: FakeCluster, is_available_now: bool
) -> None:
    fake_cluster.tells_times = True
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 9)
    start, end = offsets_of(2, 0), offsets_of(5, 4)

    def begin(**options: str) -> RocketMQStreamReader:
        stream = make_stream(fake_cluster, waitForBrokers="0s", **options)
        # Spark asks for the end of all batches, or for the start of a first one.
        if is_available_now:
            stream.prepareForTriggerAvailableNow()
        else:
            stream.initialOffset()
        return stream

    with pytest.raises(DataLossError, match="emptied and filled again: before offset 5 it has a"):
        begin().partitions(start, {**end, "@storedBy": offsets_of(BORN_MS)})
    del fake_cluster.topics["T"]["broker-a", 1]
    with pytest.raises(DataLossError, match="T/broker-a/1: it is not there any more; offsets 0 to"):
        begin().partitions(start, end)
    lenient = begin(failOnDataLoss="false")
    assert rows_of(lenient, lenient.partitions(start, end)) == [(0, 2), (0, 3), (0, 4)]


def test_the_group_makes_all_pulls_of_a_plan_and_a_read(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 9)
    time = {"startingOffsets": "", "startingTimestamp": str(BORN_MS + 4), "group": "G"}
    stream = make_stream(fake_cluster, maxBytesPerTrigger="1", **time)
    narrowing = Narrowing(stored_us=((BORN_MS + 6) * 1000, None))
    batch = make_batch(fake_cluster, **time)
    narrowed = RocketMQReader(replace(batch._options, narrowing=narrowing))

    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())

    assert rows_of(stream, stream.partitions(start, end)) == [(0, 3)]
    assert len(rows_of(batch, batch.partitions())) == 6
    assert len(rows_of(narrowed, narrowed.partitions())) == 6
    assert fake_cluster.pull_groups == {"G"}


def test_what_is_processed_is_committed_under_the_group(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 9)
    stream = make_stream(fake_cluster, group="G", commitOffsets="true")

    end = stream.latestOffset(stream.initialOffset(), ALL)
    first = dict(fake_cluster.committed)
    stream.latestOffset(end, ALL)
    fake_cluster.request_codes.clear()
    stream.latestOffset(end, ALL)

    assert RequestCode.UPDATE_CONSUMER_OFFSET not in fake_cluster.request_codes
    assert first == {("G", "T", 0): 0, ("G", "T", 1): 0}
    assert fake_cluster.committed == {("G", "T", 0): 9, ("G", "T", 1): 0}


def test_a_commit_that_fails_stops_no_query_and_is_repeated_at_times(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms, code = 1_000_000, RequestCode.UPDATE_CONSUMER_OFFSET
    clock = SimpleNamespace(monotonic_ms=lambda: now_ms)
    monkeypatch.setattr("sparrowmq.spark.queue_watch.clock", clock)
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 9)
    answer = fake_cluster._reply

    def refuse(request: RemotingCommand) -> RemotingCommand | None:
        if request.code != code:
            return answer(request)
        fake_cluster.request_codes.append(code)
        return response_to(request, ResponseCode.NO_PERMISSION, remark="not for you")

    monkeypatch.setattr(fake_cluster, "_reply", refuse)
    stream = make_stream(fake_cluster, group="G", commitOffsets="true")

    # Without new messages Spark asks every 10 ms.
    start = end = stream.initialOffset()
    for _ in range(5):
        end = stream.latestOffset(start, ALL)
        now_ms += 10
    assert fake_cluster.request_codes.count(code) == 1
    now_ms += 60_000
    monkeypatch.setattr(fake_cluster, "_reply", answer)
    for _ in range(2):
        assert end == stream.latestOffset(end, ALL)

    assert end == offsets_of(9)
    assert caplog.text.count("offsets of group G are not committed") == 1
    assert fake_cluster.committed == {("G", "T", 0): 9}


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


@pytest.mark.parametrize("topic", ["T", ""])
def test_a_queue_that_is_gone_is_waited_for_once_and_read_when_it_comes_back(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    assign = "" if topic else '{"T": {"broker-a": [0, 1]}}'
    fake_cluster.create_topic("T")
    group = {"group": "G", "commitOffsets": "true"}
    stream = make_stream(fake_cluster, failOnDataLoss="false", topic=topic, assign=assign, **group)
    start = stream.initialOffset()
    held = fake_cluster.topics["T"].pop(("broker-a", 1))
    first = stream.latestOffset(start, ALL)
    fake_cluster.append("T", 0, 2)
    fake_cluster.request_codes.clear()
    second = stream.latestOffset(first, ALL)
    asked = fake_cluster.request_codes.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    fake_cluster.topics["T"]["broker-a", 1] = held
    fake_cluster.append("T", 1, 1)
    third = stream.latestOffset(second, ALL)
    del fake_cluster.topics["T"]["broker-a", 1]
    fake_cluster.request_codes.clear()
    fourth = stream.latestOffset(third, ALL)
    asked_again = fake_cluster.request_codes.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    fake_cluster.topics["T"]["broker-a", 1] = held
    stream.latestOffset(fourth, ALL)
    del fake_cluster.topics["T"]["broker-a", 1]
    stream.latestOffset(fourth, ALL)

    assert (start, offsets_of(2, 0)) == (first, second)
    assert asked == 1
    assert asked_again > 1
    assert caplog.text.count("T/broker-a/1: it is not there any more; offset 0") == 1
    assert caplog.text.count("T/broker-a/1: it is not there any more; offset 1") == 2
    assert "offsets of group G are not committed" not in caplog.text
    assert third == fourth == offsets_of(2, 1)


def test_a_topic_that_is_gone_is_waited_for_once_and_read_when_it_comes_back(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.create_topic("U")
    stream = make_stream(fake_cluster, failOnDataLoss="false", topic="T,U")
    start = stream.initialOffset()
    held = fake_cluster.topics.pop("U")
    fake_cluster.append("T", 0, 2)
    first = stream.latestOffset(start, ALL)
    fake_cluster.request_codes.clear()
    second = stream.latestOffset(first, ALL)
    asked = fake_cluster.request_codes.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    fake_cluster.topics["U"] = held
    fake_cluster.append("U", 1, 1)
    third = stream.latestOffset(second, ALL)

    assert first == second == offsets_of(2, 0) | offsets_of(0, 0, topic="U")
    assert asked == 2
    assert caplog.text.count("U/broker-a/1: it is not there any more; offset 0") == 1
    assert third == offsets_of(2, 0) | offsets_of(0, 1, topic="U")


def test_a_deleted_topic_is_one_clear_error(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    stream = make_stream(fake_cluster)
    start = stream.initialOffset()
    del fake_cluster.topics["T"]

    with pytest.raises(RocketMQError) as caught:
        stream.latestOffset(start, ALL)

    assert "knows no broker with topic 'T'" in str(caught.value)


def test_the_checkpoint_of_another_topic_is_one_clear_error_at_once(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.create_topic("U")
    fake_cluster.append("T", 0, 3)
    start = offsets_of(5, 5, topic="U") | offsets_of(0, 0)

    with pytest.raises(RocketMQError) as caught:
        make_stream(fake_cluster, waitForBrokers="10m").latestOffset(start, ALL)
    lenient = make_stream(fake_cluster, waitForBrokers="10m", failOnDataLoss="false")

    words = "sparrowmq: the checkpoint has offsets of topic 'U', and this query reads T; give"
    assert str(caught.value).startswith(words)
    assert lenient.latestOffset(start, ALL) == start | offsets_of(3, 0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"topicPattern": "T.*"}, "offsets of topic 'U', and this query reads the topics that mat"),
        ({"assign": '{"T": {"broker-a": [0, 1]}}'}, "offsets of queue U/broker-a/0, and this quer"),
        (
            {"assign": '{"T": {"broker-a": [0]}, "U": {"broker-a": [0, 1]}}'},
            "of queue T/broker-a/1",
        ),
    ],
)
def test_the_checkpoint_of_other_queues_is_one_clear_error_at_once(
    fake_cluster: FakeCluster, changed: dict[str, str], words: str
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.create_topic("U")
    fake_cluster.append("T", 0, 3)
    start = offsets_of(0, 0, topic="U") | offsets_of(0, 0)
    changed = {"topic": "", "waitForBrokers": "10m", **changed}

    with pytest.raises(RocketMQError, match=words):
        make_stream(fake_cluster, **changed).latestOffset(start, ALL)
    end = make_stream(fake_cluster, failOnDataLoss="false", **changed).latestOffset(start, ALL)
    assert end == start | offsets_of(3, 0)


def test_without_limits_too_the_checkpoint_of_another_topic_is_one_clear_error(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 3)
    start = offsets_of(5, 5, topic="U") | offsets_of(0, 0)
    strict = UnlimitedStreamReader(options_of(fake_cluster))
    lenient = UnlimitedStreamReader(options_of(fake_cluster, failOnDataLoss="false"))
    planned = strict.latestOffset()

    with pytest.raises(RocketMQError, match="the checkpoint has offsets of topic 'U'"):
        strict.partitions(start, planned)
    assert rows_of(lenient, lenient.partitions(start, planned)) == [(0, 0), (0, 1), (0, 2)]


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

    assert rows_of(batch, batch.partitions()) == [(0, 7), (0, 8)]


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

    assert rows_of(batch, batch.partitions()) == [(1, 0)]


def test_partition_numbers_count_queues_in_order(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=3)
    fake_cluster.append("T", 0, 1)
    fake_cluster.append("T", 2, 2)
    batch = make_batch(fake_cluster, profile="kafka", columns="")

    rows = [row for p in batch.partitions() for each in batch.read(p) for row in each.to_pylist()]

    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 0), (2, 0), (2, 1)]
    assert [row["key"] for row in rows] == [b"T-0-0", b"T-2-0", b"T-2-1"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topic": "nope"}, "knows no broker with topic 'nope'"),
        ({"topic": "TX"}, "; did you mean T?"),
        ({"nameServer": "127.0.0.1:1"}, "no name server answers at 127.0.0.1:1"),
        ({"startingOffsets": '{"T": {"broker-a": {"9": 1}}}'}, "name queue T/broker-a/9"),
        (
            {"startingOffsetsByTimestamp": f'{{"T": {{"broker-a": {{"9": {BORN_MS}}}}}}}'},
            "name queue T/broker-a/9",
        ),
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
    assert "see the permissions of the topic and the group" in str(caught.value)


def test_a_pattern_finds_topics_also_later(fake_cluster: FakeCluster) -> None:
    for topic in ("orders-eu", "%RETRY%orders-g", "orders", "SCHEDULE_TOPIC_XXXX"):
        fake_cluster.create_topic(topic, queues=1)
    stream = make_stream(fake_cluster, topic="", topicPattern="orders-.*")

    start = stream.initialOffset()
    fake_cluster.create_topic("orders-us", queues=1)
    fake_cluster.append("orders-us", 0, 2)
    end = stream.latestOffset(start, ALL)

    assert offsets_of(0, topic="orders-eu") == start
    assert offsets_of(0, topic="orders-eu") | offsets_of(2, topic="orders-us") == end
    with pytest.raises(RocketMQError) as caught:
        make_batch(fake_cluster, topic="", topicPattern="nope.*").partitions()
    assert "no topic matches option 'topicPattern', 'nope.*'" in str(caught.value)


def test_a_query_that_begins_while_a_broker_starts_waits_for_it(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cluster.create_topic("T", queues=2)
    fake_cluster.append("T", 0, 3)
    answer_stats, refusals = fake_cluster._stats, [ResponseCode.SERVICE_NOT_AVAILABLE] * 2

    def start_slowly(request: RemotingCommand, *args: Any) -> RemotingCommand:
        return response_to(request, refusals.pop()) if refusals else answer_stats(request, *args)

    monkeypatch.setattr(fake_cluster, "_stats", start_slowly)

    (partition,) = make_batch(fake_cluster, waitForBrokers="10s").partitions()

    assert refusals == []
    assert isinstance(partition, RangesPartition)
    assert [each.end for each, _ in partition.ranges] == [3]
    with pytest.raises(RocketMQError, match="unknown"):
        make_batch(fake_cluster, topic="unknown", waitForBrokers="10m").partitions()
    monkeypatch.setattr("sparrowmq.spark.discovery.BEGIN_WAIT_MS_MAX", 300)
    refusals = [ResponseCode.SERVICE_NOT_AVAILABLE] * 1_000
    with pytest.raises(RocketMQError, match="answer code 14"):
        make_batch(fake_cluster, waitForBrokers="10m").partitions()


def test_a_batch_lies_between_two_times(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=3)
    fake_cluster.append("T", 0, 9)
    fake_cluster.append("T", 1, 4)
    batch = make_batch(
        fake_cluster,
        startingTimestamp=str(BORN_MS + 1 + 3),
        endingOffsetsByTimestamp=f'{{"T": {{"broker-a": {{"0": {BORN_MS + 1 + 6}}}}}}}',
    )
    after_all = make_batch(fake_cluster, startingTimestamp=str(BORN_MS + 500))
    before_all = make_batch(fake_cluster, startingTimestamp="0")
    strict = {"startingOffsetsByTimestampStrategy": "error"}
    some = make_batch(fake_cluster, startingTimestamp=str(BORN_MS + 1 + 3), **strict)
    of_one = f'{{"T": {{"broker-a": {{"0": {BORN_MS + 1 + 8}}}}}}}'
    one = make_batch(fake_cluster, startingOffsetsByTimestamp=of_one, **strict)

    assert len(rows_of(one, one.partitions())) == 1 + 4
    with pytest.raises(
        RocketMQError, match=r"queue T/broker-a/2 has no message stored at or after 20"
    ):
        some.partitions()
    assert rows_of(batch, batch.partitions()) == [(0, 3), (0, 4), (0, 5), (1, 3)]
    assert rows_of(after_all, after_all.partitions()) == []
    assert len(rows_of(before_all, before_all.partitions())) == 13


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("namespace", ["", "ns"])
def test_a_group_goes_on_where_it_has_committed(
    fake_cluster: FakeCluster, version: int, namespace: str
) -> None:
    fake_cluster.version = version
    prefix = f"{namespace}%" if namespace else ""
    topic, group = f"{prefix}T", f"{prefix}G"
    fake_cluster.create_topic(topic, queues=3)
    for queue_id, count in enumerate((9, 4, 7)):
        fake_cluster.append(topic, queue_id, count)
    # The queue with 0 was committed to, the queue without was not.
    fake_cluster.committed |= {(group, topic, 0): 5, (group, topic, 2): 0}

    def begin(how: str, group: str) -> dict[str, Any]:
        stream = make_stream(fake_cluster, startingOffsets=how, group=group, namespace=namespace)
        return stream.initialOffset()

    assert offsets_of(5, 0, 0) == begin("group", "G")
    assert offsets_of(5, 4, 0) == begin("group-or-latest", "G")
    assert offsets_of(9, 4, 7) == begin("group-or-latest", "H")


def test_a_filter_gives_the_tags_wanted_alone(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 9)
    fake_cluster.same_codes = {"tag1"}
    fake_cluster.pulls_max = 1
    batch = make_batch(fake_cluster, subExpression="tag0 || tag2")
    none = make_batch(fake_cluster, subExpression="tag7")

    wanted = [(0, n) for n in range(9) if n % 3 != 1]
    assert rows_of(batch, batch.partitions()) == wanted
    assert rows_of(none, none.partitions()) == []


def test_a_filter_hides_no_loss(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 9)
    batch = make_batch(fake_cluster, subExpression="tag0")
    (partition,) = batch.partitions()
    fake_cluster.topics["T"]["broker-a", 0].min_offset = 4
    fake_cluster.answers = [(ResponseCode.PULL_RETRY_IMMEDIATELY, 4)]

    with pytest.raises(DataLossError) as caught:
        list(batch.read(partition))

    assert "offsets 0 to 3 cannot be read" in str(caught.value)


BUSY = (ResponseCode.SYSTEM_BUSY, 0)


def test_a_query_waits_for_a_broker_that_stops_after_it_has_given_the_ends(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 9)
    time = {"startingOffsets": "", "startingTimestamp": str(BORN_MS + 4)}
    stream = make_stream(fake_cluster, maxBytesPerTrigger="1", **time)
    fake_cluster.answers = [BUSY]
    start = stream.initialOffset()
    fake_cluster.answers = [BUSY]
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    fake_cluster.answers = [BUSY]
    batch = make_batch(fake_cluster, waitForBrokers="400ms", **time)
    read = rows_of(batch, batch.partitions())

    assert (start, end) == (offsets_of(3), offsets_of(4))
    assert [(0, offset) for offset in range(3, 9)] == read
    assert caplog.text.count("waits up to 0 s: answer code 2 from") == 3


def test_a_batch_waits_for_enough_rows_but_not_for_ever(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_000_000
    monkeypatch.setattr("sparrowmq.spark.stream_reader.clock.monotonic_ms", lambda: now_ms)
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 4)
    stream = make_stream(fake_cluster, minOffsetsPerTrigger="5", maxTriggerDelay="60s")
    limit = stream.getDefaultReadLimit()
    start = stream.initialOffset()

    early = stream.latestOffset(start, limit)
    at_once = stream.latestOffset(start, ALL)
    fake_cluster.append("T", 0, 1)
    now_ms += 59_999
    waiting = stream.latestOffset(at_once, limit)
    now_ms += 1
    late = stream.latestOffset(at_once, limit)
    fake_cluster.append("T", 0, 1)
    again = stream.latestOffset(late, limit)
    stream.prepareForTriggerAvailableNow()
    last = stream.latestOffset(late, limit)

    assert limit == ReadMinRows(5)
    assert [start, offsets_of(4)] == [early, at_once]
    assert [offsets_of(4), offsets_of(5)] == [waiting, late]
    assert [late, offsets_of(6)] == [again, last]


def test_a_limit_in_bytes_is_about_kept(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=2)
    fake_cluster.append("T", 0, 50, size=1_000)
    fake_cluster.append("T", 1, 50)
    stream = make_stream(fake_cluster, maxBytesPerTrigger="20000")

    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())

    sizes = [len(fake_cluster.topics["T"]["broker-a", queue].records[0]) for queue in (0, 1)]
    counts = [int(count) for count in end["T"]["broker-a"].values()]
    total = sum(size * count for size, count in zip(sizes, counts, strict=True))
    assert 20_000 <= total <= 20_000 + sum(sizes)
    assert all(0 < count < 50 for count in counts)


def test_sizes_are_not_read_while_a_batch_waits_for_rows(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 4, size=1_000)
    given = {"minOffsetsPerTrigger": "5", "maxBytesPerTrigger": "2000"}
    stream = make_stream(fake_cluster, **given)
    limit, start = stream.getDefaultReadLimit(), stream.initialOffset()

    waiting = stream.latestOffset(start, limit)
    assert (waiting, fake_cluster.pull_count) == (start, 0)
    fake_cluster.append("T", 0, 1, size=1_000)
    end = stream.latestOffset(start, limit)

    assert (end, fake_cluster.pull_count) == (offsets_of(2), 1)


def test_a_limit_in_bytes_is_kept_behind_what_retention_took(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 100, size=1_000)
    queue = fake_cluster.topics["T"]["broker-a", 0]
    queue.min_offset = 20
    stream = make_stream(fake_cluster, maxBytesPerTrigger="20000", failOnDataLoss="false")

    end = stream.latestOffset(offsets_of(0), stream.getDefaultReadLimit())

    assert offsets_of(20 + -(-20_000 // len(queue.records[0]))) == end


def test_a_time_is_found_behind_messages_that_are_gone(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 10)
    # The broker's guess is 0; behind it the messages 0 to 2 are missing.
    fake_cluster.step_ms = 1_000
    fake_cluster.answers = [(ResponseCode.PULL_RETRY_IMMEDIATELY, 3)]
    stream = make_stream(fake_cluster, startingOffsets="", startingTimestamp=str(BORN_MS + 6))

    assert offsets_of(5) == stream.initialOffset()


@pytest.mark.parametrize(("rows", "is_in_bytes"), [("9", False), ("90", True)])
def test_of_a_limit_in_rows_and_one_in_bytes_both_hold(
    fake_cluster: FakeCluster, rows: str, is_in_bytes: bool
) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 100, size=1_000)
    given = {"maxOffsetsPerTrigger": rows, "maxBytesPerTrigger": "20000"}
    stream = make_stream(fake_cluster, **given)

    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())

    size = len(fake_cluster.topics["T"]["broker-a", 0].records[0])
    assert offsets_of(-(-20_000 // size) if is_in_bytes else 9) == end


def test_large_queues_are_split_by_rows(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 25)
    fake_cluster.append("T", 1, 5)
    batch = make_batch(fake_cluster, maxRecordsPerPartition="10")

    partitions = batch.partitions()

    assert sorted([len(rows_of(batch, [p])) for p in partitions], reverse=True) == [9, 8, 8, 5]
    assert len(rows_of(batch, partitions)) == 30


def test_requests_are_signed_and_answers_unchanged(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 3)
    batch = make_batch(fake_cluster, accessKey="me", secretKey="hush")

    assert len(rows_of(batch, batch.partitions())) == 3
    assert set(fake_cluster.signatures) == {True}


def test_lag_is_the_distance_to_the_queues_ends() -> None:
    progress = {
        "sources": [
            {
                "endOffset": offsets_of(3, 4),
                # The second queue has lost messages.
                "latestOffset": json.dumps(offsets_of(10, 2)),
            }
        ]
    }

    assert lag_of(progress) == {("T", "broker-a", 0): 7, ("T", "broker-a", 1): 0}
    foreign = [
        {"endOffset": None, "latestOffset": None},
        {"endOffset": {"logOffset": 3}, "latestOffset": None},
        {"endOffset": {"topic": {"0": 17}}, "latestOffset": {"topic": {"0": 19}}},
        {"endOffset": "3", "latestOffset": "not JSON"},
    ]
    assert lag_of({"sources": foreign}) == {}
    assert lag_of({"sources": [*progress["sources"], *foreign]}) == lag_of(progress)
    # Another source of the query, such as one with another filter, has read farther.
    farther = {"endOffset": offsets_of(9, 2), "latestOffset": offsets_of(10, 2)}
    for sources in ([*progress["sources"], farther], [farther, *progress["sources"]]):
        assert lag_of({"sources": sources}) == lag_of(progress)


def test_the_listener_keeps_each_querys_lag_logs_it_at_times_and_forgets_ended_queries() -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    registry, lines = prometheus_client.CollectorRegistry(), list[str]()
    listener = LagListener(registry=registry, log=lines.append, log_interval_s=3600)

    def report(query: str, name: str | None, read: int) -> None:
        ends = {"T": {"broker-a": {"0": 9_000, "1": 5}}}
        source = {"endOffset": {"T": {"broker-a": {"0": read, "1": 5}}}, "latestOffset": ends}
        progress = {"id": query, "name": name, "sources": [source]}
        event: Any = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress)))
        listener.onQueryProgress(event)

    def lags() -> dict[tuple[str, str], float]:
        (family,) = registry.collect()
        return {(each.labels["query"], each.labels["queue"]): each.value for each in family.samples}

    query = uuid4()
    report(str(query), "orders", 2_000)
    report("id-2", None, 8_999)
    report(str(query), "orders", 3_000)

    assert lags() == {
        ("orders", "0"): 6_000,
        ("orders", "1"): 0,
        ("id-2", "0"): 1,
        ("id-2", "1"): 0,
    }
    assert lines == [
        "query orders: 7,000 messages of 2 queues are not read; the most, 7,000, wait in "
        "T/broker-a/0",
        "query id-2: 1 messages of 2 queues are not read; the most, 1, wait in T/broker-a/0",
    ]
    ended: Any = SimpleNamespace(id=query)
    listener.onQueryTerminated(ended)
    assert lags() == {("id-2", "0"): 1, ("id-2", "1"): 0}


def test_without_limits_a_batch_is_all_there_is_and_losses_are_told_when_it_is_dealt_out(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("T")
    fake_cluster.append("T", 0, 5)
    options = options_of(fake_cluster, group="G", commitOffsets="true")
    stream = UnlimitedStreamReader(options)
    start = stream.initialOffset()
    end = stream.latestOffset()

    assert (offsets_of(0, 0), offsets_of(5, 0)) == (start, end)
    assert [(0, n) for n in range(5)] == rows_of(stream, stream.partitions(start, end))
    fake_cluster.append("T", 0, 5)
    last = stream.latestOffset()
    fake_cluster.topics["T"]["broker-a", 0].min_offset = 7
    with pytest.raises(DataLossError, match="begins at 7 now; 2 messages are gone"):
        stream.partitions(end, last)
    assert fake_cluster.committed["G", "T", 0] == 0


def test_without_limits_a_queue_that_is_away_keeps_its_offset_or_stops_the_query(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("T", queues=2)
    fake_cluster.append("T", 1, 4)
    options = options_of(fake_cluster, waitForBrokers="0s")
    running, anew = UnlimitedStreamReader(options), UnlimitedStreamReader(options)
    start = running.initialOffset()
    end = running.latestOffset()

    fake_cluster.topics["T"].pop(("broker-a", 1))
    assert end == running.latestOffset()
    planned = anew.latestOffset()
    assert offsets_of(0) == planned
    with pytest.raises(RocketMQError, match="queue T/broker-a/1 was not there when this batch"):
        anew.partitions(end, planned)
    assert start != end
