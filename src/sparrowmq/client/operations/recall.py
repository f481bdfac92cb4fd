"""Recall a delayed message before it is due.

A broker that keeps a message's own time answers its send by a handle. The broker that the handle
names recalls the message.
Source: RecallMessageProcessor.java of 5.3.3. Tests: test_delays.py.
"""

from __future__ import annotations

from sparrowmq.calling.effects import Now, Operation
from sparrowmq.client.operations.request import ask
from sparrowmq.client.operations.routes import get_publish_route
from sparrowmq.client.publisher import Publisher
from sparrowmq.errors import NoWritableQueue, UsageError
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import RecallMessageRequestHeader
from sparrowmq.protocol.recall_handle import decode_recall_handle


def recall(publisher: Publisher, recall_handle: str) -> Operation[None]:
    """Ask a broker not to deliver a delayed message.

    Raises: UsageError for a malformed handle; NoWritableQueue if its broker is gone; RouteError,
    ConnectFailed, TransportError; BrokerError if the broker refuses.
    """
    topic, broker_name = _parse(recall_handle)
    timeout_ms = publisher.config.send_timeout_ms
    begun_ms: int = yield Now()
    yield from get_publish_route(publisher, topic, now_ms=begun_ms, timeout_ms=timeout_ms)
    address = publisher.routes.master_address(broker_name)
    if address is None:
        raise NoWritableQueue(
            f"broker {broker_name!r}, which has the message to recall, is not in the route of "
            f"topic {topic!r}; see whether it runs"
        )
    now_ms: int = yield Now()
    header = RecallMessageRequestHeader(
        producer_group=publisher.config.group,
        topic=topic,
        recall_handle=recall_handle,
        bname=broker_name,
    )
    timeout_ms = max(1, begun_ms + timeout_ms - now_ms)
    yield from ask(address, RequestCode.RECALL_MESSAGE, header, timeout_ms=timeout_ms)


def _parse(recall_handle: str) -> tuple[str, str]:
    """Return the topic and the broker name of a handle. Raises: UsageError."""
    try:
        handle = decode_recall_handle(recall_handle)
    except (TypeError, ValueError):
        raise UsageError(
            f"{recall_handle!r:.80} is not a recall handle; give the recall_handle of a "
            f"SendResult, None unless the message has a `delay` and its broker keeps it exactly"
        ) from None
    return handle.topic, handle.broker_name
