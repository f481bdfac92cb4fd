"""Recall a delayed message before it is due.

RocketMQ 5 answers the send of a message with a delivery time by a handle: base64 of
`v1 TOPIC BROKER DUE_TIMESTAMP_MS MSG_ID`. The broker that the handle names recalls the message.
Source: RecallMessageHandle.java, RecallMessageProcessor.java of 5.3.3. Tests: test_delays.py.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode

from sparrowmq.calling.effects import Now, Operation
from sparrowmq.client.operations.request import ask
from sparrowmq.client.operations.routes import get_publish_route
from sparrowmq.client.publisher import Publisher
from sparrowmq.errors import NoWritableQueue, UsageError
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import RecallMessageRequestHeader

_VERSION = "v1"


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
        version, topic, broker_name, *rest = urlsafe_b64decode(recall_handle).decode().split(" ")
        if version == _VERSION and len(rest) == 2:
            return topic, broker_name
    except (TypeError, ValueError, binascii.Error):
        pass
    raise UsageError(
        f"{recall_handle!r:.80} is not a recall handle; give the recall_handle of a SendResult, "
        f"None unless the message has a `delay` and its broker runs RocketMQ 5.3.2 or newer"
    )
