"""A data directory written by our broker opens in Apache's, and the reverse."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sparrowmq import Admin, Message, MessageExt, Producer, TransactionProducer, TransactionState
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC = "moved"
GROUP = "GID_moved"
UNKNOWN, COMMIT = TransactionState.UNKNOWN, TransactionState.COMMIT


@pytest.fixture
def clusters(java: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Both kinds of cluster on one data directory; only one may run at a time."""
    # The classes of the rig, which a test module cannot import.
    rig = request.getfixturevalue("rig")
    data = tmp_path / "data"
    pair = {
        "ours": rig.OurCluster(java, data),
        "apache": rig.ApacheCluster(java, data / "store", flushDiskType="SYNC_FLUSH"),
    }
    yield pair
    for cluster in pair.values():
        cluster.kill()


def lag_of(cluster: Any) -> int:
    with Admin(name_server=cluster.name_server) as admin:
        return sum(each.lag for each in admin.group_lag(GROUP, TOPIC))


def view(admin: Admin, msg_id: str) -> MessageExt:
    message = admin.view_message(TOPIC, msg_id)
    assert message is not None
    return message


@pytest.mark.parametrize(("first", "second"), [("ours", "apache"), ("apache", "ours")])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_messages_and_offsets_survive_the_move(
    clusters: Any,
    first: str,
    second: str,
    killed: bool,
    java_producer: Callable[..., Any],
    java_push_consumer: Callable[..., Any],
) -> None:
    old, new = clusters[first], clusters[second]
    old.start()
    old.create_topic(TOPIC, queues=4)
    early = java_producer(old, topic=TOPIC, count=40, prefix="early-")
    consumer = java_push_consumer(old, topic=TOPIC, group=GROUP)
    consumer.wait_for("40 messages", lambda: len(consumer.named("message")) >= 40)
    if not killed:
        wait_until("its offsets at the broker", lambda: lag_of(old) == 0, timeout_s=60)
    assert consumer.stop() == 0
    between = java_producer(old, topic=TOPIC, count=20, prefix="between-", tags="A,B")
    if killed:
        old.kill()
    else:
        old.stop()

    new.start()
    late = java_producer(new, topic=TOPIC, count=20, prefix="late-")
    resumed = java_push_consumer(new, topic=TOPIC, group=GROUP)
    anew = java_push_consumer(new, topic=TOPIC, group="GID_anew")
    unconsumed = {event["body"] for event in between + late}
    resumed.wait_for("what was left", lambda: unconsumed <= bodies_of(resumed))
    anew.wait_for("80 messages", lambda: len(anew.named("message")) >= 80)

    places = [
        (event["body"], event["queueId"], event["offset"]) for event in early + between + late
    ]
    assert sorted(places) == sorted(
        (event["body"], event["queueId"], event["offset"]) for event in anew.named("message")
    )
    with Admin(name_server=new.name_server) as admin:
        for event in early + between + late:
            assert event["offsetMsgId"] == view(admin, event["msgId"]).offset_msg_id
        found = {message.body.decode() for message in admin.query_message(TOPIC, "k7")}
    assert found == {"early-7", "between-7", "late-7"}
    if not killed:
        # A killed broker may have forgotten the last commits.
        assert bodies_of(resumed) == unconsumed


