"""The operations against a real name server and broker, by each driver."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from operator import attrgetter
from typing import Any

import pytest

from poison import send_stored
from sparrowmq import CompressionType, Message, MessageQueue
from sparrowmq.calling.effects import Operation, sleep
from sparrowmq.client.assembly import make_publisher
from sparrowmq.client.directory import QueueLag
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations import administer, handover, heartbeats, offsets, routes, topics
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.pull import PullStatus, make_pull_header, pull
from sparrowmq.client.operations.send import send, send_batch
from sparrowmq.client.publisher import Publisher
from sparrowmq.coordination.member_marker import MARKED_EXPIRY_MS, is_marked, mark_version
from sparrowmq.errors import (
    BrokerError,
    ConnectFailed,
    TopicRouteNotFound,
    UnreadableMessage,
    UsageError,
)
from sparrowmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from sparrowmq.protocol.codes import MQ_VERSION, ResponseCode
from sparrowmq.protocol.compression import compress_body
from sparrowmq.protocol.record import decode_messages
from sparrowmq.testing.embedded import EmbeddedCluster

Run = Callable[[Operation[Any]], Any]


def publisher_of(name_server: str) -> Publisher:
    return make_publisher("GID_ops", name_server=name_server)


def heartbeat_of(client_id: str, group: str, topic: str) -> HeartbeatData:
    consumer = ConsumerData(
        group_name=group, subscription_data_set=[SubscriptionData(topic=topic, sub_version=1)]
    )
    return HeartbeatData(client_id=client_id, consumer_data_set=[consumer])


def test_what_is_sent_is_pulled(run: Run, cluster: EmbeddedCluster, topic: str) -> None:
    publisher = publisher_of(cluster.name_server)
    queue = MessageQueue(topic, "broker-a", 2)

    first = run(send(publisher, Message(topic, b"one", keys=("k",)), queue=queue))
    run(send_batch(publisher, [Message(topic, b"two"), Message(topic, b"three")], queue=queue))
    header = make_pull_header("GID_reader", queue, offset=0, count_max=32)
    result = run(pull(cluster.broker, header))

    messages = decode_messages(result.records, broker_name="broker-a").messages
    assert result[:4] == (PullStatus.FOUND, 3, 0, 3)
    assert [message.body for message in messages] == [b"one", b"two", b"three"]
    assert [message.queue_offset for message in messages] == [0, 1, 2]
    assert (first.msg_id, first.offset_msg_id) == (messages[0].msg_id, messages[0].offset_msg_id)


@pytest.mark.parametrize("delay", [timedelta(days=4), timedelta.max])
def test_delay_beyond_the_brokers_bound_is_refused_with_what_to_give(
    run: Run, cluster: EmbeddedCluster, topic: str, delay: timedelta
) -> None:
    with pytest.raises(BrokerError) as refused:
        run(send(publisher_of(cluster.name_server), Message(topic, b"x", delay=delay)))

    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    hint = "; give a shorter delay, or raise the broker's timerMaxDelaySec"
    assert str(refused.value).endswith(hint)


def test_pull_of_a_whole_queue_takes_large_steps(
    run: Run, cluster: EmbeddedCluster, topic: str
) -> None:
    """A Spark executor reads so: one pull brings as many messages as it asks for."""
    publisher = publisher_of(cluster.name_server)
    queue = MessageQueue(topic, "broker-a", 0)
    for _ in range(2):
        run(send_batch(publisher, [Message(topic, b"x") for _ in range(512)], queue=queue))

    header = make_pull_header("GID_reader", queue, offset=0, count_max=2048)
    result = run(pull(cluster.broker, header))

    assert len(decode_messages(result.records, broker_name="broker-a").messages) == 1_024


def stored_ms(run: Run, cluster: EmbeddedCluster, queue: MessageQueue, offset: int) -> int:
    header = make_pull_header("GID_offsets", queue, offset=offset, count_max=1)
    records = run(pull(cluster.broker, header)).records
    (message,) = decode_messages(records, broker_name="broker-a").messages
    return message.store_timestamp_ms


def test_offsets_of_queue_and_group(run: Run, cluster: EmbeddedCluster, topic: str) -> None:
    queue = MessageQueue(topic, "broker-a", 1)
    publisher = publisher_of(cluster.name_server)
    for _ in range(3):
        run(send(publisher, Message(topic, b"x"), queue=queue))
    directory = make_directory(cluster.name_server, timeout_ms=3_000)

    assert run(offsets.min_offset(cluster.broker, queue)) == 0
    assert run(offsets.max_offset(cluster.broker, queue)) == 3
    earliest = stored_ms(run, cluster, queue, 0)
    found = run(offsets.search_offset(cluster.broker, queue, timestamp_ms=earliest))
    assert found == 0
    assert run(offsets.search_offset(cluster.broker, queue, timestamp_ms=earliest + 10**9)) == 3
    run(offsets.update_offset(cluster.broker, "GID_offsets", queue=queue, offset=2))
    assert run(offsets.query_offset(cluster.broker, "GID_offsets", queue=queue)) == 2
    lags = run(administer.group_lag(directory, "GID_offsets", topic))
    assert lags[1] == QueueLag(queue, 3, 2, 1)


def test_members_are_listed_until_they_leave(
    run: Run, cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    data = heartbeat_of("me", group, topic)

    told = run(heartbeats.heartbeat_all([cluster.broker], data))

    assert told == heartbeats.HeartbeatRound(
        {}, MARKED_EXPIRY_MS, {cluster.broker: mark_version(MQ_VERSION)}
    )
    assert run(heartbeats.consumer_list(cluster.broker, group)) == ["me"]
    connections = run(heartbeats.consumer_connections(cluster.broker, group))
    assert [
        (connection.client_id, is_marked(connection.version))
        for connection in connections.connection_set
    ] == [("me", True)]
    run(heartbeats.unregister(cluster.broker, "me", consumer_group=group))
    with pytest.raises(BrokerError, match="no consumer for this group"):
        run(heartbeats.consumer_list(cluster.broker, group))


def test_heartbeat_tells_which_brokers_did_not_hear_it(run: Run, cluster: EmbeddedCluster) -> None:
    data = heartbeat_of("me", "GID_nobody", "T")

    failures, *_ = run(heartbeats.heartbeat_all([cluster.broker, "127.0.0.1:1"], data))

    assert list(failures) == ["127.0.0.1:1"]
    assert isinstance(failures["127.0.0.1:1"], ConnectFailed)


def test_lock_belongs_to_one_client(
    run: Run, cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    queues = [MessageQueue(topic, "broker-a", n) for n in range(2)]

    def lock(client_id: str) -> frozenset[MessageQueue]:
        found: handover.Locks = run(
            handover.lock_batch(cluster.broker, group, client_id=client_id, queues=queues)
        )
        return found.held

    def join(client_id: str) -> None:
        data = HeartbeatData(
            client_id=client_id, consumer_data_set=[ConsumerData(group_name=group)]
        )
        run(heartbeats.heartbeat_all([cluster.broker], data))

    # Only members get locks; over one connection the last heartbeat counts.
    assert frozenset() == lock("one")
    join("one")
    assert frozenset(queues) == lock("one")
    join("two")
    assert frozenset() == lock("two")
    run(handover.unlock_batch(cluster.broker, group, client_id="one", queues=queues[:1]))
    assert frozenset(queues[:1]) == lock("two")


def test_topics_come_and_go(run: Run, cluster: EmbeddedCluster, group: str) -> None:
    directory = make_directory(cluster.name_server, timeout_ms=3_000)
    topic = f"T_{group}"

    route = run(administer.create_topic(directory, topic, queues=3))
    run(administer.delete_topic(directory, topic))

    assert [queue.queue_id for queue in route.publish_queues] == [0, 1, 2]
    with pytest.raises(TopicRouteNotFound, match="create the topic"):
        run(routes.get_route(directory, topic, is_fresh=True))


def test_existing_topic_keeps_its_queues_and_permissions(
    run: Run, cluster: EmbeddedCluster, group: str
) -> None:
    directory = make_directory(cluster.name_server, timeout_ms=3_000)
    topic = f"T_{group}"
    run(administer.create_topic(directory, topic, queues=9))
    run(topics.update_topic(directory, run(topics.plan_topic_update(directory, topic, perm=4))))

    route = run(administer.create_topic(directory, topic, queues=2))

    assert len(route.subscribe_queues) == 9
    (change,) = run(topics.plan_topic_update(directory, topic))
    kept = change.before
    assert (kept.read_queue_nums, kept.write_queue_nums, kept.perm) == (9, 9, 4)


def test_group_without_members_and_offsets(run: Run, cluster: EmbeddedCluster) -> None:
    directory = make_directory(cluster.name_server, timeout_ms=3_000)

    assert run(administer.consumer_ids(directory, "GID_nobody")) == []
    assert run(administer.group_connections(directory, "GID_nobody")).connection_set == []


def test_gather_raises_the_first_error_after_all_have_ended(
    run: Run, cluster: EmbeddedCluster, topic: str
) -> None:
    good = MessageQueue(topic, "broker-a", 0)

    with pytest.raises(ConnectFailed):
        run(
            gather(
                [offsets.max_offset(a, good) for a in (cluster.broker, "127.0.0.1:1")], name="test"
            )
        )
    assert run(
        gather([offsets.max_offset(cluster.broker, good) for _ in range(2)], name="test")
    ) == [0, 0]


def test_first_commit_of_a_topic_at_a_broker_ends_before_the_others_begin(run: Run) -> None:
    steps: list[str] = []

    def commit(queue: MessageQueue) -> Operation[None]:
        steps.append(f"begin {queue.queue_id}")
        yield from sleep(20)
        steps.append(f"end {queue.queue_id}")

    commits = {q: commit(q) for q in [MessageQueue("T", "b", n) for n in range(3)]}
    run(offsets.commit_all(commits, attrgetter("broker_name")))

    assert steps[:2] == ["begin 0", "end 0"]
    assert steps[2:4] == ["begin 1", "begin 2"]


def test_refusal_of_the_broker_is_typed(run: Run, cluster: EmbeddedCluster) -> None:
    unknown = MessageQueue("T_unknown", "broker-a", 0)

    with pytest.raises(BrokerError) as caught:
        run(pull(cluster.broker, make_pull_header("GID_x", unknown, offset=0, count_max=1)))

    assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST


def test_messages_are_found_by_key_and_by_either_id(
    run: Run, cluster: EmbeddedCluster, topic: str
) -> None:
    publisher = publisher_of(cluster.name_server)
    sent = [
        run(send(publisher, Message(topic, b"%d" % number, keys=(f"k{number}", "all"))))
        for number in range(5)
    ]
    directory = make_directory(cluster.name_server, timeout_ms=3_000)

    one = run(administer.query_message(directory, topic, "k2"))
    latest = run(administer.query_message(directory, topic, "all", count_max=2))
    of_id = run(administer.view_message(directory, topic, sent[3].msg_id))
    of_place = run(administer.view_message(directory, topic, sent[4].offset_msg_id))

    assert [sent[2].offset_msg_id] == [message.offset_msg_id for message in one]
    assert [message.body for message in latest] == [b"3", b"4"]
    assert [of_id.body, of_place.body] == [b"3", b"4"]
    # No record begins one byte behind another.
    between = f"{int(sent[0].offset_msg_id, 16) + 1:032X}"
    for nothing in ("k9", "7F000001000030A20000000000000000", between):
        assert run(administer.query_message(directory, topic, nothing)) == []
        assert run(administer.view_message(directory, topic, nothing)) is None


def test_a_found_message_that_cannot_be_read_is_named(
    run: Run, cluster: EmbeddedCluster, topic: str
) -> None:
    msg_id = "7F000001000030A2000000000000000F"
    send_stored(
        cluster.broker, MessageQueue(topic, "broker-a", 0), b"no zlib stream", msg_id=msg_id
    )
    directory = make_directory(cluster.name_server, timeout_ms=3_000)

    with pytest.raises(UnreadableMessage, match=f"message {msg_id} in an answer of broker"):
        run(administer.view_message(directory, topic, msg_id))


def test_found_messages_that_inflate_to_much_are_refused(
    run: Run, cluster: EmbeddedCluster, topic: str
) -> None:
    packed, sys_flag = compress_body(bytes(16 << 20), CompressionType.ZSTD, level=1)
    msg_id = "7F000001000030A2000000000000001F"
    for _ in range(7):
        queue = MessageQueue(topic, "broker-a", 0)
        send_stored(cluster.broker, queue, packed, sys_flag=sys_flag, msg_id=msg_id)
    directory = make_directory(cluster.name_server, timeout_ms=3_000)

    with pytest.raises(UsageError, match="ask for fewer by count_max"):
        run(administer.query_message(directory, topic, msg_id))
    assert len(run(administer.query_message(directory, topic, msg_id, count_max=6))) == 6


def test_messages_of_a_namespace_are_found_by_its_plain_names(
    run: Run, cluster: EmbeddedCluster, topic: str
) -> None:
    publisher = publisher_of(cluster.name_server)
    run(send(publisher, Message(f"ns%{topic}", b"inside", keys=("k",))))
    directory = make_directory(cluster.name_server, timeout_ms=3_000, namespace="ns")

    (found,) = run(administer.query_message(directory, topic, "k"))

    assert (found.topic, found.body) == (topic, b"inside")
