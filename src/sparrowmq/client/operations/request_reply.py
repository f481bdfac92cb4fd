"""Send a request as a message and wait for the reply; reply to a request.

The request carries the client id and a correlation id. Its consumer sends the reply to the reply
topic of the cluster, and the broker pushes the reply to the client that asked.
Source: DefaultMQProducerImpl.request, MessageUtil.createReplyMessage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparrowmq.calling.effects import Now, Operation, Timestamp, Wait, bounded
from sparrowmq.client.arguments import check_message
from sparrowmq.client.operations.producer_heartbeats import make_known, register_anew
from sparrowmq.client.operations.send import send
from sparrowmq.client.operations.trace_reports import traced
from sparrowmq.client.outgoing import check_sendable_topic
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.queue_selector import QueueChoice
from sparrowmq.client.replies import AwaitedReply, Replies
from sparrowmq.config import check_range
from sparrowmq.errors import InvokeTimeout, UsageError
from sparrowmq.model import Message, MessageExt, MessageQueue, SendResult
from sparrowmq.model.message import (
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TTL,
)
from sparrowmq.model.names import REPLY_TOPIC_POSTFIX
from sparrowmq.protocol.codes import RequestCode


def request(
    publisher: Publisher,
    replies: Replies,
    message: Message,
    *,
    queue: QueueChoice | None,
    timeout_ms: int,
) -> Operation[MessageExt]:
    """Send a message and return the reply to it.

    Args:
        replies: the pending replies of the client's instance.
        timeout_ms: the time for the send and the reply together.

    Raises: ConfigError for a wrong timeout; as `send`; InvokeTimeout if no reply came in time.
    """
    check_range("timeout_ms", timeout_ms, 1, 3_600_000)
    now_ms: int = yield Now()
    deadline_ms = now_ms + timeout_ms
    timestamp_ms: int = yield Timestamp()
    correlation_id = publisher.ids.next_id(timestamp_ms)
    marks = {
        PROPERTY_CORRELATION_ID: correlation_id,
        PROPERTY_REPLY_TO_CLIENT: publisher.config.client_id,
        PROPERTY_TTL: str(timeout_ms),
    }
    awaited = replies[correlation_id] = AwaitedReply()
    try:
        sent = _send_known(publisher, message, queue, marks)
        try:
            result = yield from bounded(sent, timeout_ms=timeout_ms, name="request")
        except InvokeTimeout as error:
            raise InvokeTimeout(
                f"the send of a request to topic {message.topic!r} was not confirmed within "
                f"{timeout_ms} ms; it may be consumed all the same; see whether the name server "
                f"and the broker run"
            ) from error
        now_ms = yield Now()
        yield Wait(awaited.arrived, max(0, deadline_ms - now_ms))
    finally:
        del replies[correlation_id]
    if awaited.message is None:
        raise InvokeTimeout(
            f"no reply to message {result.msg_id} of topic {message.topic!r} within {timeout_ms} "
            f"ms; it may be consumed all the same; see whether its consumer runs and replies"
        )
    return awaited.message


def _send_known(
    publisher: Publisher, message: Message, queue: QueueChoice | None, marks: Mapping[str, str]
) -> Operation[SendResult]:
    check_message(message)
    topic = publisher.config.namespace.wrap(message.topic)
    check_sendable_topic(topic)
    # A broker pushes replies only to registered producers.
    yield from make_known(publisher, topic)
    sent = send(publisher, message, queue=queue, marks=marks)
    result = yield from traced(publisher, message, sent)
    # The send may have found the connection lost; its broker has forgotten us then.
    yield from register_anew(publisher, topic)
    return result


def reply(
    publisher: Publisher,
    message: MessageExt,
    body: bytes,
    properties: Mapping[str, str],
) -> Operation[SendResult]:
    """Reply to a message that was sent by `request`.

    Raises: UsageError for any other message; as `send`; BrokerError if the asking client is gone.
    """
    if not isinstance(message, MessageExt):
        raise UsageError(f"{message!r:.80} is not a message that came; give a MessageExt")
    found = message.properties
    marks = {
        name: found[name]
        for name in (PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT, PROPERTY_TTL)
        if name in found
    }
    if PROPERTY_CLUSTER not in found or len(marks) < 3:
        raise UsageError(f"message {message.msg_id} was not sent by request; nobody waits for it")
    topic = f"{found[PROPERTY_CLUSTER]}{REPLY_TOPIC_POSTFIX}"

    def select(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        # The broker that stored the request knows the client that asked.
        names = {message.broker_name, *publisher.routes.broker_names_at(message.store_host)}
        own = [queue for queue in queues if queue.broker_name in names]
        return (own or queues)[0]

    answer = Message(topic, body, properties=properties)
    sent = send(
        publisher,
        answer,
        queue=select,
        marks={**marks, PROPERTY_MESSAGE_TYPE: "reply"},
        code=RequestCode.SEND_REPLY_MESSAGE_V2,
    )
    return (yield from traced(publisher, answer, sent))
