from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from sparrowmq.client.name_servers import NameServers
from sparrowmq.errors import BrokerError, InvokeTimeout, RemoteProtocolError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.spark.failures import DataLossError
from sparrowmq.spark.options import SourceOptions, parse_options
from sparrowmq.spark.planning import QueueRange
from sparrowmq.spark.range_reader import read_ranges
from sparrowmq.spark.topic_queues import Cluster
from waiting import wait_until

if TYPE_CHECKING:
    from .conftest import FakeCluster
else:
    FakeCluster = Any


@pytest.fixture
def cluster(fake_cluster: FakeCluster) -> Iterator[Cluster]:
    fake_cluster.create_topic("T", queues=2)
    found = Cluster((fake_cluster.address,), request_timeout_ms=5_000)
    yield found
    found.driver.close()


def options_of(fake: FakeCluster, **changes: str) -> SourceOptions:
    given = {
        "nameServer": fake.address,
        "topic": "T",
        "columns": "queueId,queueOffset,keys,partition",
        "waitForBrokers": "400ms",
        **changes,
    }
    return parse_options(given, scope="batch")


def read(
    cluster: Cluster, options: SourceOptions, *ranges: tuple[int, int, int]
) -> list[tuple[int, int]]:
    """Return (queue id, offset) of what is read of ranges (queue id, start, end)."""
    wanted = [
        (QueueRange(MessageQueue("T", "broker-a", queue_id), start, end), queue_id)
        for queue_id, start, end in ranges
    ]
    rows = [row for batch in read_ranges(cluster, options, wanted) for row in batch.to_pylist()]
    assert all(f"T-{row['queueId']}-{row['queueOffset']}" == row["keys"] for row in rows)
    assert all(row["partition"] == row["queueId"] for row in rows)
    return [(row["queueId"], row["queueOffset"]) for row in rows]


@pytest.mark.parametrize("pulls_max", [1, 3, 32, 2048])
def test_ranges_are_read_whole_and_no_farther(
    fake_cluster: FakeCluster, cluster: Cluster, pulls_max: int
) -> None:
    fake_cluster.append("T", 0, 100)
    fake_cluster.append("T", 1, 50)
    fake_cluster.pulls_max = pulls_max

    rows = read(cluster, options_of(fake_cluster), (0, 7, 90), (1, 0, 50))

    assert [(0, n) for n in range(7, 90)] + [(1, n) for n in range(50)] == rows


def test_small_answers_are_joined(fake_cluster: FakeCluster, cluster: Cluster) -> None:
    fake_cluster.append("T", 0, 9_000)
    fake_cluster.pulls_max = 32
    queue_range = QueueRange(MessageQueue("T", "broker-a", 0), 0, 9_000)

    batches = list(read_ranges(cluster, options_of(fake_cluster), [(queue_range, 0)]))

    assert [batch.num_rows for batch in batches] == [4096, 4096, 808]


