"""Mistakes on the way of a send, each planted on purpose, and each caught within some seeds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sparrowmq.calling.effects import Operation, now
from sparrowmq.client.operations import routes
from sparrowmq.client.operations import send as sending
from sparrowmq.client.publisher import Publisher
from sparrowmq.errors import SparrowError, TopicRouteNotFound
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.message_id import UniqIdGenerator
from sparrowmq.protocol.session import RemotingSession, ResponseReceived, SendAnswered, SessionEvent
from sparrowmq.simulation import sends
from sparrowmq.simulation.faults import Faults

pytestmark = pytest.mark.slow

# A stale route is asked for with each of many sends, and answers cross registrations.
MANY_SENDS = {"queue_count": 7, "message_count": 1_000, "pause_ms_max": 200, "fault_ms": 60_000}
FORGETFUL = Faults(name_server_kill=30.0, broker_kill=10.0, delay=0.2, delay_ms_max=300)


def take_the_template(publisher: Publisher, topic: str) -> Operation[SparrowError | None]:
    """Look a route up; use the template's where the name server does not know the topic."""
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


def test_template_in_place_of_a_known_route_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_look_up", take_the_template)

    violation = run_calm(FORGETFUL, seeds=10, **MANY_SENDS)[-1].violation
    assert " of key k" in violation


def test_restarts_of_the_name_server_move_no_key(run_calm: Any) -> None:
    for outcome in run_calm(FORGETFUL, seeds=5, **MANY_SENDS):
        assert outcome.violation is None, "\n".join(outcome.trace)


def test_answer_of_another_request_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive_data = RemotingSession.receive_data

    def mix_up(session: RemotingSession, data: bytes) -> list[SessionEvent]:
        events = receive_data(session, data)
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

    monkeypatch.setattr(RemotingSession, "receive_data", mix_up)

    violation = run_calm(Faults(), seeds=5, message_count=200)[-1].violation
    assert " acknowledged, holds " in violation or " the answer to a send to " in violation


def test_queue_chosen_twice_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    aim = sending._aim

    def aim_twice(
        publisher: Publisher, load: sending.Load, target: MessageQueue
    ) -> sending.Attempt:
        attempt = aim(publisher, load, target)
        route = publisher.routes.find(load.topic)
        assert route is not None
        other = publisher.selector.next_queue(route.publish_queues)
        return msgspec.structs.replace(attempt, target=other)

    monkeypatch.setattr(sending, "_aim", aim_twice)

    assert " the answer to a send to " in run_calm(Faults(), seeds=3)[-1].violation


def test_lost_retry_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: object, deadline_ms: int, **__: object) -> Operation[int]:
        yield from now()
        return deadline_ms

    monkeypatch.setattr(sending, "_prepare_retry", give_up)

    violation = run_calm(Faults(reset=40.0), seeds=10, **MANY_SENDS)[-1].violation
    assert " gave up after 1 attempts " in violation


def test_deadline_that_is_not_kept_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare_for_long(*args: Any, **settings: Any) -> sending.Attempt | None:
        attempt = sending.prepare(*args, **settings)
        if attempt is None:
            return None
        load = msgspec.structs.replace(attempt.load, deadline_ms=attempt.load.deadline_ms + 9_000)
        return msgspec.structs.replace(attempt, load=load)

    monkeypatch.setattr(sends, "prepare", prepare_for_long)

    violation = run_calm(Faults(broker_freeze=10.0), seeds=5, **MANY_SENDS)[-1].violation
    assert " ms after its send began" in violation


def test_id_used_twice_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    next_id = UniqIdGenerator.next_id
    used: list[str] = []

    def next_or_last_id(ids: UniqIdGenerator, timestamp_ms: int) -> str:
        used.append(used[-1] if len(used) % 50 == 49 else next_id(ids, timestamp_ms))
        return used[-1]

    monkeypatch.setattr(UniqIdGenerator, "next_id", next_or_last_id)

    assert " has the id of another message, " in run_calm(Faults(), seeds=5)[-1].violation


def test_send_that_overtakes_queued_messages_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtake(*_: object, now_ms: int) -> Operation[int]:
        yield from now()
        return now_ms

    monkeypatch.setattr(sending, "_await_turn", overtake)

    assert (
        " overtook a message queued before"
        in run_calm(Faults(), seeds=5, **MANY_SENDS)[-1].violation
    )
