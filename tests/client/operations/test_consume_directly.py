"""A message that a tool has a consumer consume: asked through the broker, by both faces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from poison import send_stored
from sparrowmq import (
    Admin,
    AsyncPushConsumer,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import invoke
from sparrowmq.errors import BrokerError
from sparrowmq.protocol.bodies import ConsumeMessageDirectlyResult, decode_body
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow


def ask(
    cluster: EmbeddedCluster, group: str, *, client_id: str, msg_id: str
) -> ConsumeMessageDirectlyResult | str | None:
    """Ask as a tool does; return the result, or the error's text."""
    fields = {"consumerGroup": group, "clientId": client_id, "msgId": msg_id}
    request = RemotingCommand(code=RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=fields)
    with BlockingDriver() as driver:
        reply = driver.run(invoke(cluster.broker, request, timeout_ms=15_000))
    if reply.code != 0:
        return reply.remark
    return decode_body(ConsumeMessageDirectlyResult, reply.body)


def is_known(admin: Admin, group: str) -> bool:
    try:
        return bool(admin.consumer_ids(group))
    except BrokerError:
        return False


@pytest.fixture
def sent(producer: Producer, topic: str) -> str:
    """The id of a message that no consumer of these tests would get otherwise."""
    return producer.send(Message(topic, b"old", tags="A")).offset_msg_id


class Listener:
    """Does as it is told, and keeps what it gets."""

    def __init__(self, does: Callable[[Any], Any]) -> None:
        self._does = does
        self.messages: list[MessageExt] = []

    def __call__(self, messages: list[MessageExt], context: Any) -> Any:
        self.messages += messages
        return self._does(context)


def fail(_: object) -> None:
    raise ValueError("no such flight")


def hold(context: Any) -> ConsumeOrderlyStatus:
    context.auto_commit = False
    return ConsumeOrderlyStatus.ROLLBACK


@pytest.fixture
def start(cluster: EmbeddedCluster, admin: Admin, topic: str, group: str) -> Iterator[Any]:
    """Start a push consumer."""
    with ExitStack() as stack:

        def begin(listener: Listener, *, orderly: bool) -> PushConsumer:
            made = PushConsumer(
                group, name_server=cluster.name_server, listener=listener, orderly=orderly
            )
            stack.enter_context(made).subscribe(topic, "B")
            made.start()
            wait_until("it is known", lambda: is_known(admin, group))
            return made

        yield begin


@pytest.mark.parametrize(
    ("orderly", "does", "outcome", "auto_commit"),
    [
        (False, lambda _: None, "CR_SUCCESS", True),
        (False, lambda _: ConsumeStatus.RECONSUME_LATER, "CR_LATER", True),
        (False, fail, "CR_THROW_EXCEPTION", True),
        (False, lambda _: "done", "CR_THROW_EXCEPTION", True),
        (True, lambda _: None, "CR_SUCCESS", True),
        (True, lambda _: ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, "CR_LATER", True),
        (True, lambda _: ConsumeOrderlyStatus.COMMIT, "CR_COMMIT", True),
        (True, hold, "CR_ROLLBACK", False),
    ],
)
def test_outcomes_have_rocketmqs_names(
    cluster: EmbeddedCluster,
    start: Any,
    sent: str,
    *,
    orderly: bool,
    does: Callable[[Any], Any],
    outcome: str,
    auto_commit: bool,
) -> None:
    listener = Listener(does)
    consumer = start(listener, orderly=orderly)

    result = ask(cluster, consumer.group, client_id=consumer.client_id, msg_id=sent)

    assert isinstance(result, ConsumeMessageDirectlyResult)
    assert (
        result.consume_result,
        result.order,
        result.auto_commit,
    ) == (outcome, orderly, auto_commit)
    assert [(m.body, m.tags, m.broker_name) for m in listener.messages] == [
        (b"old", "A", "broker-a")
    ]
    assert ("no such flight" in (result.remark or "")) == (does is fail)
    # It counts for nothing else.
    assert (consumer.counters.delivered, consumer.counters.failed) == (0, 0)


async def test_asyncio_face_answers_by_its_listener(
    cluster: EmbeddedCluster, admin: Admin, sent: str, topic: str, group: str
) -> None:
    got: list[bytes] = []

    async def listen(messages: list[MessageExt], _: Any) -> None:
        await asyncio.sleep(0)
        got.extend(message.body for message in messages)

    async with AsyncPushConsumer(
        group, {topic: "B"}, name_server=cluster.name_server, listener=listen
    ) as consumer:
        while not await asyncio.to_thread(is_known, admin, group):
            await asyncio.sleep(0.01)
        result = await asyncio.to_thread(
            ask, cluster, group, client_id=consumer.client_id, msg_id=sent
        )

    assert isinstance(result, ConsumeMessageDirectlyResult)
    assert (result.consume_result, got) == ("CR_SUCCESS", [b"old"])


def test_a_message_that_cannot_be_read_is_refused_with_the_reason(
    cluster: EmbeddedCluster, start: Any, topic: str
) -> None:
    listener = Listener(lambda _: None)
    consumer = start(listener, orderly=False)
    poison = send_stored(cluster.broker, MessageQueue(topic, "broker-a", 0), b"no zlib stream")

    told = ask(cluster, consumer.group, client_id=consumer.client_id, msg_id=poison)

    assert "the message cannot be read: its body is not a zlib stream" in str(told)
    assert listener.messages == []


def test_consumer_that_polls_has_no_listener_to_ask(
    cluster: EmbeddedCluster, admin: Admin, sent: str, topic: str, group: str
) -> None:
    with PollConsumer(group, {topic: "B"}, name_server=cluster.name_server) as consumer:
        wait_until("it is known", lambda: is_known(admin, group))

        told = ask(cluster, group, client_id=consumer.client_id, msg_id=sent)

    assert isinstance(told, str)
    assert f"The Consumer Group <{group}> not exist" in told
