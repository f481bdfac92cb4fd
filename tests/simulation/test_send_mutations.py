"""Mistakes on the way of a send, each planted on purpose, and each caught within some seeds."""

from __future__ import annotations

from typing import Any

import pytest

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations import routes
from sparrowmq.client.publisher import Publisher
from sparrowmq.errors import SparrowError, TopicRouteNotFound
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
