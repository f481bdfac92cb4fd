"""The routes of topics that a running consumer has unsubscribed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from play import Handler, Play, make_unrun_subscriber
from sparrowmq.client.assembly import remove_subscription
from sparrowmq.client.operations.member_loop import LEFT_ROUTE_MS, _heartbeat, _refresh_routes
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.errors import ConnectFailed
from sparrowmq.membership.actions import Heartbeat, RefreshRoutes
from sparrowmq.membership.member import TopicShare
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import BrokerData, QueueData, TopicRouteAnswer, encode_body
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import GetRouteInfoRequestHeader, decode_header

BROKERS = {"STAYS": "a", "LEFT": "b"}
QUEUE = MessageQueue("LEFT", "b", 0)


def answer(address: str, request: RemotingCommand) -> RemotingCommand:
    """Answer as a name server, and as broker a; broker b has ended."""
    if address == "b:1":
        raise ConnectFailed("refused", address=address)
    if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
        return response_to(request)
    name = BROKERS[decode_header(GetRouteInfoRequestHeader, request.ext_fields).topic]
    places = QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
    brokers = [BrokerData(broker_name=name, broker_addrs={0: f"{name}:1"})]
    return response_to(
        request, body=encode_body(TopicRouteAnswer(broker_datas=brokers, queue_datas=[places]))
    )


@pytest.fixture
def run(play: Callable[[Handler], Play]) -> Play:
    return play(answer)


@pytest.fixture
def subscriber(run: Play) -> Subscriber:
    """A consumer of two topics, each at a broker of its own, that has left one of them."""
    made = make_unrun_subscriber("GID_l", *BROKERS)
    run(_refresh_routes(made, RefreshRoutes()))
    made.member.rebalanced([TopicShare("LEFT", (QUEUE,), ("me",), (QUEUE,))], run.now_ms)
    assert asked_by_heartbeat(made, run) == ["a:1", "b:1"]
    remove_subscription(made, "LEFT")
    return made


def asked_by_heartbeat(subscriber: Subscriber, run: Play) -> list[str]:
    before = len(run.requests)
    assert subscriber.member.heartbeat.join(run.now_ms)
    run(_heartbeat(subscriber, Heartbeat()))
    return [address for address, _ in run.requests[before:]]


def release(subscriber: Subscriber, now_ms: int) -> None:
    """Have the member give the queue back; it was never begun."""
    subscriber.member.due(now_ms)
    assert not subscriber.member.holds(QUEUE)


def refresh_later(subscriber: Subscriber, run: Play, later_ms: int = LEFT_ROUTE_MS) -> Any:
    run.now_ms += later_ms
    run(_refresh_routes(subscriber, RefreshRoutes()))


def test_broker_of_a_left_topic_alone_gets_no_heartbeats_any_more(
    subscriber: Subscriber, run: Play
) -> None:
    release(subscriber, run.now_ms)

    refresh_later(subscriber, run)

    assert subscriber.routes.topics == ("STAYS",)
    assert asked_by_heartbeat(subscriber, run) == ["a:1"]
    # A heartbeat that a broker leaves unanswered is repeated after a second.
    assert subscriber.member.heartbeat.next_due_ms(run.now_ms) == run.now_ms + 30_000


def test_route_stays_while_a_queue_of_the_topic_is_in_hand(
    subscriber: Subscriber, run: Play
) -> None:
    assert subscriber.member.holds(QUEUE)

    refresh_later(subscriber, run)

    assert set(subscriber.routes.topics) == set(BROKERS)


def test_route_that_was_read_of_late_stays(subscriber: Subscriber, run: Play) -> None:
    release(subscriber, run.now_ms)
    run.now_ms += LEFT_ROUTE_MS
    subscriber.routes.keep("LEFT", run.now_ms)

    refresh_later(subscriber, run, 1)

    assert set(subscriber.routes.topics) == set(BROKERS)
