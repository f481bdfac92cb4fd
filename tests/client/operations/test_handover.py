"""Where a queue begins, and what becomes of a lock that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparrowmq.client.config import ConsumerConfig
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.handover import acquire
from sparrowmq.client.route_cache import route_from
from sparrowmq.client.subscriber import RebalanceCallbacks, Subscriber
from sparrowmq.errors import ConnectFailed, InvokeTimeout
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    BrokerData,
    LockBatchResponseBody,
    QueueData,
    TopicRouteData,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.rebalance.actions import Acquire
from sparrowmq.rebalance.strategies import strategy_from

OLD, ADDED = (MessageQueue("T", "b", n) for n in range(2))
MAX_OFFSET = 77


class Told:
    """In the place of the member: what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **told: self.events.append((name, told))


@pytest.fixture
def subscriber() -> Subscriber:
    """A member that saw one queue at first, and a second later."""
    made = Subscriber(
        config=ConsumerConfig(group="GID_h", client_id="me"),
        name_servers=NameServers(("127.0.0.1:1",)),
        strategy=strategy_from("AVG"),
        subscriptions={},
        listener=lambda *_: None,
        callbacks=RebalanceCallbacks(),
        tell=lambda _: None,
    )
    route = TopicRouteData(
        broker_datas=[BrokerData(broker_name="b", broker_addrs={0: "10.0.0.1:1"})],
        queue_datas=[QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=2, perm=6)],
    )
    made.routes.update(route_from("T", route, now_ms=0))
    made.history.note("T", [OLD], cid_all=["me", "other"])
    made.history.note("T", [OLD, ADDED], cid_all=["me", "other"])
    made.member = Told()  # type: ignore[assignment]
    return made


def broker(*, is_locked: bool = False) -> Callable[[str, RemotingCommand], RemotingCommand]:
    """A broker with no committed offset."""

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.LOCK_BATCH_MQ:
            held = [] if is_locked else [OLD, ADDED]
            return response_to(
                request, body=encode_body(LockBatchResponseBody(lock_ok_mq_set=held))
            )
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return response_to(request, ResponseCode.QUERY_NOT_FOUND)
        assert RequestCode.GET_MAX_OFFSET == request.code
        return response_to(request, ext_fields={"offset": str(MAX_OFFSET)})

    return answer


@pytest.mark.parametrize(("queue", "offset"), [(OLD, MAX_OFFSET), (ADDED, 0)])
def test_queue_that_was_added_while_we_consumed_begins_at_its_first_message(
    subscriber: Subscriber, play: Any, queue: MessageQueue, offset: int
) -> None:
    play(broker())(acquire(subscriber, Acquire(queue, 1, wants_lock=True)))

    ((name, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert "acquired" == name
    assert (offset, False) == (told["offset"], told["is_committed"])
    assert told["lock_sent_ms"] is not None


def test_start_is_not_looked_for_while_the_lock_is_refused(
    subscriber: Subscriber, play: Any
) -> None:
    played = play(broker(is_locked=True))
    played(acquire(subscriber, Acquire(OLD, 1, wants_lock=True)))

    assert [RequestCode.LOCK_BATCH_MQ] == [request.code for _, request in played.requests]
    ((name, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert ("lock_refused", True) == (name, told["is_owner_listed"])


@pytest.mark.parametrize(
    ("error", "event"), [(ConnectFailed, "acquired"), (InvokeTimeout, "acquire_failed")]
)
def test_lock_is_done_without_only_where_no_master_can_hold_it(
    subscriber: Subscriber, play: Any, error: type[Exception], event: str
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.LOCK_BATCH_MQ:
            raise error("away", address=address)  # type: ignore[call-arg]
        return broker()(address, request)

    play(answer)(acquire(subscriber, Acquire(OLD, 1, wants_lock=True)))

    ((name, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert event == name
    assert told.get("lock_sent_ms") is None
