"""A consumer that pulls no faster than it is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from play import Play, PlayedTask, make_idle_subscriber
from sparrowmq import Message, MessageQueue, PollConsumer, Producer, PushConsumer
from sparrowmq.client.operations import pull_loop
from sparrowmq.client.route_cache import route_from
from sparrowmq.membership.actions import Pull
from sparrowmq.protocol.bodies import BrokerData, TopicRouteAnswer
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.subscription import parse_subscription
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

RATE, PULLED, COUNT = 50, 5, 30

pytestmark = pytest.mark.slow


@pytest.fixture
def full_topic(cluster: EmbeddedCluster, numbers: Iterator[int]) -> str:
    topic = f"T{next(numbers)}"
    cluster.create_topic(topic, queues=1)
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        producer.send_batch([Message(topic, b"x")] * COUNT)
    return topic


@pytest.mark.parametrize("is_polled", [False, True])
def test_pulls_keep_to_the_rate(
    cluster: EmbeddedCluster, full_topic: str, group: str, *, is_polled: bool
) -> None:
    settings: dict[str, Any] = {
        "name_server": cluster.name_server,
        "start": "first",
        "messages_per_s_max": RATE,
        "pull_batch_size": PULLED,
    }
    came_s: list[float] = []

    def take(messages: Any, context: Any = None) -> None:
        came_s.extend(time.monotonic() for _ in messages)

    consumer: Any
    if is_polled:
        consumer = PollConsumer(group, **settings)
    else:
        consumer = PushConsumer(group, listener=take, **settings)
    with consumer:
        consumer.subscribe(full_topic)
        # Not the first message's time: on a busy machine its call may come late.
        begun_s = time.monotonic()
        consumer.start()
        while is_polled and len(came_s) < COUNT:
            take(consumer.poll(timeout_ms=1_000))
        wait_until("all", lambda: len(came_s) == COUNT)

    # What one pull brought comes at once, and is paid for before the next.
    assert came_s[-1] - begun_s >= 0.9 * (COUNT - PULLED) / RATE
    assert consumer.counters.pulled == COUNT


def test_queues_have_their_turns_one_after_another(cluster: EmbeddedCluster, group: str) -> None:
    cluster.create_topic("turns", queues=8)
    came_s: list[float] = []
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for _ in range(10):
            producer.send_batch([Message("turns", b"x")] * 8)
    with PushConsumer(
        group,
        name_server=cluster.name_server,
        listener=lambda messages, context: came_s.extend(time.monotonic() for _ in messages),
        start="first",
        messages_per_s_max=10,
    ) as consumer:
        consumer.subscribe("turns")
        begun_s = time.monotonic()
        consumer.start()
        wait_until("a second's messages and one more", lambda: len(came_s) > 10)

    # A tenth of a second for each, though eight queues have more to give.
    assert came_s[10] - begun_s >= 0.9


@pytest.mark.parametrize(("count", "next_ms"), [(0, 1_000), (1, 1_020), (5, 1_100)])
def test_pull_that_finds_nothing_gives_its_turn_back(count: int, next_ms: int) -> None:
    subscriber = make_idle_subscriber()
    subscriber.next_pull_ms = 1_020.0
    pull_loop._count_pulled(subscriber, RATE, count, 1_000)

    assert subscriber.next_pull_ms == next_ms


@pytest.mark.parametrize(("pulling", "count_max"), [(1, 10), (4, 2), (99, 1)])
def test_queues_that_are_pulled_at_once_share_the_messages_of_a_second(
    pulling: int, count_max: int
) -> None:
    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        fields = {"nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5"}
        fields["suggestWhichBrokerId"] = "0"
        return response_to(request, ResponseCode.PULL_NOT_FOUND, ext_fields=fields)

    queues = [MessageQueue("T", "b", number) for number in range(pulling)]
    subscriber, run = make_idle_subscriber(messages_per_s_max=10), Play(answer)
    subscriber.subscriptions["T"] = parse_subscription("T", "*", sub_version=0)
    route = TopicRouteAnswer(broker_datas=[BrokerData(broker_name="b", broker_addrs={0: "b:1"})])
    subscriber.routes.update(route_from("T", route, now_ms=0))
    subscriber.pulls.update({queue: PlayedTask("pull") for queue in queues})
    run(pull_loop._pull_once(subscriber, Pull(queues[0], 1, 5)))

    ((_, pull),) = run.requests
    assert (pull.ext_fields or {})["maxMsgNums"] == str(count_max)
