"""What a tool asks of a consumer, by way of its broker."""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.broker.state import BrokerState
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.headers import GetConsumerRunningInfoRequestHeader, decode_header
from sparrowmq.runtime.connections import Output
from sparrowmq.runtime.requests import Refusal, Request


def consumer_running_info(state: BrokerState, request: Request) -> Sequence[Output]:
    """Have a consumer tell of itself: its queues, what it has in hand, its settings."""
    header = decode_header(GetConsumerRunningInfoRequestHeader, request.command.ext_fields)
    group = state.consumers.find(header.consumer_group)
    for connection, member in group.members.items() if group is not None else ():
        if member.client_id == header.client_id:
            return state.relays.ask(request, connection)
    raise Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"The Consumer <{header.consumer_group}> <{header.client_id}> not online",
    )
