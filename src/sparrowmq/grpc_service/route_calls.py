"""Routes and assignments: which queues a topic has, and where a client finds them.

A client connects to the addresses in its route. The service returns the addresses that the client
asked with: they lead here, also through a tunnel or from a container. Source: RouteActivity of
5.5.0. Tests: test_server.py, test_large_requests.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparrowmq.grpc_service.callers import Caller
from sparrowmq.grpc_service.checks import NORMAL, accepted_types, check_group, check_topic
from sparrowmq.grpc_service.client_table import BrokerPort
from sparrowmq.grpc_service.messages import (
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
)
from sparrowmq.grpc_service.statuses import Rejected, ok
from sparrowmq.model.plain_text import write_argument
from sparrowmq.protocol.bodies import (
    MESSAGE_TYPE_ATTRIBUTE,
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
)

# The queue id of an assignment: any queue of the broker.
_ANY_QUEUE = -1
# The addresses with which a client asks, and the namespace: the answer repeats both for each queue.
PLACE_BYTES_MAX = 4_096


def find_topic(broker: BrokerPort, topic: str) -> TopicConfig:
    """Return a topic's settings. Raises: Rejected."""
    found = broker.find_topic(topic)
    if found is None:
        create = f"sparrowmq topic create {write_argument(topic)}"
        text = f"topic {topic!r} is not there; make it: {create}"
        raise Rejected(Code.TOPIC_NOT_FOUND, text)
    return found


def message_type_of(topic: TopicConfig) -> str:
    """Return the type of the messages that a topic takes."""
    return (topic.attributes or {}).get(MESSAGE_TYPE_ATTRIBUTE, NORMAL)


class Routes:
    """Serves routes and assignments."""

    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker

    async def query_route(self, caller: Caller, request: QueryRouteRequest) -> QueryRouteResponse:
        """Return the queues of a topic."""
        del caller
        topic = find_topic(self._broker, check_topic(request.topic))
        resource = Resource(
            name=topic.topic_name, resource_namespace=request.topic.resource_namespace
        )
        broker = self._place(request.topic, request.endpoints)
        types = accepted_types(message_type_of(topic))
        queues = [
            MessageQueue(
                topic=resource,
                id=queue_id,
                permission=permission,
                broker=broker,
                accept_message_types=types,
            )
            for queue_id, permission in enumerate(_permissions(topic))
        ]
        return QueryRouteResponse(status=ok(), message_queues=queues)

    async def query_assignment(
        self, caller: Caller, request: QueryAssignmentRequest
    ) -> QueryAssignmentResponse:
        """Assign the broker's messages: to each member all of them, by no queue.

        A group that consumes in order gets its queues one by one, as from Apache's proxy.
        """
        del caller
        topic = find_topic(self._broker, check_topic(request.topic))
        group = self._broker.find_group(check_group(request.group))
        count = topic.read_queue_nums if topic.perm & PERM_READ else 0
        if count == 0:
            text = f"topic {topic.topic_name!r} has no queue that can be read"
            raise Rejected(Code.FORBIDDEN, text)
        is_orderly = group is not None and bool(group.consume_message_orderly)
        broker = self._place(request.topic, request.endpoints)
        types: list[MessageType] = accepted_types(message_type_of(topic))
        assignments = [
            Assignment(
                message_queue=MessageQueue(
                    topic=request.topic,
                    id=queue_id,
                    permission=Permission.READ_WRITE,
                    broker=broker,
                    accept_message_types=types,
                )
            )
            for queue_id in (range(count) if is_orderly else (_ANY_QUEUE,))
        ]
        return QueryAssignmentResponse(status=ok(), assignments=assignments)

    def _place(self, topic: Resource, endpoints: Endpoints) -> Broker:
        if not endpoints.addresses:
            raise Rejected(Code.ILLEGAL_ACCESS_POINT, "the request has no endpoints")
        size = topic.ByteSize() + endpoints.ByteSize()
        if size > PLACE_BYTES_MAX:
            text = f"topic and endpoints have {size} bytes; the limit is {PLACE_BYTES_MAX}"
            raise Rejected(Code.BAD_REQUEST, text)
        return Broker(name=self._broker.broker_name, id=0, endpoints=endpoints)


def _permissions(topic: TopicConfig) -> Iterator[Permission]:
    """Yield the permission of each queue in a route."""
    reads = topic.read_queue_nums if topic.perm & PERM_READ else 0
    writes = topic.write_queue_nums if topic.perm & PERM_WRITE else 0
    both = min(reads, writes)
    yield from [Permission.READ] * (reads - both)
    yield from [Permission.WRITE] * (writes - both)
    yield from [Permission.READ_WRITE] * both
    if not reads and not writes:
        yield from [Permission.NONE] * max(topic.read_queue_nums, topic.write_queue_nums, 1)
