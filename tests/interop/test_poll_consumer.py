"""Our poll consumer on Apache's name server and broker, and beside Java's in one group."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sparrowmq import Admin, Message, PollConsumer, Producer, PullStatus

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PATIENCE_S = 60


def make(cluster: Any, group: str, **settings: Any) -> PollConsumer:
    settings = {"start": "first"} | settings
    return PollConsumer(group, name_server=cluster.name_server, **settings)


def fill(cluster: Any, topic: str, *, queues: int, count: int) -> list[bytes]:
    with Admin(name_server=cluster.name_server) as admin:
        admin.create_topic(topic, queues=queues)
    return send(cluster, topic, count)


def send(cluster: Any, topic: str, count: int) -> list[bytes]:
    bodies = [str(n).encode() for n in range(count)]
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for body in bodies:
            producer.send(Message(topic, body, tags="A" if body < b"5" else "B"))
    return bodies


def poll_all(consumer: PollConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
        found += [message.body for message in consumer.getmany(timeout_ms=1_000)]
    return found


def test_members_share_the_queues_and_commit_what_is_done(apache_cluster: Any) -> None:
    sent = fill(apache_cluster, "poll-share", queues=8, count=200)
    with make(apache_cluster, "GID_poll") as first, make(apache_cluster, "GID_poll") as second:
        for consumer in (first, second):
            consumer.subscribe("poll-share")
            consumer.start()
        deadline = time.monotonic() + PATIENCE_S
        found: list[bytes] = []
        while len(set(found)) < 200 or not 4 == len(first.assignment()) == len(second.assignment()):
            assert time.monotonic() < deadline, f"{len(set(found))} of 200 messages"
            for consumer in (first, second):
                found += [message.body for message in consumer.getmany(timeout_ms=50)]

    assert sorted(sent) == sorted(set(found))
    with Admin(name_server=apache_cluster.name_server) as admin:
        assert sum(lag.lag for lag in admin.group_lag("GID_poll", "poll-share")) == 0


def test_assigned_queues_and_own_commits(apache_cluster: Any) -> None:
    fill(apache_cluster, "poll-assign", queues=2, count=20)
    with make(apache_cluster, "GID_lite_assign", auto_commit=False) as consumer:
        queues = consumer.fetch_subscribe_queues("poll-assign")
        consumer.assign(queues)
        consumer.start()
        poll_all(consumer, 20)
        consumer.commit()

        assert [consumer.committed_offset(queue) for queue in queues] == [10, 10]


def test_pulls_by_hand_tell_each_status(apache_cluster: Any) -> None:
    fill(apache_cluster, "polled", queues=1, count=8)
    with make(apache_cluster, "GID_polled") as consumer:
        (queue,) = consumer.fetch_subscribe_queues("polled")

        found = consumer.pull(queue, 0, expression="A")
        assert (found.status, found.next_offset) == (PullStatus.FOUND, 8)
        assert [message.body for message in found.messages] == [b"0", b"1", b"2", b"3", b"4"]
        assert consumer.pull(queue, 8).status is PullStatus.NO_NEW_MSG
        assert consumer.pull(queue, 0, expression="C").status is PullStatus.NO_MATCHED_MSG
        assert consumer.pull(queue, 9).status is PullStatus.OFFSET_ILLEGAL


def test_java_and_python_share_the_queues(cluster: Any, start_peer: Any) -> None:
    topic = cluster.create_topic("poll-mixed", queues=8)
    java = start_peer("poll", cluster, topic=topic, group="GID_lite_mixed")
    ours: list[tuple[int, int]] = []
    with make(cluster, "GID_lite_mixed") as consumer:
        consumer.subscribe(topic)
        consumer.start()
        deadline = time.monotonic() + PATIENCE_S
        while len(consumer.assignment()) != 4:
            assert time.monotonic() < deadline, consumer.assignment()
            consumer.getmany(timeout_ms=50)
        sent = send(cluster, topic, 400)

        def of_java() -> list[tuple[int, int]]:
            return [(event["queueId"], event["offset"]) for event in java.named("message")]

        while len({*ours, *of_java()}) < len(sent):
            assert time.monotonic() < deadline, f"{len({*ours, *of_java()})} of {len(sent)}"
            ours += [(m.queue_id, m.queue_offset) for m in consumer.getmany(timeout_ms=50)]
        shares = {queue_id for queue_id, _ in ours[-50:]}
        assert shares == {queue.queue_id for queue in consumer.assignment()}

        java.stop()
        while len(consumer.assignment()) != 8:
            assert time.monotonic() < deadline, consumer.assignment()
            consumer.getmany(timeout_ms=50)
    with Admin(name_server=cluster.name_server) as admin:
        assert sum(lag.lag for lag in admin.group_lag("GID_lite_mixed", topic)) == 0
