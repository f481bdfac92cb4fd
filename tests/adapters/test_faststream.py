"""FastStream on RocketMQ, on a cluster of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, Context, FastStream, Header
from faststream.exceptions import FeatureNotSupportedException, NackMessage, RejectMessage
from faststream.specification import AsyncAPI

from sparrowmq import Admin, ConsumeFromWhere
from sparrowmq.adapters.faststream import RocketBroker, RocketMessage
from sparrowmq.testing import InProcessCluster, read_messages

pytestmark = pytest.mark.slow
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with InProcessCluster() as running:
        for topic in ("orders", "invoices", "questions", "answers"):
            running.create_topic(topic)
        yield running


@pytest.fixture
async def broker(cluster: InProcessCluster) -> AsyncIterator[RocketBroker]:
    async with RocketBroker(cluster.name_server) as made:
        yield made


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


async def bodies(cluster: InProcessCluster, topic: str, count: int) -> list[bytes]:
    found = await asyncio.to_thread(read_messages, cluster.name_server, topic, count)
    return sorted(message.body for message in found)


async def test_handlers_get_typed_bodies_and_what_they_return_is_sent(
    cluster: InProcessCluster, broker: RocketBroker
) -> None:
    seen: list[Any] = []

    @broker.subscriber("orders", group="GID_typed", consume_from_where=FIRST)
    @broker.publisher("invoices")
    async def bill(
        order: dict[str, int],
        message: Annotated[RocketMessage, Context("message")],
        shop: Annotated[str, Header()],
    ) -> dict[str, int]:
        seen.append((order, shop, message.raw_message.message.tags, message.correlation_id))
        return {"bill": order["number"]}

    await broker.start()
    headers = {"shop": "north", "tags": "A"}
    result = await broker.publish({"number": 1}, "orders", headers=headers, correlation_id="c-1")

    assert result.queue.topic == "orders"
    assert [body.replace(b":1", b": 1") for body in await bodies(cluster, "invoices", 1)] == [
        b'{"bill": 1}'
    ]
    assert seen == [({"number": 1}, "north", "A", "c-1")]


@pytest.mark.parametrize(
    ("policy", "error", "calls", "dead"),
    [
        (AckPolicy.NACK_ON_ERROR, ValueError, 2, 0),
        (AckPolicy.NACK_ON_ERROR, NackMessage, 2, 0),
        (AckPolicy.NACK_ON_ERROR, RejectMessage, 1, 1),
        (AckPolicy.REJECT_ON_ERROR, ValueError, 1, 1),
        (AckPolicy.ACK_FIRST, ValueError, 1, 0),
        (AckPolicy.MANUAL, None, 2, 0),
    ],
)
async def test_what_becomes_of_a_message_is_what_its_handler_decides(
    cluster: InProcessCluster,
    broker: RocketBroker,
    policy: AckPolicy,
    error: type[Exception] | None,
    calls: int,
    dead: int,
) -> None:
    topic = f"T_{policy.name}_{error.__name__ if error else 'none'}"
    seen: list[RocketMessage] = []

    @broker.subscriber(topic, group=f"GID_{topic}", ack_policy=policy, consume_from_where=FIRST)
    async def handle(body: str, message: Annotated[RocketMessage, Context("message")]) -> None:
        seen.append(message)
        if len(seen) > 1:
            await message.ack()
        elif error is not None:
            raise error

    await asyncio.to_thread(cluster.create_topic, topic)
    await broker.start()
    await broker.publish("x", topic)

    def dead_letters() -> int:
        with Admin(name_server=cluster.name_server) as admin:
            return len(admin.dead_letters(f"GID_{topic}"))

    await until(lambda: len(seen) >= calls)
    async with asyncio.timeout(20):
        while await asyncio.to_thread(dead_letters) != dead:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(cluster.wait_until_consumed, f"GID_{topic}", topic)
    assert calls == len(seen)


async def test_reply_goes_to_the_topic_that_the_message_names(
    cluster: InProcessCluster, broker: RocketBroker
) -> None:
    @broker.subscriber("questions", group="GID_questions", consume_from_where=FIRST)
    async def answer(body: str) -> str:
        return body.upper()

    sender = broker.publisher("questions")
    await broker.start()
    await sender.publish("when?", reply_to="answers")

    assert await bodies(cluster, "answers", 1) == [b"WHEN?"]


async def test_application_describes_itself(broker: RocketBroker) -> None:
    @broker.subscriber("orders", group="GID_shown")
    @broker.publisher("invoices")
    async def bill(order: str) -> str:
        return order

    app = FastStream(broker, specification=AsyncAPI(title="shop"))
    shown = app.schema.to_specification().to_json()

    assert all(f'"{name}"' in shown for name in ("orders", "invoices:Publisher", "rocketmq"))
    assert await broker.ping()
    assert not await RocketBroker("127.0.0.1:1").ping(timeout=1)


async def test_what_is_not_there_says_so(broker: RocketBroker) -> None:
    with pytest.raises(FeatureNotSupportedException, match="sparrowmq's own clients"):
        await broker.request("x", "orders")
