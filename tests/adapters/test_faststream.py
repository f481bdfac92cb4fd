"""FastStream on RocketMQ, on a cluster of ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, Context, FastStream, Header
from faststream.exceptions import (
    FeatureNotSupportedException,
    NackMessage,
    RejectMessage,
    StopConsume,
    SubscriberNotFound,
)
from faststream.specification import AsyncAPI

from sparrowmq import Admin, AsyncAdmin, Message
from sparrowmq.adapters.faststream import (
    RocketBroker,
    RocketMessage,
    RocketResponse,
    RocketRouter,
    TestRocketBroker,
)
from sparrowmq.errors import BrokerError, ConfigError, InvokeTimeout, UsageError
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.testing import InProcessCluster, read_messages

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with InProcessCluster() as running:
        for topic in ("orders", "invoices", "questions", "answers", "unanswered"):
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

    @broker.subscriber("orders", group="GID_typed", start="first")
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

    @broker.subscriber(topic, group=f"GID_{topic}", ack_policy=policy, start="first")
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
    subscriber: Any = broker.subscribers[0]
    assert not subscriber._listening
    await broker.stop()
    assert subscriber._closing.done()
    assert calls == len(seen)


async def consume_in_order(
    cluster: InProcessCluster,
    broker: RocketBroker,
    topic: str,
    handle: Callable[[str, RocketMessage], Awaitable[None]],
    **settings: Any,
) -> None:
    """Send a, b and c of one sharding key, and consume them in order until all are done."""

    @broker.subscriber(topic, group=f"GID_{topic}", orderly=True, start="first", **settings)
    async def handler(body: str, message: Annotated[RocketMessage, Context("message")]) -> None:
        await handle(body, message)

    await asyncio.to_thread(cluster.create_topic, topic)
    for body in "abc":
        await broker.publish(body, topic, headers={"sharding_key": "one"})
    await broker.start()
    await asyncio.to_thread(cluster.wait_until_consumed, f"GID_{topic}", topic)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (AckPolicy.NACK_ON_ERROR, ValueError),
        (AckPolicy.NACK_ON_ERROR, NackMessage),
        (AckPolicy.MANUAL, None),
    ],
)
async def test_failed_message_in_order_comes_again_before_the_next(
    cluster: InProcessCluster,
    broker: RocketBroker,
    policy: AckPolicy,
    error: type[Exception] | None,
) -> None:
    seen: list[str] = []

    async def fail_once(body: str, message: RocketMessage) -> None:
        seen.append(body)
        if seen == ["a", "b"]:
            if error is not None:
                raise error
        elif policy is AckPolicy.MANUAL:
            await message.ack()

    topic = f"T_ordered_{policy.name}_{error.__name__ if error else 'none'}"
    await consume_in_order(cluster, broker, topic, fail_once, ack_policy=policy)

    assert seen == ["a", "b", "b", "c"]


async def test_failed_message_in_order_comes_again_with_its_batch(
    cluster: InProcessCluster, broker: RocketBroker
) -> None:
    seen: list[str] = []

    async def fail_once(body: str, message: RocketMessage) -> None:
        seen.append(body)
        if seen == ["a", "b"]:
            raise NackMessage

    batch = {"consume_message_batch_max_size": 3}
    await consume_in_order(cluster, broker, "T_ordered_batch", fail_once, **batch)

    assert seen == ["a", "b", "a", "b", "c"]


async def test_decision_of_the_handler_stands_where_the_policy_acknowledges(
    cluster: InProcessCluster, broker: RocketBroker
) -> None:
    seen: list[str] = []

    async def return_once(body: str, message: RocketMessage) -> None:
        seen.append(body)
        if seen == ["a"]:
            await message.nack()
        elif seen[-1] == "b":
            await message.ack()
            if seen.count("b") == 1:
                raise NackMessage

    await consume_in_order(cluster, broker, "T_ordered_decided", return_once)

    assert seen == ["a", "a", "b", "c"]


async def test_message_in_order_is_not_rejected_but_comes_again(
    cluster: InProcessCluster, broker: RocketBroker
) -> None:
    seen: list[str] = []

    async def reject_once(body: str, message: RocketMessage) -> None:
        seen.append(body)
        if seen == ["a"]:
            with pytest.raises(FeatureNotSupportedException, match="holds its queue"):
                await message.reject()
            raise RejectMessage

    await consume_in_order(cluster, broker, "T_ordered_rejected", reject_once)

    assert seen == ["a", "a", "b", "c"]
    with pytest.raises(UsageError, match=r"orderly=True .* max_reconsume_times"):
        broker.subscriber(
            "orders", group="GID_x", orderly=True, ack_policy=AckPolicy.REJECT_ON_ERROR
        )


async def test_headers_come_back_as_they_were_sent(
    cluster: InProcessCluster, broker: RocketBroker
) -> None:
    seen: list[tuple[dict[str, str], str | None]] = []

    @broker.subscriber("headers", group="GID_headers", start="first")
    async def handle(message: Annotated[RocketMessage, Context("message")]) -> None:
        seen.append((message.headers, message.content_type))

    await asyncio.to_thread(cluster.create_topic, "headers")
    headers: dict[str, object] = {
        "tags": "new",
        "sharding_key": "k-1",
        "shop": "north",
        "retries": 0,
        "note": "",
        "gate": None,
    }
    await broker.publish("x", "headers", headers=headers)
    await broker.start()
    await until(lambda: seen)

    came = {"tags": "new", "sharding_key": "k-1", "shop": "north", "retries": "0"}
    assert seen == [(came, "text/plain")]


async def test_handler_may_stop_its_subscriber(
    cluster: InProcessCluster, broker: RocketBroker
) -> None:
    await asyncio.to_thread(cluster.create_topic, "stopped")
    seen: list[str] = []

    @broker.subscriber("stopped", group="GID_stopped", start="first")
    async def handle(body: str) -> None:
        seen.append(body)
        raise StopConsume

    await broker.start()
    await broker.publish("x", "stopped")
    await until(lambda: seen)

    def has_members() -> bool:
        with Admin(name_server=cluster.name_server) as admin:
            try:
                return bool(admin.consumer_connections("GID_stopped").connection_set)
            except BrokerError as error:
                return error.code != ResponseCode.CONSUMER_NOT_ONLINE

    # Sooner than a consumer that waits for its own listener, and gives up after its drain time.
    async with asyncio.timeout(5):
        while await asyncio.to_thread(has_members):
            await asyncio.sleep(0.01)


async def test_reply_goes_to_the_topic_that_the_message_names(
    cluster: InProcessCluster, broker: RocketBroker
) -> None:
    @broker.subscriber("questions", group="GID_questions", start="first")
    async def answer(body: str) -> str:
        return body.upper()

    sender = broker.publisher("questions")
    await broker.start()
    await sender.publish("when?", reply_to="answers")

    assert await bodies(cluster, "answers", 1) == [b"WHEN?"]


async def test_application_describes_itself(broker: RocketBroker) -> None:
    @broker.subscriber("orders", group="GID_shown")
    @broker.publisher("invoices")
    async def bill(order: str) -> RocketResponse:
        return RocketResponse(order)

    app = FastStream(broker, specification=AsyncAPI(title="shop"))
    shown = app.schema.to_specification().to_json()

    assert all(f'"{name}"' in shown for name in ("orders", "invoices:Publisher", "rocketmq"))
    assert await broker.ping()
    assert not await RocketBroker("127.0.0.1:1").ping(timeout=1)


async def test_a_request_gets_what_the_handler_returns(broker: RocketBroker) -> None:
    @broker.subscriber("questions", group="GID_asked", start="first")
    async def answer(body: str) -> RocketResponse:
        return RocketResponse(body.upper(), headers={"from": "desk"})

    await broker.start()
    reply = await broker.request("when?", "questions", correlation_id="c-7", timeout=30)

    assert await reply.decode() == "WHEN?"
    assert (reply.headers["from"], reply.correlation_id) == ("desk", "c-7")
    begin = time.monotonic()
    with pytest.raises(InvokeTimeout, match="no reply to message"):
        await broker.publisher("unanswered").request("x", timeout=0.4)
    # Deadlines are whole milliseconds.
    assert time.monotonic() - begin > 0.39


@pytest.mark.parametrize("result", [None, ""])
async def test_a_handler_without_a_result_is_done_and_replies_so(
    broker: RocketBroker, cluster: InProcessCluster, result: str | None
) -> None:
    name, calls, posted = f"without_{result is None}", list[str](), list[object]()
    for topic in (name, f"{name}_posted"):
        cluster.create_topic(topic)

    @broker.subscriber(name, group="GID_answer", start="first")
    @broker.publisher(f"{name}_posted")
    async def answer(body: str) -> str | None:
        calls.append(body)
        return result

    @broker.subscriber(f"{name}_posted", group="GID_post", start="first")
    async def post(body: str | None) -> None:
        posted.append(body)

    await broker.start()
    reply = await broker.request("when?", name, timeout=30)

    assert await reply.decode() == result
    await until(lambda: posted)
    assert (calls, posted) == (["when?"], [result])


async def test_a_request_whose_sender_is_gone_is_handled_once(
    broker: RocketBroker, cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    calls, gone = list[str](), asyncio.Event()
    cluster.create_topic("late")

    @broker.subscriber("late", group="GID_late", start="first")
    async def answer(body: str) -> str:
        calls.append(body)
        await gone.wait()
        return body

    await broker.start()
    async with RocketBroker(cluster.name_server) as asker:
        await asker.connect()
        with pytest.raises(InvokeTimeout):
            await asker.request("first", "late", timeout=0.1)
    gone.set()
    await broker.request("second", "late", timeout=30)
    await until(lambda: "cannot be delivered" in caplog.text)

    await asyncio.to_thread(cluster.wait_until_consumed, "GID_late", "late")
    assert sorted(calls) == ["first", "second"]


async def test_a_test_broker_runs_handlers_without_a_cluster() -> None:
    broker, router = RocketBroker("127.0.0.1:1"), RocketRouter(prefix="eu_")

    @router.subscriber("orders", group="GID_billing", expression="new || paid")
    @router.publisher("bills")
    async def bill(order: dict[str, int]) -> RocketResponse:
        if order["number"] < 0:
            raise ValueError(order)
        return RocketResponse({"bill": order["number"]}, keys=("k",))

    @broker.subscriber("eu_bills", group="GID_posting")
    async def post(parcel: dict[str, int], tag: Annotated[str, Header("tags", default="")]) -> str:
        return f"posted {parcel['bill']}{tag}"

    took: list[str] = []

    def add_member(group: str) -> None:
        @broker.subscriber("shared", group=group)
        async def take(body: str) -> None:
            took.append(group)

    for group in ("GID_one", "GID_two", "GID_one"):
        add_member(group)

    @broker.subscriber("quiet", group="GID_quiet", no_reply=True)
    async def keep(body: str) -> str:
        return body

    broker.include_router(router)
    async with TestRocketBroker(broker) as tested:
        await tested.publish({"number": 1}, "eu_orders", headers={"tags": "old"})
        await tested.publish_batch({"number": 2}, topic="eu_orders", headers={"tags": "paid"})
        reply = await tested.request({"bill": 3}, "eu_bills")
        with pytest.raises(ValueError, match="-4"):
            await tested.publish({"number": -4}, "eu_orders", headers={"tags": "new"})
        with pytest.raises(SubscriberNotFound):
            await tested.request("x", "nowhere")
        with pytest.raises(SubscriberNotFound):
            await tested.request("x", "quiet")
        await tested.publish("x", "shared")

        post.mock.assert_any_call({"bill": 2})
        assert bill.mock.call_count == 2
        assert sorted(took) == ["GID_one", "GID_two"]
        assert await reply.decode() == "posted 3"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ("x", {"keys": "order-1"}),
        ("x", {"keys": ("a b",)}),
        ("x", {"headers": {"KEYS": "order-1"}}),
        ("x", {"headers": {"tags": "a || b"}}),
        (b"", {}),
    ],
)
async def test_a_message_that_no_cluster_takes_is_refused_by_the_test_broker_too(
    cluster: InProcessCluster, body: Any, fields: dict[str, Any]
) -> None:
    cluster.create_topic("refused", 1)
    real = RocketBroker(cluster.name_server)
    real.subscriber("refused", group="GID_refused")(print)
    async with real:
        with pytest.raises(UsageError) as expected:
            await real.publish(body, "refused", **fields)
    async with TestRocketBroker(real) as tested:
        with pytest.raises(UsageError) as caught:
            await tested.publish(body, "refused", **fields)
        with pytest.raises(UsageError):
            await tested.publish_batch(body, topic="refused", **fields)

    assert str(caught.value) == str(expected.value)


async def test_stopped_broker_leaves_no_client_open_and_may_start_again(
    cluster: InProcessCluster,
) -> None:
    broker = RocketBroker(cluster.name_server)
    await broker.start()
    producer: Any = broker.config.producer
    client = producer.client
    await broker.stop()

    with pytest.raises(UsageError, match="closed"):
        await client.send(Message("orders", b"x"))
    await broker.start()
    assert (await broker.publish("x", "orders")).queue.topic == "orders"
    await broker.stop()


async def test_broker_that_is_started_again_has_one_member_of_each_group(
    cluster: InProcessCluster,
) -> None:
    seen: list[str] = []
    broker = RocketBroker(cluster.name_server)

    @broker.subscriber("started_twice", group="GID_twice", start="first")
    async def take(body: str) -> None:
        seen.append(body)

    cluster.create_topic("started_twice")
    for _ in range(2):
        await broker.start()
        await broker.publish("x", "started_twice")
    await until(lambda: len(seen) == 2)
    async with AsyncAdmin(name_server=cluster.name_server) as admin:
        assert len(await admin.consumer_ids("GID_twice")) == 1
        await broker.stop()
        assert not await admin.consumer_ids("GID_twice")


async def test_stop_that_follows_a_cancelled_one_waits_for_the_handlers(
    cluster: InProcessCluster,
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    seen: list[str] = []
    broker = RocketBroker(cluster.name_server)

    @broker.subscriber("cut_short", group="GID_cut_short", start="first")
    async def take(body: str) -> None:
        begun.set()
        await may_end.wait()
        seen.append(body)

    cluster.create_topic("cut_short")
    await broker.start()
    await broker.publish("x", "cut_short")
    await begun.wait()
    stop = asyncio.create_task(broker.stop())
    subscriber: Any = broker.subscribers[0]
    await until(lambda: subscriber._closing)
    stop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stop
    asyncio.get_running_loop().call_soon(may_end.set)
    await broker.stop()

    assert seen == ["x"]
    assert not [each for each in asyncio.all_tasks() if "GID_cut_short" in each.get_name()]
    await asyncio.to_thread(cluster.wait_until_consumed, "GID_cut_short", "cut_short")


async def test_broker_that_is_not_connected_says_so(cluster: InProcessCluster) -> None:
    broker = RocketBroker(cluster.name_server)

    with pytest.raises(UsageError, match="is not connected; await its start"):
        await broker.publish("x", "orders")


async def test_broker_sends_to_its_cluster_again_behind_a_test(broker: RocketBroker) -> None:
    async with TestRocketBroker(broker) as tested:
        handed = await tested.publish("x", "orders")
    await broker.start()
    sent = await broker.publish("x", "orders")

    assert [result.queue.broker_name for result in (handed, sent)] == ["test", "broker-a"]


async def test_messages_without_a_correlation_id_get_one_each() -> None:
    broker = RocketBroker("127.0.0.1:1")
    ids: list[str | None] = []

    @broker.subscriber("orders", group="GID_ids")
    async def take(message: Annotated[RocketMessage, Context("message")]) -> None:
        ids.append(message.correlation_id)

    async with TestRocketBroker(broker) as tested:
        await tested.publish("a", "orders")
        await tested.publish("b", "orders")

    assert all(ids)
    assert len(set(ids)) == 2


async def test_routers_batches_keys_and_delays_reach_handlers(
    broker: RocketBroker, cluster: InProcessCluster
) -> None:
    for topic in ("eu_parcels", "eu_bills"):
        cluster.create_topic(topic, 1)
    router = RocketRouter(prefix="eu_")
    got: list[tuple[str, tuple[str, ...]]] = []
    done = asyncio.Event()

    @router.subscriber("parcels", group="GID_router", start="first", title="Parcels")
    @router.publisher("bills", description="What is to pay")
    async def take(parcel: str, message: Annotated[RocketMessage, Context("message")]) -> Any:
        got.append((parcel, message.raw_message.message.keys))
        if len(got) == 3:
            done.set()
        return RocketResponse(parcel, keys=("bill",), delay=timedelta(hours=1))

    broker.include_router(router)
    shown = AsyncAPI(broker, title="shop").to_specification().to_json()
    await broker.start()
    await broker.publish_batch("a", "b", topic="eu_parcels", headers={"tags": "t"})
    await broker.publish("c", "eu_parcels", keys=["k1"])
    await asyncio.wait_for(done.wait(), 60)
    before = await bodies(cluster, "eu_bills", 0)
    until_s = time.monotonic() + 60
    while len(await bodies(cluster, "eu_bills", 0)) < 3 and time.monotonic() < until_s:
        await asyncio.to_thread(cluster.advance, timedelta(hours=1))

    assert sorted(got) == [("a", ()), ("b", ()), ("c", ("k1",))]
    assert before == []
    assert sorted(await bodies(cluster, "eu_bills", 3)) == [b"a", b"b", b"c"]
    assert all(f'"{name}"' in shown for name in ("Parcels", "eu_bills:Publisher", "eu_parcels"))


def test_a_wrong_setting_is_refused_at_the_decorator(broker: RocketBroker) -> None:
    with pytest.raises(ConfigError, match="did you mean consume_thread_count"):
        broker.subscriber("orders", group="GID_wrong", max_workers=3)