@pytest.fixture
def small_clusters(java: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Both kinds on one directory whose log has files of 1 MiB, and that ask soon for outcomes."""
    rig = request.getfixturevalue("rig")
    data = tmp_path / "data"
    # On a busy machine many rounds pass before the producer is back.
    options = ("--transaction-timeout-ms", "500", "--transaction-check-interval-ms", "1500")
    more = ("--transaction-check-max", "1000", "--log-file-mib", "1")
    pair = {
        "ours": rig.OurCluster(java, data, options=(*options, *more)),
        "apache": rig.ApacheCluster(
            java,
            data / "store",
            mappedFileSizeCommitLog=1 << 20,
            transactionTimeOut=500,
            transactionCheckInterval=1500,
            transactionCheckMax=1000,
        ),
    }
    yield pair
    for cluster in pair.values():
        cluster.kill()


def bodies_of(consumer: Any) -> set[str]:
    return {event["body"] for event in consumer.named("message")}


def offsets_of(cluster: Any, topic: str) -> tuple[int, int]:
    with Admin(name_server=cluster.name_server) as admin:
        (queue,) = admin.route(topic).subscribe_queues
        return admin.min_offset(queue), admin.max_offset(queue)


@pytest.mark.parametrize(("first", "second"), [("ours", "apache"), ("apache", "ours")])
def test_what_waits_and_what_has_expired_is_the_same_after_the_move(
    small_clusters: Any, tmp_path: Path, first: str, second: str
) -> None:
    old, new = small_clusters[first], small_clusters[second]
    old.start()
    for topic in ("expired", "delayed", "half"):
        old.create_topic(topic, queues=1)
    with Producer("GID_p", name_server=old.name_server) as producer:
        for _ in range(40):
            producer.send(Message("expired", os.urandom(100_000)))
        # Of 10 seconds.
        delayed = producer.send(Message("delayed", b"later", delay_level=3))
    with TransactionProducer("GID_tx", name_server=old.name_server, check=lambda _: UNKNOWN) as tx:
        tx.send_half(Message("half", b"half"))
        assert [offsets_of(old, topic)[1] for topic in ("delayed", "half")] == [0, 0]
    assert delayed.msg_id
    old.stop()
    # As it is when it has expired.
    (tmp_path / "data" / "store" / "commitlog" / ("0" * 20)).unlink()

    new.start()
    low, high = offsets_of(new, "expired")
    with TransactionProducer("GID_tx", name_server=new.name_server, check=lambda _: COMMIT) as tx:
        wait_until("delayed", lambda: offsets_of(new, "delayed")[1] == 1, timeout_s=60)
        wait_until("committed", lambda: offsets_of(new, "half")[1] == 1, timeout_s=60)

    assert high == 40
    assert 9 <= low <= 12


def test_a_store_of_other_file_sizes_keeps_them(
    java: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Apache's broker takes no queue file of another size, and reads other index files wrongly."""
    rig = request.getfixturevalue("rig")
    data = tmp_path / "data"
    apache = rig.ApacheCluster(
        java,
        data / "store",
        mappedFileSizeConsumeQueue=40_000,
        maxHashSlotNum=500,
        maxIndexNum=90,
        flushDiskType="SYNC_FLUSH",
    )
    ours = rig.OurCluster(java, data)
    sent: list[str] = []
    try:
        for cluster in (apache, ours, apache):
            cluster.start()
            if not sent:
                cluster.create_topic(TOPIC, queues=2)
            with Producer("GID_p", name_server=cluster.name_server) as producer:
                for _ in range(50):
                    key = f"k{len(sent)}"
                    producer.send(Message(TOPIC, key.encode(), keys=(key,)))
                    sent.append(key)
            with Admin(name_server=cluster.name_server) as admin:
                found = {
                    key: [message.body.decode() for message in admin.query_message(TOPIC, key)]
                    for key in sent
                }
            cluster.stop()
            assert found == {key: [key] for key in sent}
    finally:
        for cluster in (ours, apache):
            cluster.kill()

    queue_files = list((data / "store" / "consumequeue" / TOPIC).glob("*/*"))
    assert {path.stat().st_size for path in queue_files} == {40_000}
    index_files = list((data / "store" / "index").iterdir())
    assert len(index_files) >= 3
    assert {path.stat().st_size for path in index_files} == {40 + 4 * 500 + 20 * 90}


@pytest.mark.parametrize("java", ["5.5.0"], indirect=True, scope="session")
@pytest.mark.parametrize(("first", "second"), [("ours", "apache"), ("apache", "ours")])
def test_messages_with_a_time_of_their_own_move(clusters: Any, first: str, second: str) -> None:
    old, new = clusters[first], clusters[second]
    old.start()
    old.create_topic(TOPIC, queues=1)
    with Producer(GROUP, name_server=old.name_server) as producer:
        producer.send(Message(TOPIC, b"before", delay=timedelta(seconds=2)))
        producer.send(Message(TOPIC, b"after", delay=timedelta(seconds=25)))
    wait_until("the first", lambda: bodies(old) == [b"before"], timeout_s=30)
    old.stop()

    new.start()

    wait_until("the second", lambda: b"after" in bodies(new), timeout_s=90)
    assert bodies(new) == [b"before", b"after"]


def bodies(cluster: Any) -> list[bytes]:
    with Admin(name_server=cluster.name_server) as admin:
        return [message.body for message in admin.messages_since(TOPIC, 0, 10)]
