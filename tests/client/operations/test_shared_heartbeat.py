"""One heartbeat for all consumers that share a client id's connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparrowmq.client.config import ConsumerConfig
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.heartbeats import heartbeat_all
from sparrowmq.client.operations.member_loop import _heartbeat, _leave
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.client.subscriber import RebalanceCallbacks, SilentBrokers, Subscriber
from sparrowmq.coordination.member_marker import EXPIRY_FIELD
from sparrowmq.errors import ConnectFailed
from sparrowmq.membership.actions import Heartbeat, Leave
from sparrowmq.protocol.bodies import HeartbeatData, decode_body
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.subscription import parse_subscription

NOW_MS = 1_000_000


def make_subscriber(group: str, *brokers: str) -> Subscriber:
    """Make a consumer of topic `T_GROUP`, which the brokers have."""
    topic = f"T_{group}"
    made = Subscriber(
        config=ConsumerConfig(group=group, client_id="10.0.0.1@same"),
        name_servers=NameServers(("127.0.0.1:9876",)),
        subscriptions={topic: parse_subscription(topic, "*", sub_version=7)},
        listener=lambda *_: None,
        callbacks=RebalanceCallbacks(),
        report=lambda _: None,
    )
    if brokers:
        addresses = {broker: {0: f"{broker}:10911"} for broker in brokers}
        made.routes.update(
            TopicRoute(
                topic=topic,
                publish_queues=(),
                subscribe_queues=(),
                brokers=addresses,
                is_template=False,
                fetched_ms=NOW_MS,
            )
        )
    return made


def share(*subscribers: Subscriber) -> None:
    companions = {one.config.group: one for one in subscribers}
    for one in subscribers:
        one.companions = companions


def begin(subscriber: Subscriber) -> Subscriber:
    assert subscriber.member.heartbeat.join(NOW_MS)
    return subscriber


@pytest.fixture
def broker(play: Callable[..., Any]) -> Any:
    """Brokers that take every request."""
    return play(lambda address, request: response_to(request))


def told(broker: Any, code: int = RequestCode.HEART_BEAT) -> list[tuple[str, RemotingCommand]]:
    return [(address, request) for address, request in broker.requests if request.code == code]


def test_one_body_names_all_groups_and_is_the_heartbeat_of_each(broker: Any) -> None:
    one, other = make_subscriber("GID_1", "a"), make_subscriber("GID_2", "a", "b")
    share(one, other)

    broker(_heartbeat(begin(one), Heartbeat()))

    bodies = [decode_body(HeartbeatData, request.body) for _, request in told(broker)]
    assert [address for address, _ in told(broker)] == ["a:10911", "b:10911"]
    assert [bodies[0]] * 2 == bodies
    assert bodies[0].client_id == "10.0.0.1@same"
    assert [
        (data.group_name, data.subscription_data_set[0].topic)
        for data in bodies[0].consumer_data_set
    ] == [("GID_1", "T_GID_1"), ("GID_2", "T_GID_2")]
    next_ms = [each.member.heartbeat.next_due_ms(NOW_MS) for each in (one, other)]
    assert next_ms == [NOW_MS + 30_000] * 2


def test_what_is_asked_for_meanwhile_leads_to_one_more(broker: Any) -> None:
    one, other = make_subscriber("GID_1", "a"), make_subscriber("GID_2", "a")
    share(one, other)
    broker.handler = lambda address, request: (
        other.member.registration_missing(NOW_MS) or response_to(request)  # type: ignore[func-returns-value]
    )

    broker(_heartbeat(begin(one), Heartbeat()))

    assert other.member.heartbeat.next_due_ms(NOW_MS) == NOW_MS
    assert one.member.heartbeat.next_due_ms(NOW_MS) == NOW_MS + 30_000


def test_several_that_are_due_at_once_send_one(broker: Any) -> None:
    both = [begin(make_subscriber("GID_1", "a")), begin(make_subscriber("GID_2", "a"))]
    share(*both)
    second = _heartbeat(both[1], Heartbeat())

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        # The second's own operation runs while the first's request is under way.
        assert list(second) == []
        return response_to(request)

    broker.handler = answer
    broker(_heartbeat(both[0], Heartbeat()))

    assert len(told(broker)) == 1
    assert [one.member.heartbeat.started_ms for one in both] == [None, None]
    assert [one.is_beating for one in both] == [False, False]


def test_one_under_way_or_without_routes_is_not_joined(broker: Any) -> None:
    one, busy, new = (
        make_subscriber("GID_1", "a"),
        begin(make_subscriber("GID_2", "a")),
        make_subscriber("GID_3"),
    )
    busy.is_beating = True
    share(one, busy, new)

    broker(_heartbeat(begin(one), Heartbeat()))

    assert busy.member.heartbeat.started_ms == NOW_MS
    assert new.member.heartbeat.next_due_ms(NOW_MS) == 0


def test_leaving_is_told_after_the_heartbeat_and_no_other_names_the_group(broker: Any) -> None:
    one, other = make_subscriber("GID_1", "a"), begin(make_subscriber("GID_2", "a"))
    other.is_beating = True
    share(one, other)

    broker(_leave(other, Leave()))
    broker(_heartbeat(begin(one), Heartbeat()))

    assert sum(broker.slept_ms) == 3_000
    (unregister,) = told(broker, RequestCode.UNREGISTER_CLIENT)
    assert (unregister[1].ext_fields or {})["consumerGroup"] == "GID_2"
    (heartbeat,) = told(broker)
    data = decode_body(HeartbeatData, heartbeat[1].body)
    assert [each.group_name for each in data.consumer_data_set] == ["GID_1"]


def test_leaving_is_told_to_all_brokers_that_heard_of_the_group(broker: Any) -> None:
    one, other = make_subscriber("GID_1", "a"), make_subscriber("GID_2", "b")
    new = make_subscriber("GID_3")
    share(one, other, new)
    broker(_heartbeat(begin(one), Heartbeat()))
    heard = [
        (address, data.group_name)
        for address, request in told(broker)
        for data in decode_body(HeartbeatData, request.body).consumer_data_set
    ]

    for each in (other, new, one):
        broker(_leave(each, Leave()))

    left = [
        (address, (request.ext_fields or {})["consumerGroup"])
        for address, request in told(broker, RequestCode.UNREGISTER_CLIENT)
    ]
    assert sorted(left) == sorted(heard)
    assert ("a:10911", "GID_2") in left
    assert ("a:10911", "GID_3") in left


def test_one_of_many_members_asks_a_silent_broker_again_for_all(broker: Any) -> None:
    members, silent = [make_subscriber("GID_1", "a") for _ in range(20)], SilentBrokers()
    for number, member in enumerate(members):
        member.config = replace(member.config, client_id=f"10.0.0.1@{number}")
        member.silent = silent

    def refuse(address: str, _: RemotingCommand) -> RemotingCommand:
        raise ConnectFailed("refused", address=address)

    def beat_all(seconds: int) -> int:
        """Have every member send a heartbeat each second; return how many reached the broker."""
        before = len(told(broker))
        for _ in range(seconds):
            for member in members:
                assert member.member.heartbeat.join(broker.now_ms)
                broker(_heartbeat(member, Heartbeat()))
            broker.now_ms += 1_000
        return len(told(broker)) - before

    assert beat_all(1) == 20
    broker.handler = refuse
    # Each finds out for itself.
    assert beat_all(1) == 20
    assert beat_all(7) <= 14
    # Each asks for itself once in 8 s, as the fault may lie with the one that asks.
    assert 20 <= beat_all(8) <= 40
    broker.handler = lambda address, request: response_to(request)
    assert beat_all(2) >= 20
    assert all(member.answered == {"a:10911"} for member in members)


def test_shortest_time_after_which_a_broker_forgets_members_counts_unless_it_is_absurd(
    play: Callable[..., Any],
) -> None:
    times = {"a:1": "30000", "b:1": "15000", "c:1": "10"}
    played = play(
        lambda address, request: response_to(request, ext_fields={EXPIRY_FIELD: times[address]})
    )

    found = played(heartbeat_all(sorted(times), HeartbeatData(client_id="10.0.0.1@same")))

    assert found.expiry_ms == 15_000