def test_small_queues_of_a_broker_are_one_batch_and_damage_names_its_queue(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.create_topic("T", queues=4)
    wanted = []
    for queue_id in range(4):
        fake_cluster.append("T", queue_id, 3)
        queue = MessageQueue("T", "broker-a", queue_id)
        wanted.append((QueueRange(queue, 0, 3), queue_id))
    options = options_of(fake_cluster)

    (batch,) = read_ranges(cluster, options, wanted)

    assert [number for number in range(4) for _ in range(3)] == batch["partition"].to_pylist()
    queue_2 = fake_cluster.topics["T"]["broker-a", 2]
    damaged = bytearray(queue_2.records[1])
    damaged[84] = 0x7F  # the body's size, behind two hosts of IPv4
    queue_2.records[1] = bytes(damaged)
    with pytest.raises(RemoteProtocolError, match="damaged records of queue 2 of 'T'"):
        list(read_ranges(cluster, options, wanted))


def test_small_queues_of_two_brokers_are_not_joined(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    queues = fake_cluster.topics["T"]
    queues["broker-b", 1] = queues.pop(("broker-a", 1))
    fake_cluster.append("T", 0, 2)
    fake_cluster.append("T", 1, 1, broker="broker-b")
    options = options_of(fake_cluster, columns="brokerName,queueOffset")
    ranges = [
        (QueueRange(MessageQueue("T", "broker-a", 0), 0, 2), 0),
        (QueueRange(MessageQueue("T", "broker-b", 1), 0, 1), 1),
    ]

    batches = [batch.to_pylist() for batch in read_ranges(cluster, options, ranges)]

    assert [[tuple(row.values()) for row in batch] for batch in batches] == [
        [("broker-a", 0), ("broker-a", 1)],
        [("broker-b", 0)],
    ]


def test_several_small_pulls_are_under_way_at_once(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.append("T", 0, 9_000)
    fake_cluster.pulls_max = 32
    queue_range = QueueRange(MessageQueue("T", "broker-a", 0), 0, 9_000)

    next(iter(read_ranges(cluster, options_of(fake_cluster), [(queue_range, 0)])))

    expected = 4_096 // 32 + 8
    wait_until(f"{expected} pulls came", lambda: fake_cluster.pull_count == expected)


@pytest.mark.parametrize("sizes", [(32, 32, 5), (7, 8), (1, 1, 9, 9, 9, 2)])
def test_answers_that_do_not_go_on_alike_are_read_whole(
    fake_cluster: FakeCluster, cluster: Cluster, sizes: tuple[int, ...]
) -> None:
    fake_cluster.append("T", 0, 300)
    give, turn = fake_cluster._pull, itertools.cycle(sizes)

    def pull(*args: Any) -> Any:
        fake_cluster.pulls_max = next(turn)
        return give(*args)

    fake_cluster._pull = pull  # type: ignore[method-assign, assignment]

    assert [(0, n) for n in range(3, 299)] == read(cluster, options_of(fake_cluster), (0, 3, 299))


def test_a_broker_that_gives_more_than_asked_for_is_cut(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.append("T", 0, 10)
    queue = fake_cluster.topics["T"]["broker-a", 0]
    # One entry of the list that holds two records: the broker's count is off by one.
    queue.records[4] += queue.records[5]

    rows = read(cluster, options_of(fake_cluster), (0, 0, 5))

    assert [(0, n) for n in range(5)] == rows


@pytest.mark.parametrize(("expression", "step"), [("tag0", 3), ("*", 1)])
def test_a_broker_that_counts_in_its_own_way_is_cut(
    fake_cluster: FakeCluster,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    expression: str,
    step: int,
) -> None:
    fake_cluster.append("T", 0, 60)
    # After two alike, several pulls are under way, which ask for as many messages.
    give, counts = fake_cluster._pull, itertools.chain([2, 2], itertools.repeat(7))

    def pull(request: Any, fields: dict[str, str], queue: Any) -> Any:
        return give(request, {**fields, "maxMsgNums": str(next(counts))}, queue)

    monkeypatch.setattr(fake_cluster, "_pull", pull)

    rows = read(cluster, options_of(fake_cluster, subExpression=expression), (0, 0, 51))

    assert rows == [(0, offset) for offset in range(0, 51, step)]


def test_an_answer_that_goes_on_before_its_end_is_an_error_and_doubles_no_row(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.append("T", 0, 10)
    queue = fake_cluster.topics["T"]["broker-a", 0]
    queue.records[4] += queue.records[5]
    fake_cluster.pulls_max = 5

    with pytest.raises(RemoteProtocolError, match="go on at 5, but gave 0 to 5 in 6 messages"):
        read(cluster, options_of(fake_cluster), (0, 0, 10))


def test_a_busy_broker_is_asked_again(fake_cluster: FakeCluster, cluster: Cluster) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.answers = [(ResponseCode.SYSTEM_BUSY, 0), (ResponseCode.SERVICE_NOT_AVAILABLE, 0)]

    assert len(read(cluster, options_of(fake_cluster), (0, 0, 10))) == 10


def test_an_answer_that_never_comes_is_asked_for_again(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.answers = [None]

    rows = read(cluster, options_of(fake_cluster, requestTimeoutMs="50"), (0, 0, 10))

    assert [(0, n) for n in range(10)] == rows


def test_a_broker_that_comes_back_at_another_address_is_found(
    fake_cluster: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = type(fake_cluster)()
    try:
        moved.create_topic("T", queues=2)
        for each in (fake_cluster, moved):
            each.append("T", 0, 10)
        fake_cluster.answers = [None] * 100
        give, route = fake_cluster._pull, moved._route

        def pull(*args: Any) -> Any:
            monkeypatch.setattr(fake_cluster, "_route", route)
            return give(*args)

        monkeypatch.setattr(fake_cluster, "_pull", pull)

        rows = read(cluster, options_of(fake_cluster, requestTimeoutMs="50"), (0, 0, 10))
    finally:
        moved.close()

    assert [(0, n) for n in range(10)] == rows


def test_a_broker_whose_address_another_one_has_now_is_found(
    fake_cluster: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cluster.append("T", 0, 9)
    options = options_of(fake_cluster)
    assert [(0, n) for n in range(3)] == read(cluster, options, (0, 0, 3))

    monkeypatch.setattr("sparrowmq.spark.range_reader.ROUTE_MS", -1)
    with closing(type(fake_cluster)()) as moved:
        moved.create_topic("T")
        moved.append("T", 0, 3)
        monkeypatch.setattr(fake_cluster, "_route", moved._route)
        read(cluster, options, (0, 0, 3))
        pulled = moved.pull_count
        # Without a name server, what was known last.
        monkeypatch.setattr(cluster, "name_servers", NameServers(("127.0.0.1:1",)))
        read(cluster, options, (0, 0, 3))

        assert (pulled, moved.pull_count) == (1, 2)


def test_patience_ends(fake_cluster: FakeCluster, cluster: Cluster) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.answers = [None] * 100

    with pytest.raises(InvokeTimeout):
        read(cluster, options_of(fake_cluster, requestTimeoutMs="20"), (0, 0, 10))

    assert 2 < fake_cluster.pull_count < 100


def test_no_permission_is_not_asked_again(fake_cluster: FakeCluster, cluster: Cluster) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.answers = [(ResponseCode.NO_PERMISSION, 0)]

    with pytest.raises(BrokerError):
        read(cluster, options_of(fake_cluster), (0, 0, 10))

    assert fake_cluster.pull_count == 1


def test_access_control_that_refuses_who_asks_is_not_asked_again(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.append("T", 0, 10)
    # As Apache's brokers of 4.x answer.
    fake_cluster.remark = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    fake_cluster.answers = [(ResponseCode.SYSTEM_ERROR, 0)]

    with pytest.raises(BrokerError, match="No accessKey"):
        read(cluster, options_of(fake_cluster), (0, 0, 10))

    assert fake_cluster.pull_count == 1


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ((ResponseCode.PULL_RETRY_IMMEDIATELY, 4), "offsets 0 to 3 cannot be read"),
        ((ResponseCode.PULL_RETRY_IMMEDIATELY, 99), "offsets 0 to 9 cannot be read"),
    ],
)
def test_what_the_broker_removed_is_a_loss(
    fake_cluster: FakeCluster, cluster: Cluster, script: tuple[int, int], words: str
) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.answers = [script]

    with pytest.raises(DataLossError) as caught:
        read(cluster, options_of(fake_cluster), (0, 0, 10))

    assert words in str(caught.value)
    assert "the broker has removed what was between" in str(caught.value)


def test_offsets_that_a_static_topics_queue_leaps_over_are_no_loss(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    queue = MessageQueue("S", "__syslo__global__", 0)
    fake_cluster.create_topic("S", queues=1, broker=queue.broker_name)
    fake_cluster.append("S", 0, 10, broker=queue.broker_name)
    fake_cluster.answers = [(ResponseCode.PULL_RETRY_IMMEDIATELY, 4)]

    batches = read_ranges(cluster, options_of(fake_cluster), [(QueueRange(queue, 0, 10), 0)])

    offsets = [row["queueOffset"] for batch in batches for row in batch.to_pylist()]
    assert offsets == list(range(4, 10))


def test_what_is_removed_is_skipped_if_the_user_says_so(
    fake_cluster: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.answers = [(ResponseCode.PULL_RETRY_IMMEDIATELY, 4)]

    rows = read(cluster, options_of(fake_cluster, failOnDataLoss="false"), (0, 0, 10))

    assert [(0, n) for n in range(4, 10)] == rows
    assert "queue T/broker-a/0: offsets 0 to 3 cannot be read" in caplog.text


def test_retention_that_overtakes_is_a_loss(fake_cluster: FakeCluster, cluster: Cluster) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.topics["T"]["broker-a", 0].min_offset = 6

    with pytest.raises(DataLossError) as caught:
        read(cluster, options_of(fake_cluster), (0, 2, 10))
    rows = read(cluster, options_of(fake_cluster, failOnDataLoss="false"), (0, 2, 10))

    assert "offsets 2 to 5 cannot be read" in str(caught.value)
    assert [(0, n) for n in range(6, 10)] == rows


def test_what_is_removed_is_a_loss_also_where_a_filter_passes_messages_over(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.topics["T"]["broker-a", 0].min_offset = 6
    fake_cluster.answers = [(ResponseCode.PULL_RETRY_IMMEDIATELY, 6)]

    with pytest.raises(DataLossError, match="offsets 2 to 5 cannot be read"):
        read(cluster, options_of(fake_cluster, subExpression="tag0"), (0, 2, 10))


def test_a_queue_that_ends_early_is_a_loss_and_never_silently_short(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.append("T", 0, 10)

    with pytest.raises(DataLossError) as caught:
        read(cluster, options_of(fake_cluster), (0, 5, 12))
    rows = read(cluster, options_of(fake_cluster, failOnDataLoss="false"), (0, 5, 12))

    assert "offsets 10 to 11 cannot be read: the queue ends at 10 now" in str(caught.value)
    assert [(0, n) for n in range(5, 10)] == rows


def test_patience_begins_anew_where_a_filter_passes_messages_over(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.answers = [
        (ResponseCode.PULL_NOT_FOUND, 0),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, 4),
        (ResponseCode.PULL_NOT_FOUND, 4),
    ]
    options = options_of(fake_cluster, subExpression="tag0", waitForBrokers="40ms")

    assert read(cluster, options, (0, 0, 10)) == [(0, 6), (0, 9)]


def test_patience_begins_anew_behind_messages_and_behind_a_loss(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.pulls_max = 4
    options = options_of(fake_cluster, failOnDataLoss="false", waitForBrokers="40ms")
    # Empty ones let the queue answer.
    fake_cluster.answers = [(ResponseCode.PULL_NOT_FOUND, 0), (), (ResponseCode.PULL_NOT_FOUND, 4)]

    assert read(cluster, options, (0, 0, 10)) == [(0, n) for n in range(10)]

    fake_cluster.topics["T"]["broker-a", 0].min_offset = 4
    fake_cluster.answers = [(ResponseCode.PULL_NOT_FOUND, 0), (), (ResponseCode.PULL_NOT_FOUND, 4)]

    assert read(cluster, options, (0, 0, 10)) == [(0, n) for n in range(4, 10)]


@pytest.mark.parametrize(
    ("missing", "words"), [(4, "gave 0 to 8 in 8 messages"), (8, "gave 0 to 7 in 8 messages")]
)
def test_a_gap_within_an_answer_is_an_error(
    fake_cluster: FakeCluster, cluster: Cluster, missing: int, words: str
) -> None:
    fake_cluster.append("T", 0, 10)
    fake_cluster.topics["T"]["broker-a", 0].records[missing] = b""

    with pytest.raises(RemoteProtocolError) as caught:
        read(cluster, options_of(fake_cluster, failOnDataLoss="false"), (0, 0, 9))

    assert words in str(caught.value)


def test_an_abandoned_read_leaves_the_connection_usable(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.append("T", 0, 5_000)
    options = options_of(fake_cluster, pullBatchSize="1024")
    queue_range = QueueRange(MessageQueue("T", "broker-a", 0), 0, 5_000)

    first = read_ranges(cluster, options, [(queue_range, 0)])
    next(first)
    first.close()  # type: ignore[attr-defined]

    assert read(cluster, options, (0, 0, 2)) == [(0, 0), (0, 1)]
