"""Events of the members of one process beside their operations: requests, lost connections.

Every host of members calls these functions on its driver's thread: the faces, and the simulation.
Source: ClientRemotingProcessor.java. Tests: test_running_info.py, test_instances.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparrowmq.calling.effects import Answer
from sparrowmq.client.operations.deliver import consume_directly
from sparrowmq.client.running_info import answer_about
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.model import ConsumeType
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import NotifyConsumerIdsChangedRequestHeader, decode_header


def begin_leaving(subscriber: Subscriber, *, now_ms: int) -> None:
    """Make the loop give up all queues and end. On the driver's thread."""
    subscriber.member.leave(now_ms)
    subscriber.wake.set()


def serve_request(
    consumers: Mapping[str, Subscriber],
    request: RemotingCommand,
    *,
    now_ms: int,
    timestamp_ms: int,
) -> Answer:
    """Answer a broker's request to one of the consumers, by group. On the driver's thread."""
    fields = request.ext_fields or {}
    group = fields.get("consumerGroup") or fields.get("group") or ""
    # Any consumer can answer that it is not of the group in question.
    subscriber = consumers.get(group) or next(iter(consumers.values()), None)
    if subscriber is None:
        return response_to(request, ResponseCode.SYSTEM_ERROR, remark="no consumer runs here")
    if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        header = decode_header(NotifyConsumerIdsChangedRequestHeader, request.ext_fields)
        if header.consumer_group == subscriber.config.group:
            subscriber.member.notified(now_ms)
            subscriber.wake.set()
        return None
    is_push = subscriber.config.consume_type is ConsumeType.CONSUME_PASSIVELY
    if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY and is_push and group in consumers:
        return consume_directly(subscriber, request)
    return answer_about(subscriber, request, now_ms=now_ms, timestamp_ms=timestamp_ms)


def note_connection_lost(consumers: Mapping[str, Subscriber], address: str, *, now_ms: int) -> None:
    """Record that a connection is lost. On the driver's thread."""
    for subscriber in list(consumers.values()):
        broker_names = subscriber.routes.broker_names_at(address)
        if broker_names:
            subscriber.answered -= {address}
            queues = subscriber.queues_served_by(broker_names)
            subscriber.member.connection_lost(queues, now_ms)
            subscriber.wake.set()
