"""Mistakes on the way of a send, each planted on purpose, and each caught within some seeds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mistakes import Mistakes, run_calm
from sparrowmq.calling.effects import Operation, now
from sparrowmq.client.operations import routes
from sparrowmq.client.operations import send as sending
from sparrowmq.client.publisher import Publisher
from sparrowmq.errors import SparrowError, TopicRouteNotFound
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.message_id import UniqIdGenerator
from sparrowmq.protocol.send_request import SendAnswered
from sparrowmq.protocol.session import RemotingSession, ResponseReceived, SessionEvent
from sparrowmq.simulation.faults import Faults

pytestmark = pytest.mark.slow

# A stale route is asked for with each of many sends, and answers cross registrations.
MANY_SENDS: dict[str, Any] = {
    "queue_count": 7,
    "message_count": 1_000,
    "pause_ms_max": 200,
    "fault_ms": 60_000,
}
FORGETFUL = Faults(name_server_kill=30.0, broker_kill=10.0, delay=0.2, delay_ms_max=300)
mistake = Mistakes()


@pytest.mark.long
def test_restarts_of_the_name_server_move_no_key() -> None:
    for outcome in run_calm(FORGETFUL, seeds=5, **MANY_SENDS):
        assert outcome.violation is None, "\n".join(outcome.trace)


@mistake(routes, "_look_up", FORGETFUL, " of key k", seeds=15, **MANY_SENDS)
def template_in_place_of_a_known_route(
    _: Any, publisher: Publisher, topic: str
) -> Operation[SparrowError | None]:
    timeout_ms = publisher.config.times.invoke_timeout_ms
    try:
        try:
            yield from routes.refresh_route(
                publisher.routes, publisher.name_servers, topic, timeout_ms=timeout_ms
            )
        except TopicRouteNotFound as missing:
            template = yield from routes._find_template(publisher, topic, timeout_ms=timeout_ms)
            if template is None:
                return missing
            publisher.routes.update(template)
    except SparrowError as error:
        return error
    finally:
        publisher.lookups.pop(topic, None)
    return None


@mistake(
    RemotingSession,
    "receive_data",
    Faults(),
    " acknowledged, holds | the answer to a send to ",
    seeds=5,
    message_count=200,
)
def answer_of_another_request(
    receive_data: Any, session: RemotingSession, data: bytes
) -> list[SessionEvent]:
    events: list[SessionEvent] = receive_data(session, data)
    answers = [
        event
        for event in events
        if isinstance(event, ResponseReceived) and isinstance(event.answer, SendAnswered)
    ]
    if len(answers) < 2:
        return events
    first, second = answers[:2]
    others = [event for event in events if event is not first and event is not second]
    return [
        *others,
        ResponseReceived(first.token, second.answer),
        ResponseReceived(second.token, first.answer),
    ]


@mistake(sending, "_aim", Faults(), " the answer to a send to ")
def queue_chosen_twice(
    aim: Any, publisher: Publisher, load: sending.Load, target: MessageQueue, *, timeout_ms: int
) -> Any:
    route = publisher.routes.find(load.topic)
    assert route is not None
    other = publisher.selector.next_queue(route.publish_queues)
    attempt = aim(publisher, load, target, timeout_ms=timeout_ms)
    return msgspec.structs.replace(attempt, target=other)


@mistake(
    sending,
    "_prepare_retry",
    Faults(reset=80.0),
    " gave up after 1 attempts ",
    seeds=10,
    **MANY_SENDS,
)
def lost_retry(*_: object, deadline_ms: int, **__: object) -> Operation[int]:
    yield from now()
    return deadline_ms


@mistake(
    sending,
    "prepare",
    Faults(broker_freeze=10.0),
    " ms after its send began",
    seeds=5,
    **MANY_SENDS,
)
def deadline_that_is_not_kept(prepare: Any, *args: Any, **settings: Any) -> Any:
    attempt = prepare(*args, **settings)
    if attempt is None:
        return None
    load = msgspec.structs.replace(attempt.load, deadline_ms=attempt.load.deadline_ms + 9_000)
    return msgspec.structs.replace(attempt, load=load)


used: list[str] = []


@mistake(UniqIdGenerator, "next_id", Faults(), " has the id of another message, ", seeds=5)
def id_used_twice(next_id: Any, ids: UniqIdGenerator, timestamp_ms: int) -> str:
    used.append(used[-1] if len(used) % 50 == 49 else next_id(ids, timestamp_ms))
    return used[-1]


@mistake(
    sending, "_await_turn", Faults(), " overtook a message queued before", seeds=5, **MANY_SENDS
)
def send_that_overtakes_queued_messages(*_: object, now_ms: int) -> Operation[int]:
    yield from now()
    return now_ms


test_mistake_is_caught = mistake.make_test()
