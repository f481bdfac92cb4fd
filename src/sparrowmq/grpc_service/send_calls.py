"""Sends, the ends of transactions, and recalls.

Source: SendMessageActivity, EndTransactionActivity, RecallMessageActivity of 5.5.0.
Tests: test_server.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from sparrowmq.grpc_service.callers import Caller
from sparrowmq.grpc_service.checks import check_message, check_topic, type_of
from sparrowmq.grpc_service.client_table import BrokerPort, Clients
from sparrowmq.grpc_service.message_content import find_born_ms, to_properties
from sparrowmq.grpc_service.messages import (
    Code,
    Encoding,
    EndTransactionRequest,
    EndTransactionResponse,
    Message,
    MessageType,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    TransactionResolution,
    TransactionSource,
)
from sparrowmq.grpc_service.route_calls import find_topic, message_type_of
from sparrowmq.grpc_service.sessions import register_producer
from sparrowmq.grpc_service.statuses import Rejected, common_status, ok
from sparrowmq.grpc_service.transaction_ids import TransactionId, decode_transaction_id
from sparrowmq.model.names import AUTO_CREATE_TOPIC_KEY_TOPIC
from sparrowmq.protocol.bodies import TopicConfig
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.compression import COMPRESSED
from sparrowmq.protocol.headers import (
    EndTransactionRequestHeader,
    RecallMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    decode_header,
    encode_header,
)
from sparrowmq.protocol.message_id import decode_offset_msg_id
from sparrowmq.protocol.properties import encode_properties
from sparrowmq.protocol.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from sparrowmq.protocol.subscription import java_hash

# The most messages of one request.
MESSAGES_MAX = 1_024
_ANY_QUEUE = -1
_OUTCOMES: Mapping[int, int] = {
    TransactionResolution.COMMIT: TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: TRANSACTION_ROLLBACK,
}


class SendService:
    """Serves sends.

    Args:
        timestamp_ms: the broker's wall clock, in milliseconds since 1970.
    """

    def __init__(
        self, broker: BrokerPort, clients: Clients, *, timestamp_ms: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._clients = clients
        self._timestamp_ms = timestamp_ms

    async def send(self, caller: Caller, request: SendMessageRequest) -> SendMessageResponse:
        """Store the messages of a request; the answer has an entry for each."""
        messages = request.messages
        if not messages:
            raise Rejected(Code.MESSAGE_CORRUPTED, "the request has no message")
        if len(messages) > MESSAGES_MAX:
            text = f"the request has {len(messages)} messages; the limit is {MESSAGES_MAX}"
            raise Rejected(Code.BAD_REQUEST, text)
        name = check_topic(messages[0].topic)
        if any(message.topic.name != name for message in messages):
            raise Rejected(Code.MESSAGE_CORRUPTED, "the messages have several topics")
        topic = find_topic(self._broker, name)
        for message in messages:
            check_message(
                message,
                body_bytes_max=self._broker.body_bytes_max,
                delay_ms_max=self._broker.delay_ms_max,
                type_of_topic=message_type_of(topic),
                timestamp_ms=self._timestamp_ms(),
            )
        if len(messages) == 1:
            entries = [await self._send_one(caller, topic, messages[0])]
        else:
            # Their requests are in order on one connection.
            sends = [self._send_one(caller, topic, message) for message in messages]
            entries = list(await asyncio.gather(*sends))
        return SendMessageResponse(
            status=common_status([entry.status for entry in entries]), entries=entries
        )

    async def _send_one(
        self, caller: Caller, topic: TopicConfig, message: Message
    ) -> SendResultEntry:
        kind = type_of(message)
        system = message.system_properties
        header = SendMessageRequestHeaderV2(
            producer_group=topic.topic_name,
            topic=topic.topic_name,
            default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
            default_topic_queue_nums=4,
            queue_id=_queue_of(system.message_group, topic.write_queue_nums),
            sys_flag=(TRANSACTION_PREPARED if kind == MessageType.TRANSACTION else 0)
            | (COMPRESSED if system.body_encoding == Encoding.GZIP else 0),
            born_timestamp_ms=find_born_ms(system) or self._timestamp_ms(),
            flag=0,
            properties=encode_properties(to_properties(message, kind, born_host=caller.address)),
            reconsume_times=0,
        )
        asked = RemotingCommand(
            code=RequestCode.SEND_MESSAGE_V2, ext_fields=encode_header(header), body=message.body
        )
        try:
            if kind == MessageType.TRANSACTION:
                await register_producer(self._clients, caller, topic.topic_name)
            answer = await self._clients.ask_well(caller, asked)
        except Rejected as error:
            return SendResultEntry(status=error.status, message_id=system.message_id)
        fields = answer.ext_fields or {}
        sent = decode_header(SendMessageResponseHeader, fields)
        transaction_id = None
        if kind == MessageType.TRANSACTION:
            _, position = decode_offset_msg_id(sent.msg_id)
            transaction_id = TransactionId(position, sent.queue_offset).encode()
        return SendResultEntry(
            status=ok(),
            message_id=system.message_id,
            transaction_id=transaction_id,
            offset=sent.queue_offset,
            recall_handle=fields.get("recallHandle"),
        )

    async def end_transaction(
        self, caller: Caller, request: EndTransactionRequest
    ) -> EndTransactionResponse:
        """Commit or roll back a transaction; the answer waits until the outcome is stored."""
        topic = check_topic(request.topic)
        try:
            place = decode_transaction_id(request.transaction_id)
        except ValueError:
            text = f"transaction id {request.transaction_id[:64]!r} is not one of this service"
            raise Rejected(Code.INVALID_TRANSACTION_ID, text) from None
        header = EndTransactionRequestHeader(
            producer_group=topic,
            tran_state_table_offset=place.half_offset,
            commit_log_position=place.position,
            commit_or_rollback=_OUTCOMES.get(request.resolution, TRANSACTION_NONE),
            from_transaction_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
            msg_id=request.message_id,
            transaction_id=request.transaction_id,
        )
        asked = RemotingCommand(code=RequestCode.END_TRANSACTION, ext_fields=encode_header(header))
        await self._clients.ask_well(caller, asked)
        return EndTransactionResponse(status=ok())

    async def recall(self, caller: Caller, request: RecallMessageRequest) -> RecallMessageResponse:
        """Recall a message that waits for its delivery time."""
        topic = check_topic(request.topic)
        header = RecallMessageRequestHeader(
            producer_group=topic,
            topic=topic,
            recall_handle=request.recall_handle,
            bname=self._broker.broker_name,
        )
        asked = RemotingCommand(code=RequestCode.RECALL_MESSAGE, ext_fields=encode_header(header))
        answer = await self._clients.ask_well(caller, asked)
        return RecallMessageResponse(
            status=ok(), message_id=(answer.ext_fields or {}).get("msgId", "")
        )


def _queue_of(message_group: str, queue_count: int) -> int:
    """Return the queue of a message group; without a group, let the broker choose.

    A group keeps its queue as long as the number of queues stays. Source: Guava's
    Hashing.consistentHash, by which Apache's proxy chooses; the same group has the same queue
    there.
    """
    if not message_group or queue_count <= 0:
        return _ANY_QUEUE
    state = java_hash(message_group) & 0xFFFF_FFFF_FFFF_FFFF
    queue = 0
    while True:
        state = (2_862_933_555_777_941_757 * state + 1) & 0xFFFF_FFFF_FFFF_FFFF
        step = ((state >> 33) + 1) / (1 << 31)
        found = int((queue + 1) / step)
        if not 0 <= found < queue_count:
            return queue
        queue = found
