"""What a member does with the answers to its actions, without sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from play import Handler, Play, PlayedTask, make_unrun_subscriber
from sparrowmq.calling.effects import Operation, Spawn, Wait
from sparrowmq.client.config import ConsumerConfig
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.callbacks import notify_user
from sparrowmq.client.operations.member_loop import (
    _commit,
    _heartbeat,
    _refresh_routes,
    _report_duplicate,
    _report_facts,
    _send_back,
    run_member,
)
from sparrowmq.client.operations.waiting import has_share
from sparrowmq.client.route_cache import route_from
from sparrowmq.client.subscriber import (
    GivenUp,
    Notice,
    RebalanceCallbacks,
    RequestFailed,
    Subscriber,
)
from sparrowmq.errors import ConnectFailed
from sparrowmq.membership.actions import (
    Acquire,
    Commit,
    Deliver,
    DuplicateClientId,
    Heartbeat,
    QueueLost,
    RefreshRoutes,
    Regain,
    SendBack,
)
from sparrowmq.membership.member import HEARTBEAT_RETRY_MS, TopicShare
from sparrowmq.membership.send_backs import LOCAL_RETRY_MS
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.protocol.bodies import (
    BrokerData,
    ClientConnection,
    ConsumerConnection,
    QueueData,
    TopicRouteAnswer,
    encode_body,
)
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.subscription import parse_subscription

QUEUE = MessageQueue("T", "a", 0)
NOW_MS = 1_000_000
# The name of a task that calls the listener.
LISTENER_CALLS = "calls of the listener"


def route(*brokers: str) -> TopicRouteAnswer:
    return TopicRouteAnswer(
        broker_datas=[BrokerData(broker_name=n, broker_addrs={0: f"{n}:1"}) for n in brokers],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
            for name in brokers
        ],
    )


@pytest.fixture
def reported() -> list[Notice]:
    return []


@pytest.fixture
def subscriber(reported: list[Notice]) -> Subscriber:
    """A member that consumes a queue from offset 9 on, by calls of three messages."""
    made = Subscriber(
        config=ConsumerConfig(group="G", client_id="me", consume_message_batch_max_size=3),
        name_servers=NameServers(("n:1",)),
        subscriptions={"T": parse_subscription("T", "*", sub_version=7)},
        listener=lambda *_: None,
        callbacks=RebalanceCallbacks(),
        report=reported.append,
    )
    made.routes.update(route_from("T", route("a"), now_ms=NOW_MS))
    made.member.locks_queues = False
    made.member.rebalanced([TopicShare("T", (QUEUE,), ("me",), (QUEUE,))], NOW_MS)
    (begun,) = due(made, NOW_MS, Acquire)
    made.member.acquired(QUEUE, begun.epoch, offset=9, is_committed=True, now_ms=NOW_MS)
    return made


def due(subscriber: Subscriber, now_ms: int, kind: type) -> list[Any]:
    return [each for each in subscriber.member.due(now_ms) if isinstance(each, kind)]


def pull_three(subscriber: Subscriber, reconsume_times: int = 0) -> None:
    epoch = subscriber.member.owned_queues()[0].epoch
    messages = [
        MessageExt("T", b"", {}, "a", 0, n, 100 * n, reconsume_times=reconsume_times)
        for n in range(9, 12)
    ]
    subscriber.member.due(NOW_MS)
    subscriber.member.pulled(
        QUEUE, epoch, offset=9, messages=messages, next_offset=12, now_ms=NOW_MS
    )


def deliver(subscriber: Subscriber, reconsume_times: int = 0) -> Deliver:
    """Pull three messages, and return their delivery."""
    pull_three(subscriber, reconsume_times)
    (delivery,) = due(subscriber, NOW_MS, Deliver)
    assert isinstance(delivery, Deliver)
    return delivery


def test_message_that_cannot_be_sent_back_and_those_behind_it_are_consumed_here_again(
    subscriber: Subscriber, play: Callable[[Handler], Play], reported: list[Notice]
) -> None:
    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        is_refused = (request.ext_fields or {})["offset"] == "1000"
        return response_to(request, ResponseCode.SYSTEM_ERROR if is_refused else 0)

    run = play(answer)
    subscriber.member.consumed(deliver(subscriber), acked_count=0)
    (back,) = due(subscriber, NOW_MS, SendBack)
    run(_send_back(subscriber, back))

    later_ms = NOW_MS + LOCAL_RETRY_MS
    actions = subscriber.member.due(later_ms)
    again = [each for each in actions if isinstance(each, Deliver)]
    assert [m.queue_offset for each in again for batch in each.batches for m in batch] == [10, 11]
    assert [each.offset for each in actions if isinstance(each, Commit)] == [10]
    assert (subscriber.counters.sent_back, subscriber.wake.is_set) == (1, True)
    assert [type(each) for each in reported] == [RequestFailed]


@pytest.mark.parametrize(("reconsume_times", "is_dead"), [(15, False), (16, True)])
def test_dead_letters_are_reported_once_the_broker_has_them(
    subscriber: Subscriber,
    play: Callable[[Handler], Play],
    reported: list[Notice],
    reconsume_times: int,
    *,
    is_dead: bool,
) -> None:
    delivery = deliver(subscriber, reconsume_times)
    subscriber.member.consumed(delivery, acked_count=0)
    (back,) = due(subscriber, NOW_MS, SendBack)
    play(lambda _, request: response_to(request))(_send_back(subscriber, back))

    letters = GivenUp(QUEUE, delivery.batches[0], is_broadcasting=False)
    assert reported == [letters] * is_dead


def test_commit_that_fails_is_repeated_soon(
    subscriber: Subscriber, play: Callable[[Handler], Play], reported: list[Notice]
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        raise ConnectFailed("away", address=address)

    subscriber.member.consumed(deliver(subscriber), acked_count=3)
    later_ms = NOW_MS + 5_000
    (first,) = due(subscriber, later_ms, Commit)
    run = play(answer)
    run.now_ms = later_ms
    run(_commit(subscriber, first))

    assert [type(each) for each in reported] == [RequestFailed]
    assert due(subscriber, later_ms + 1_000, Commit) == [first]


@pytest.mark.parametrize(("silent", "is_asked"), [("a:1", False), ("a:2", True), ("", True)])
def test_queue_in_doubt_is_asked_for_once_its_master_has_answered_a_heartbeat(
    subscriber: Subscriber, play: Callable[[Handler], Play], silent: str, *, is_asked: bool
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if address == silent:
            raise ConnectFailed("away", address=address)
        return response_to(request)

    places = BrokerData(broker_name="a", broker_addrs={0: "a:1", 1: "a:2"})
    found = TopicRouteAnswer(broker_datas=[places], queue_datas=route("a").queue_datas)
    subscriber.routes.update(route_from("T", found, now_ms=NOW_MS))
    subscriber.member.connection_lost({QUEUE}, NOW_MS)
    heartbeat = subscriber.member.heartbeat
    assert heartbeat.join(NOW_MS)
    play(answer)(_heartbeat(subscriber, Heartbeat()))

    asked = [each.queue for each in due(subscriber, NOW_MS, Regain)]
    assert asked == [QUEUE] * is_asked
    # One that did not reach all brokers is repeated soon.
    assert (heartbeat.next_due_ms(NOW_MS) <= NOW_MS + HEARTBEAT_RETRY_MS) == bool(silent)


@pytest.mark.parametrize("is_away", [False, True])
def test_connections_that_share_an_id_are_named_whichever_broker_has_them(
    subscriber: Subscriber,
    play: Callable[[Handler], Play],
    reported: list[Notice],
    *,
    is_away: bool,
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if is_away and address == "a:1":
            raise ConnectFailed("away", address=address)
        ids = {"10.0.0.1:1": "me", "10.0.0.2:1": "you"}
        if is_away or address == "b:1":
            ids |= {"10.0.0.3:1": "me"}
        connections = [ClientConnection(client_id=n, client_addr=at) for at, n in ids.items()]
        return response_to(
            request, body=encode_body(ConsumerConnection(connection_set=connections))
        )

    subscriber.routes.update(route_from("T", route("a", "b"), now_ms=NOW_MS))
    fact = DuplicateClientId("G", "me", 2, ("me", "me"))
    play(answer)(_report_duplicate(subscriber, fact))

    assert reported[-1] == fact._replace(addresses=("10.0.0.1:1", "10.0.0.3:1"))
    assert len(reported) == 1 + is_away


def test_topic_that_is_found_at_last_is_waited_for(
    subscriber: Subscriber, play: Callable[[Handler], Play]
) -> None:
    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        if (request.ext_fields or {})["topic"] not in topics:
            return response_to(request, ResponseCode.TOPIC_NOT_EXIST)
        return response_to(request, body=encode_body(route("a")))

    run, topics = play(answer), {"T"}
    subscriber.subscriptions["U"] = parse_subscription("U", "*", sub_version=7)
    subscriber.member.subscribe("U", now_ms=NOW_MS)
    run(_refresh_routes(subscriber, RefreshRoutes()))
    assert has_share(subscriber)
    topics.add("U")
    run(_refresh_routes(subscriber, RefreshRoutes()))

    assert not has_share(subscriber)


@pytest.mark.parametrize("is_away", [False, True])
def test_route_that_cannot_be_had_keeps_no_other_back_but_silence_is_waited_for_once(
    subscriber: Subscriber, play: Callable[[Handler], Play], *, is_away: bool
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if is_away:
            raise ConnectFailed("away", address=address)
        if (request.ext_fields or {})["topic"] == "T":
            return response_to(request, ResponseCode.SYSTEM_ERROR)
        return response_to(request, body=encode_body(route("b")))

    run = play(answer)
    subscriber.subscriptions["U"] = parse_subscription("U", "*", sub_version=7)
    subscriber.member.subscribe("U", now_ms=NOW_MS)
    run(_refresh_routes(subscriber, RefreshRoutes()))

    assert len(run.requests) == (1 if is_away else 2)
    assert (subscriber.routes.find("U") is None) == is_away
    # What was known stays in use.
    assert subscriber.routes.find("T") is not None


def test_user_hears_of_lost_queues(
    play: Callable[[Handler], Play], reported: list[Notice], subscriber: Subscriber
) -> None:
    lost: list[list[MessageQueue]] = []
    facts = [QueueLost(QUEUE), QueueLost(MessageQueue(subscriber.retry_topic, "a", 0))]
    subscriber.callbacks = RebalanceCallbacks(on_lost=lost.append)
    member: Any = subscriber.member
    subscriber.member = _Telling(member, facts)  # type: ignore[assignment]
    play(lambda _, request: response_to(request))(_report_facts(subscriber))

    # The queues of the retry topic are none of the user's.
    assert [queue for queues in lost for queue in queues] == [QUEUE]
    assert reported == facts


class _Telling:
    """A member with facts to report."""

    def __init__(self, member: Any, facts: list[QueueLost]) -> None:
        self._member = member
        self._facts = facts

    def take_facts(self) -> list[QueueLost]:
        return self._facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)


def test_consumer_ends_after_the_last_callback(run: Callable[[Operation[Any]], Any]) -> None:
    lost: list[list[MessageQueue]] = []
    subscriber = make_unrun_subscriber("G", "T")
    subscriber.callbacks = RebalanceCallbacks(on_lost=lost.append)

    def operation() -> Operation[None]:
        yield from notify_user(subscriber, QueueLost(QUEUE))
        subscriber.member.left()
        yield from run_member(subscriber)

    run(operation())
    assert lost == [[QUEUE]]


class Suspending(Play):
    """Suspends a consumer before a thread makes its calls, and resumes it; then it fails."""

    def __init__(self, subscriber: Subscriber) -> None:
        super().__init__(lambda _, request: response_to(request))
        self._subscriber = subscriber
        self._waits = 0
        self._calling: list[Operation[Any]] = []

    def carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Spawn):
            if effect.name == LISTENER_CALLS:
                self._calling.append(effect.operation)
            else:
                effect.operation.close()
            return PlayedTask(effect.name)
        if isinstance(effect, Wait):
            self._waits += 1
            self._subscriber.member.is_suspended = self._waits == 1
            if self._waits == 3:
                for operation in self._calling:
                    self(operation)
                raise LookupError("enough")
            return True
        return super().carry_out(effect)


def test_messages_whose_calls_did_not_begin_come_again_and_are_counted_once(
    subscriber: Subscriber,
) -> None:
    seen: list[int] = []
    subscriber.listener = lambda messages, _: seen.extend(m.queue_offset for m in messages)
    pull_three(subscriber)
    with pytest.raises(LookupError, match="enough"):
        Suspending(subscriber)(run_member(subscriber))

    assert seen == [9, 10, 11]
    assert subscriber.counters.delivered == 3
