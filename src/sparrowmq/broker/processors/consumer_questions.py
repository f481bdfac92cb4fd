"""Tools' questions to a consumer, which its broker passes on. Tests: broker/test_relays.py."""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.broker.state import BrokerState
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    decode_header,
)
from sparrowmq.protocol.message_id import decode_offset_msg_id
from sparrowmq.protocol.signatures import without_signature
from sparrowmq.serving.connections import Connection, Output
from sparrowmq.serving.requests import Refusal, Request


def consumer_running_info(state: BrokerState, request: Request) -> Sequence[Output]:
    """Ask a consumer for its queues, its cached messages and its settings."""
    header = decode_header(GetConsumerRunningInfoRequestHeader, request.command.ext_fields)
    client = _find_member(state, header.consumer_group, client_id=header.client_id)
    fields = without_signature(request.command.ext_fields)
    return state.relays.ask(request, client, code=request.command.code, fields=fields)


def consume_directly(state: BrokerState, request: Request) -> Sequence[Output]:
    """Let a consumer's listener consume a stored message, and answer with the outcome."""
    header = decode_header(ConsumeMessageDirectlyResultRequestHeader, request.command.ext_fields)
    client = _find_member(state, header.consumer_group, client_id=header.client_id)
    _, position = decode_offset_msg_id(header.msg_id or "")
    record = state.read_named(position)
    if record is None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
    command = request.command
    fields = without_signature(command.ext_fields) | {"brokerName": state.config.broker_name}
    return state.relays.ask(request, client, code=command.code, fields=fields, body=record)


def _find_member(state: BrokerState, group: str, *, client_id: str | None) -> Connection:
    table = state.consumers.find(group)
    for connection, member in table.members.items() if table is not None else ():
        if member.client_id == client_id:
            return connection
    raise Refusal(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
