"""Send messages back, so that the group gets them again later.

First the message's broker is asked to put the message into the group's retry topic. If the broker
fails, the message is sent to the retry topic as a new message, at any broker that has the topic.
Source: DefaultMQPushConsumerImpl.sendMessageBack; MQClientAPIImpl.consumerSendMessageBack.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

from sparrowmq.calling.effects import Invoke, Operation
from sparrowmq.client.operations.request import ask, error_of
from sparrowmq.errors import BrokerError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.message import (
    DEAD_LETTER_LEVEL,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT_STORE_OK,
)
from sparrowmq.model.names import AUTO_CREATE_TOPIC_KEY_TOPIC, CLIENT_INNER_PRODUCER_GROUP
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
    encode_header,
)
from sparrowmq.protocol.properties import encode_properties

# DefaultMQPushConsumerImpl uses a timeout of 5000 ms.
SEND_BACK_TIMEOUT_MS = 5_000
# A message that is sent as a new one begins with this delay level, as at the broker.
FIRST_RETRY_LEVEL = 3
# Brokers that are tried with a message as a new one: the attempts of Java's inner producer.
AGAIN_BROKERS_MAX = 3


def send_back(
    address: str,
    group: str,
    *,
    message: MessageExt,
    delay_level: int,
    max_reconsume_times: int,
    timeout_ms: int = SEND_BACK_TIMEOUT_MS,
) -> Operation[None]:
    """Ask the master of a message's broker to deliver the message again later.

    Args:
        message: the message as it was pulled; its position in the commit log identifies it.
        delay_level: 0 lets the broker choose by the reconsume times, -1 means the dead letter
            queue.

    Raises: TransportError, BrokerError.
    """
    header = ConsumerSendMsgBackRequestHeader(
        position=message.commit_log_position,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.msg_id,
        origin_topic=message.topic,
        max_reconsume_times=max_reconsume_times,
    )
    yield from ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=timeout_ms)


def send_dead_letter(
    address: str, group: str, *, message: MessageExt, timeout_ms: int = SEND_BACK_TIMEOUT_MS
) -> Operation[None]:
    """Ask the master of a message's broker to put the message among the group's dead letters.

    Raises: TransportError, BrokerError.
    """
    yield from send_back(
        address,
        group,
        message=message,
        delay_level=DEAD_LETTER_LEVEL,
        max_reconsume_times=0,
        timeout_ms=timeout_ms,
    )


def queues_for_again(message: MessageExt, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Return the queues to try for a message as a new one: one per broker, a few at most.

    The message's offset chooses the first, so that messages spread over the retry topic.
    """
    start = message.queue_offset % max(1, len(queues))
    chosen: dict[str, MessageQueue] = {}
    for queue in chain(islice(queues, start, None), islice(queues, start)):
        chosen.setdefault(queue.broker_name, queue)
        if len(chosen) == AGAIN_BROKERS_MAX:
            break
    return list(chosen.values())


def send_again(
    address: str,
    retry_topic: str,
    *,
    message: MessageExt,
    queue_id: int,
    max_reconsume_times: int,
    timestamp_ms: int,
    timeout_ms: int = SEND_BACK_TIMEOUT_MS,
) -> Operation[None]:
    """Send a message to the group's retry topic as a new one.

    Raises: TransportError, BrokerError.
    """
    request = _make_request(
        retry_topic,
        message,
        queue_id=queue_id,
        max_reconsume_times=max_reconsume_times,
        timestamp_ms=timestamp_ms,
    )
    reply: RemotingCommand = yield Invoke(address, request, timeout_ms)
    if reply.code != ResponseCode.SUCCESS:
        error: BrokerError = error_of(reply, address)
        raise error


def _make_request(
    retry_topic: str,
    message: MessageExt,
    *,
    queue_id: int,
    max_reconsume_times: int,
    timestamp_ms: int,
) -> RemotingCommand:
    properties = dict(message.properties)
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.msg_id)
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties[PROPERTY_DELAY_LEVEL] = str(FIRST_RETRY_LEVEL + message.reconsume_times)
    for moved in (
        PROPERTY_RECONSUME_TIME,
        PROPERTY_MAX_RECONSUME_TIMES,
        PROPERTY_TRANSACTION_PREPARED,
        # A broker that took the message back has left WAIT=false there, and would not wait for its
        # flush: the message is lost then if the power fails.
        PROPERTY_WAIT_STORE_OK,
    ):
        properties.pop(moved, None)
    header = SendMessageRequestHeaderV2(
        producer_group=CLIENT_INNER_PRODUCER_GROUP,
        topic=retry_topic,
        default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
        default_topic_queue_nums=1,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp_ms=timestamp_ms,
        flag=message.flag,
        properties=encode_properties(properties),
        reconsume_times=message.reconsume_times + 1,
        max_reconsume_times=max_reconsume_times,
    )
    return RemotingCommand(
        code=RequestCode.SEND_MESSAGE_V2, ext_fields=encode_header(header), body=message.body
    )
