"""Strategies of our own and of the user's, in consumers against a real broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from sparrowmq import ConsumeContext, MessageExt, MessageQueue, PushConsumer
from sparrowmq.errors import ConfigError
from sparrowmq.strategies import TopicView
from sparrowmq.strategies.by_config import AllocateMessageQueueByConfig
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

PATIENCE_S = 60


def ignore(_: list[MessageExt], __: ConsumeContext) -> None:
    """Take messages and do nothing."""


@pytest.fixture
def make_consumer(cluster: EmbeddedCluster, group: str) -> Iterator[Callable[..., PushConsumer]]:
    with ExitStack() as stack:

        def make(topics: Sequence[str], strategy: Any) -> PushConsumer:
            consumer = PushConsumer(
                group, name_server=cluster.name_server, listener=ignore, strategy=strategy
            )
            stack.enter_context(consumer)
            for topic in topics:
                consumer.subscribe(topic)
            consumer.start()
            return consumer

        yield make


@pytest.fixture
def small_topics(cluster: EmbeddedCluster, topic: str) -> list[str]:
    """Three topics of one queue each."""
    names = [f"{topic}-{letter}" for letter in "abc"]
    for name in names:
        cluster.create_topic(name, queues=1)
    return names


@pytest.mark.parametrize("strategy", ["AVG_ACROSS_TOPICS", "MINIMAL_MOVE"])
def test_small_topics_are_shared_by_all_members(
    make_consumer: Callable[..., PushConsumer], small_topics: list[str], strategy: str
) -> None:
    members = [make_consumer(small_topics, strategy) for _ in range(4)]

    def owned() -> list[str]:
        return sorted(queue.topic for member in members for queue in member.assignment())

    # The retry topic's queue, which `assignment` leaves out, counts too: four for four members.
    wait_until(
        "one queue for each member",
        lambda: (
            owned() == small_topics
            and sorted(len(member.assignment()) for member in members) == [0, 1, 1, 1]
        ),
    )


def test_bounded_hashing_gives_every_queue_one_owner(
    make_consumer: Callable[..., PushConsumer], topic: str
) -> None:
    members = [make_consumer([topic], "CONSISTENT_HASH_BOUNDED") for _ in range(2)]

    def owned() -> list[int]:
        return sorted(queue.queue_id for member in members for queue in member.assignment())

    wait_until(
        "every queue once",
        lambda: owned() == list(range(8)) and all(member.assignment() for member in members),
    )
    assert max(len(member.assignment()) for member in members) <= 5


def test_a_plain_function_is_a_strategy(
    make_consumer: Callable[..., PushConsumer], topic: str
) -> None:
    def last_member_takes_all(
        group: str, cid: str, queues: Sequence[MessageQueue], cids: Sequence[str]
    ) -> Sequence[MessageQueue] | None:
        return queues if cid == cids[-1] else None

    members = [make_consumer([topic], last_member_takes_all) for _ in range(2)]

    first, last = sorted(members, key=lambda member: str(member.client_id))
    wait_until(
        "all queues at the last member",
        lambda: (len(first.assignment()), len(last.assignment())) == (0, 8),
    )


def test_config_is_told_of_queues_that_do_not_exist_and_takes_the_others(
    make_consumer: Callable[..., PushConsumer], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sparrowmq.client")
    queues = [MessageQueue(topic, "broker-a", queue_id) for queue_id in (2, 5, 99)]
    member = make_consumer([topic], AllocateMessageQueueByConfig(queues))

    wait_until("the queues that exist", lambda: queues[:2] == member.assignment())

    text = f"strategy CONFIG gave 1 queues that do not exist, such as {queues[2]}"
    wait_until("the warning", lambda: text in caplog.text)


def test_config_of_a_topic_that_is_not_subscribed_is_refused(
    make_consumer: Callable[..., PushConsumer], topic: str
) -> None:
    queues = [MessageQueue(name, "broker-a", 0) for name in (topic, "Ordres")]

    with pytest.raises(ConfigError, match=f"gives queues of Ordres, but only {topic} is") as told:
        make_consumer([topic], AllocateMessageQueueByConfig(queues))

    assert "correct the topics" in str(told.value)


class RaisesAtTwo:
    """Sees all topics; works for one member and fails for two."""

    name = "RAISES_AT_TWO"
    requires_sparrow = True
    failures = 0

    def allocate(self, *_: object) -> list[MessageQueue]:
        raise AssertionError("asked for one topic")

    def allocate_group(
        self, group: str, cid: str, topics: Sequence[TopicView], owners: object = None
    ) -> list[MessageQueue]:
        if len(topics[0].cid_all) > 1:
            self.failures += 1
            raise RuntimeError("two are too many")
        return [queue for view in topics for queue in view.mq_all]


@pytest.mark.slow
def test_when_a_strategy_of_all_topics_raises_members_keep_what_they_have(
    make_consumer: Callable[..., PushConsumer], topic: str
) -> None:
    strategy = RaisesAtTwo()
    first = make_consumer([topic], strategy)
    wait_until("all queues at the only member", lambda: len(first.assignment()) == 8)
    second = make_consumer([topic], strategy)

    wait_until("failures at both members", lambda: strategy.failures >= 4)

    assert [len(member.assignment()) for member in (first, second)] == [8, 0]
