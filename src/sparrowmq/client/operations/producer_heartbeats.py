"""A producer's heartbeats: brokers then know it, and can push replies to it.

A broker forgets a producer with its connection. Who waits for a reply therefore registers anew at a
broker that has no heartbeat over its present connection; other sends wait for the next round.
Source: DefaultMQProducerImpl.prepareSendRequest. Tests: client/test_request_reply.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from sparrowmq.calling.effects import Now, Operation, Spawn
from sparrowmq.client.operations.heartbeats import heartbeat_all
from sparrowmq.client.operations.routes import look_up_publish_route
from sparrowmq.client.publisher import Publisher
from sparrowmq.errors import ConnectFailed, SparrowError
from sparrowmq.protocol.bodies import HeartbeatData, ProducerData

# How long an attempt waits for a newer route while an older one may serve.
LOOK_AGAIN_MS = 500
# The time between two heartbeats to a broker that cannot be reached.
AGAIN_MS = 100


def make_known(publisher: Publisher, topic: str) -> Operation[None]:
    """Register the producer before a message is sent, if its broker may not know the producer.

    Args:
        topic: the message's topic, with its namespace.
    """
    now_ms: int = yield Now()
    due_ms = publisher.heartbeat_due_ms
    if due_ms is None or due_ms <= now_ms or publisher.routes.find(topic) is None:
        timeout_ms = publisher.config.times.invoke_timeout_ms
        yield from begin_heartbeat(publisher, topic, timeout_ms, now_ms=now_ms)
    else:
        yield from register_anew(publisher, topic)


def register_anew(publisher: Publisher, topic: str) -> Operation[None]:
    """Begin a heartbeat if a master of the topic's route has had none over its connection.

    A message that is sent to the broker then comes after the heartbeat.
    """
    now_ms: int = yield Now()
    route = publisher.routes.find(topic)
    names: Iterable[str] = () if route is None else route.brokers
    masters = map(publisher.routes.master_address, names)
    known = publisher.known_until_ms
    if any(address is not None and known.get(address, 0) <= now_ms for address in masters):
        timeout_ms = publisher.config.times.invoke_timeout_ms
        heartbeat = begin_heartbeat(publisher, topic, timeout_ms, now_ms=now_ms)
        yield Spawn(heartbeat, f"heartbeat of {publisher.config.group}")


def begin_heartbeat(
    publisher: Publisher, topic: str, timeout_ms: int, *, now_ms: int
) -> Operation[None]:
    """Register the producer at the masters; a failure waits for the next heartbeat.

    The next heartbeat's time is set before the operation runs, so that no other send begins one.
    """
    publisher.heartbeat_due_ms = now_ms + publisher.config.times.heartbeat_ms
    return _beat(publisher, topic, timeout_ms)


def _beat(publisher: Publisher, topic: str, timeout_ms: int) -> Operation[None]:
    config = publisher.config
    if publisher.routes.find(topic) is None:
        yield from look_again(publisher, topic, timeout_ms=timeout_ms)
    data = HeartbeatData(
        client_id=config.client_id, producer_data_set=[ProducerData(group_name=config.group)]
    )
    addresses = publisher.routes.addresses(masters_only=True)
    # A connection that is lost meanwhile takes its address away again.
    publisher.known_until_ms = dict.fromkeys(addresses, inf)
    failures, _, versions = yield from heartbeat_all(addresses, data, timeout_ms=timeout_ms)
    publisher.versions = {
        address: versions.get(address, publisher.versions.get(address, 0)) for address in addresses
    }
    now_ms: int = yield Now()
    for address, error in failures.items():
        if isinstance(error, ConnectFailed):
            publisher.known_until_ms[address] = now_ms + AGAIN_MS


def look_again(publisher: Publisher, topic: str, *, timeout_ms: int) -> Operation[None]:
    """Ask for a topic's route, for a short time; the known one may serve."""
    timeout_ms = max(0, min(timeout_ms, LOOK_AGAIN_MS))
    try:
        yield from look_up_publish_route(publisher, topic, timeout_ms=timeout_ms)
    except SparrowError:
        # The next attempt uses the known route, and fails without one.
        return
