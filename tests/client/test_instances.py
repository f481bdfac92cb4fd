"""Consumers of one process that exclude each other."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from sparrowmq import AsyncPushConsumer, LitePullConsumer, MessageModel, MessageQueue, PushConsumer
from sparrowmq.client.instances import INSTANCES
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.testing.embedded import EmbeddedCluster

pytestmark = pytest.mark.slow


class Stage:
    """Makes consumers of one group, and closes them."""

    def __init__(self, cluster: EmbeddedCluster, group: str, stack: ExitStack) -> None:
        self._cluster = cluster
        self._group = group
        self._stack = stack

    def make(self, **settings: Any) -> PushConsumer:
        settings = {"listener": lambda *_: None, "client_ip": "10.0.0.1"} | settings
        group = settings.pop("group", self._group)
        consumer = PushConsumer(group, name_server=self._cluster.name_server, **settings)
        return self._stack.enter_context(consumer)

    def make_lite(self, **settings: Any) -> LitePullConsumer:
        consumer = LitePullConsumer(self._group, name_server=self._cluster.name_server, **settings)
        return self._stack.enter_context(consumer)


@pytest.fixture
def stage(cluster: EmbeddedCluster, group: str) -> Any:
    with ExitStack() as stack:
        yield Stage(cluster, group, stack)


def test_second_consumer_of_a_group_under_one_client_id_is_refused(
    stage: Stage, group: str
) -> None:
    first, second = (stage.make(instance_name="same") for _ in range(2))
    other_group = stage.make(instance_name="same", group=f"{group}_other")
    first.start()
    other_group.start()

    with pytest.raises(UsageError) as refused:
        second.start()

    assert group in str(refused.value)
    assert "10.0.0.1@same" in str(refused.value)
    assert "its own instance_name" in str(refused.value)
    first.close()
    second.start()


def test_broadcasting_consumers_that_would_share_their_offsets_are_refused(stage: Stage) -> None:
    first, second = (stage.make(message_model=MessageModel.BROADCASTING) for _ in range(2))
    first.start()

    with pytest.raises(UsageError, match=r"10\.0\.0\.1@DEFAULT"):
        second.start()


def test_other_face_and_other_kind_are_refused_too(
    stage: Stage, cluster: EmbeddedCluster, group: str
) -> None:
    same = {"client_ip": "10.0.0.1", "instance_name": "same"}
    stage.make(**same).start()
    lite = stage.make_lite(**same)

    async def start() -> None:
        async with AsyncPushConsumer(
            group, name_server=cluster.name_server, listener=lambda *_: None, **same
        ) as consumer:
            await consumer.start()

    for begin in (lite.start, lambda: asyncio.run(start())):
        with pytest.raises(UsageError, match=r"10\.0\.0\.1@same in this process already"):
            begin()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"T": "*"}, {"T": "a"}),
        ({"T": "a || b"}, {"T": "a || c"}),
        ({"T": "*"}, {"U": "*"}),
        ({"T": "*"}, {"T": "*", "U": "*"}),
    ],
)
def test_unequal_subscriptions_of_a_group_are_refused(
    stage: Stage, group: str, first: dict[str, str], second: dict[str, str]
) -> None:
    consumers = [stage.make(), stage.make()]
    for consumer, subscriptions in zip(consumers, (first, second), strict=True):
        for topic, expression in subscriptions.items():
            consumer.subscribe(topic, expression)
    consumers[0].start()

    with pytest.raises(ConfigError) as refused:
        consumers[1].start()

    text = str(refused.value)
    assert all(consumer.client_id in text for consumer in consumers)
    assert all(f"{t} ({e})" in text for topics in (first, second) for t, e in topics.items())
    assert f"consumer group {group}" in text
    assert "Subscribe the same" in text


def test_equal_subscriptions_in_other_words_are_equal(stage: Stage) -> None:
    consumers = [stage.make(), stage.make(), stage.make()]
    for consumer, expression in zip(consumers, ("a || b", "b||a", None), strict=True):
        if expression is not None:
            consumer.subscribe("T", expression)
        consumer.start()
    lite = stage.make_lite()
    lite.assign([MessageQueue("U", "broker-a", 0)])
    lite.start()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_forked_process_has_no_consumers(stage: Stage) -> None:
    first, second = (stage.make(instance_name="same") for _ in range(2))
    first.start()

    child = os.fork()
    if child == 0:
        code = 1
        try:
            INSTANCES.register(second._subscriber)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)

    assert 0 == status
