"""Requests that are large, or whose answers would be: they cost the other clients nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparrowmq.grpc_service.callers import Caller
from sparrowmq.grpc_service.client_table import BrokerPort, Client, Clients
from sparrowmq.grpc_service.messages import (
    Address,
    AddressScheme,
    Code,
    Endpoints,
    FilterExpression,
    FilterType,
    Publishing,
    QueryAssignmentRequest,
    QueryRouteRequest,
    Resource,
    Settings,
    Subscription,
    SubscriptionEntry,
    TelemetryCommand,
)
from sparrowmq.grpc_service.renewals import Renewals
from sparrowmq.grpc_service.route_calls import PLACE_BYTES_MAX, Routes
from sparrowmq.grpc_service.server import GrpcServer
from sparrowmq.grpc_service.sessions import (
    PUBLISHED_TOPICS_MAX,
    SETTINGS_BYTES_MAX,
    SUBSCRIBED_TOPICS_MAX,
    Sessions,
)
from sparrowmq.grpc_service.statuses import Rejected
from sparrowmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from sparrowmq.protocol.codes import LanguageCode

CALLER = Caller("c@1", "127.0.0.1:5", LanguageCode.PYTHON, None)
TOPIC = TopicConfig(topic_name="T", read_queue_nums=1_024, write_queue_nums=1_024, perm=6)
GROUP = SubscriptionGroupConfig(group_name="GID", consume_message_orderly=True)
BROKER = cast(
    BrokerPort,
    SimpleNamespace(
        broker_name="broker-a",
        body_bytes_max=4 << 20,
        find_topic=lambda _: TOPIC,
        find_group=lambda _: GROUP,
    ),
)


def endpoints_of(size: int) -> Endpoints:
    """Return endpoints whose host has as many bytes."""
    place = Address(host="h" * size, port=8081)
    return Endpoints(scheme=AddressScheme.DOMAIN_NAME, addresses=[place])


@pytest.mark.parametrize("size", [PLACE_BYTES_MAX - 100, PLACE_BYTES_MAX])
@pytest.mark.parametrize("is_of_topic", [False, True])
async def test_answer_repeats_no_long_text_for_each_queue(size: int, is_of_topic: bool) -> None:
    """A request of 16 MiB made an answer of 16 GiB, in the broker's process."""
    topic = Resource(name="T", resource_namespace="n" * size if is_of_topic else "")
    endpoints = endpoints_of(1 if is_of_topic else size)
    routes = Routes(BROKER)
    route = QueryRouteRequest(topic=topic, endpoints=endpoints)
    assignment = QueryAssignmentRequest(
        topic=topic, endpoints=endpoints, group=Resource(name="GID")
    )

    if size < PLACE_BYTES_MAX:
        assert len((await routes.query_route(CALLER, route)).message_queues) == 1_024
        assert len((await routes.query_assignment(CALLER, assignment)).assignments) == 1_024
        return
    for call, request in (
        (routes.query_route, route),
        (routes.query_assignment, assignment),
    ):
        with pytest.raises(Rejected, match=f"the limit is {PLACE_BYTES_MAX}") as raised:
            await call(CALLER, cast(Any, request))
        assert raised.value.code == Code.BAD_REQUEST


def subscribing(count: int, tags: str = "*") -> Settings:
    entries = [
        SubscriptionEntry(
            topic=Resource(name=f"T{number}"),
            expression=FilterExpression(type=FilterType.TAG, expression=tags),
        )
        for number in range(count)
    ]
    return Settings(subscription=Subscription(group=Resource(name="GID"), subscriptions=entries))


def publishing(count: int) -> Settings:
    return Settings(publishing=Publishing(topics=[Resource(name="T")] * count))


def make_sessions() -> Sessions:
    clients = Clients(BROKER)
    return Sessions(BROKER, clients, Renewals(clients, now_ms=lambda: 0), timestamp_ms=lambda: 0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (subscribing(SUBSCRIBED_TOPICS_MAX + 1), "257 subscriptions; the limit is 256"),
        (publishing(PUBLISHED_TOPICS_MAX + 1), "1025 topics; the limit is 1024"),
        (subscribing(1, "a||" * (SETTINGS_BYTES_MAX // 3)), "bytes; the limit is 262144"),
    ],
    ids=["subscriptions", "topics", "bytes"],
)
def test_settings_have_bounds(settings: Settings, words: str) -> None:
    """Tags of 16 MiB took the event loop for a minute."""
    with pytest.raises(Rejected, match=words) as raised:
        make_sessions().settle(Client(CALLER), settings)
    assert raised.value.code == Code.BAD_REQUEST


@pytest.mark.parametrize(
    "settings", [subscribing(SUBSCRIBED_TOPICS_MAX), publishing(PUBLISHED_TOPICS_MAX)]
)
def test_settings_up_to_their_bounds_are_kept(settings: Settings) -> None:
    client = Client(CALLER)

    make_sessions().settle(client, settings)

    assert len(client.published_topics) + sum(
        len(each.subscription_data_set) for each in client.consumers
    ) == (SUBSCRIBED_TOPICS_MAX if settings.HasField("subscription") else 1)


class DeafContext:
    """The context of a client that takes none of its answers."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()

    def invocation_metadata(self) -> Iterator[tuple[str, str]]:
        return iter([("x-mq-client-id", "c@1")])

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    async def write(self, answer: object) -> None:
        del answer
        await self.taken.wait()


async def test_client_that_takes_no_answers_to_its_settings_gets_no_further_ones_made() -> None:
    """A thousand of them were kept for each stream, of up to 16 MiB each."""
    server = GrpcServer(BROKER, access=None, timestamp_ms=lambda: 0)
    context, read = DeafContext(), 0

    async def requests() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(10):
            read += 1
            yield TelemetryCommand(settings=subscribing(1)).SerializeToString()

    serving = asyncio.create_task(server._telemetry(requests(), context))
    for _ in range(100):
        await asyncio.sleep(0)
    before = read
    context.taken.set()
    await serving

    assert (before, read) == (2, 10)
