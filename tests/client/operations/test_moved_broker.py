"""A broker that has another address in the routes, though no connection to it was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from play import Handler, Play, PlayedTask, make_unrun_subscriber
from sparrowmq.client.operations.member_loop import _heartbeat, _refresh_routes
from sparrowmq.client.route_cache import route_from
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.membership.actions import Acquire, Commit, Heartbeat, Pull, RefreshRoutes, Regain
from sparrowmq.membership.member import TopicShare
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import BrokerData, QueueData, TopicRouteAnswer, encode_body
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to

QUEUES = tuple(MessageQueue("T", name, 0) for name in "ab")
NOW_MS = 1_000_000
# A little later: a pull that was ended is begun again.
SOON_MS = NOW_MS + 200


def route(master: str | None) -> TopicRouteAnswer:
    """The route of a topic at brokers a, whose master is given, and b."""
    places = {"a": {} if master is None else {0: master}, "b": {0: "b:1"}}
    return TopicRouteAnswer(
        broker_datas=[BrokerData(broker_name=n, broker_addrs=at) for n, at in places.items() if at],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
            for name in places
        ],
    )


@pytest.fixture
def subscriber() -> Subscriber:
    """A member that pulls a queue of each broker; its first commits are answered."""
    made = make_unrun_subscriber("GID_s", "T")
    made.routes.update(route_from("T", route("a:1"), now_ms=NOW_MS))
    member = made.member
    member.rebalanced([TopicShare("T", QUEUES, ("me",), QUEUES)], NOW_MS)
    for queue, epoch in ((e.queue, e.epoch) for e in of_type(made, NOW_MS, Acquire)):
        member.acquired(queue, epoch, offset=9, is_committed=True, now_ms=NOW_MS)
    assert {pull.queue for pull in of_type(made, NOW_MS, Pull)} == set(QUEUES)
    made.pulls.update({queue: PlayedTask("pull") for queue in QUEUES})
    return made


def of_type(subscriber: Subscriber, now_ms: int, *kinds: type) -> list[Any]:
    return [action for action in subscriber.member.due(now_ms) if isinstance(action, kinds)]


def refresh(subscriber: Subscriber, play: Callable[[Handler], Play], master: str | None) -> Play:
    """Let the member find the route with this master of broker a; return the servers."""

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return response_to(request, body=encode_body(route(master)))
        return response_to(request)

    run = play(answer)
    run(_refresh_routes(subscriber, RefreshRoutes()))
    return run


def test_its_queue_is_neither_pulled_nor_committed_until_it_was_asked(
    subscriber: Subscriber, play: Callable[[Handler], Play]
) -> None:
    run = refresh(subscriber, play, "c:1")

    # A master that lacks our newest messages gives their offsets to others.
    later_ms = NOW_MS + 6_000
    begun = of_type(subscriber, later_ms, Pull, Commit, Regain, Heartbeat)
    assert {action.queue for action in begun if isinstance(action, Commit)} == {QUEUES[1]}
    assert [type(each) for each in begun if each != Heartbeat()] == [Commit]
    assert Heartbeat() in begun
    assert set(subscriber.pulls) == {QUEUES[1]}

    run.now_ms = later_ms
    run(_heartbeat(subscriber, Heartbeat()))
    assert [each.queue for each in of_type(subscriber, later_ms, Regain)] == [QUEUES[0]]


@pytest.mark.parametrize("master", ["a:1", None], ids=["the same", "no address"])
def test_without_another_address_its_pull_goes_on(
    subscriber: Subscriber, play: Callable[[Handler], Play], master: str | None
) -> None:
    refresh(subscriber, play, master)

    assert of_type(subscriber, SOON_MS, Pull, Regain) == []
    assert set(subscriber.pulls) == set(QUEUES)
