"""A data directory written by our broker opens in Apache's, and the reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparrowmq import Admin, MessageExt
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC = "moved"
GROUP = "GID_moved"


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
        wait_until("its offsets at the broker", lambda: 0 == lag_of(old), timeout_s=60)
    assert 0 == consumer.stop()
    between = java_producer(old, topic=TOPIC, count=20, prefix="between-", tags="A,B")
    if killed:
        old.kill()
    else:
        old.stop()

    new.start()
    late = java_producer(new, topic=TOPIC, count=20, prefix="late-")
    resumed = java_push_consumer(new, topic=TOPIC, group=GROUP)
    anew = java_push_consumer(new, topic=TOPIC, group="GID_anew")
    resumed.wait_for("40 messages", lambda: len(resumed.named("message")) >= 40)
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
    assert {"early-7", "between-7", "late-7"} == found
    resumed_bodies = {event["body"] for event in resumed.named("message")}
    assert {event["body"] for event in between + late} <= resumed_bodies
    if not killed:
        # A killed broker may have forgotten the last commits.
        assert 40 == len(resumed_bodies)
