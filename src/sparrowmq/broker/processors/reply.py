"""SEND_REPLY_MESSAGE: the reply to a request is pushed directly to the producer that sent it.

A requester is a producer that calls RocketMQ's `request`. Its message carries its client id. The
consumer of the message sends the reply to the reply topic with this id. The reply is stored there,
as in RocketMQ, and pushed to the requester's connection.

Source: ReplyMessageProcessor.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sparrowmq.broker.processors.send import (
    StoredSend,
    confirm_sent,
    header_of,
    region_fields,
    store_sent,
)
from sparrowmq.broker.state import BrokerState
from sparrowmq.model.message import PROPERTY_PUSH_REPLY_TIME, PROPERTY_REPLY_TO_CLIENT
from sparrowmq.model.names import REPLY_TOPIC_POSTFIX
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import (
    ReplyMessageRequestHeader,
    encode_header,
)
from sparrowmq.protocol.properties import encode_properties, parse_properties
from sparrowmq.serving.access_control import Permission
from sparrowmq.serving.connections import Output
from sparrowmq.serving.requests import Refusal, Request, answer


def send_reply(state: BrokerState, request: Request) -> Sequence[Output]:
    """Store a reply, push it to the client that waits for it, and answer with the client's answer.

    Differs from RocketMQ: a reply is neither stored nor pushed unless both are possible.
    """
    command = request.command
    header = header_of(request, RequestCode.SEND_REPLY_MESSAGE)
    # The topic in the request is ignored: a reply goes to the client that waits for it.
    replies = f"{state.config.cluster_name}{REPLY_TOPIC_POSTFIX}"
    state.check_access(request, replies, Permission.PUB)
    properties = parse_properties(header.properties or "")
    client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
    if client_id is None:
        raise _refusal(state, f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null")
    client = state.producers.find_client(client_id)
    if client is None:
        raise _refusal(state, f"push reply message fail, channel of <{client_id}> not found.")
    state.relays.check_room(1, client)
    stored = store_sent(state, request, header)
    properties[PROPERTY_PUSH_REPLY_TIME] = str(request.timestamp_ms)
    pushed = ReplyMessageRequestHeader(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=stored.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp_ms=header.born_timestamp_ms,
        flag=header.flag,
        properties=encode_properties(properties),
        reconsume_times=header.reconsume_times,
        unit_mode=header.unit_mode,
        born_host=request.connection.address,
        store_host=state.config.address,
        store_timestamp_ms=request.timestamp_ms,
    )
    return state.relays.ask(
        request,
        client,
        code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        fields=encode_header(pushed),
        body=command.body,
        finish=partial(_confirm, state, client_id, stored),
    )


def _confirm(
    state: BrokerState,
    client_id: str,
    stored: StoredSend,
    request: Request,
    response: RemotingCommand,
) -> Sequence[Output]:
    """Answer once the requester has confirmed the reply, or the push has failed."""
    if response.code == ResponseCode.SUCCESS:
        return confirm_sent(state, request, stored)
    remark = f"push reply message to {client_id} fail. {response.remark or ''}"
    return answer(
        request, ResponseCode.SYSTEM_ERROR, remark=remark, ext_fields=region_fields(state)
    )


def _refusal(state: BrokerState, remark: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, remark, ext_fields=region_fields(state))
