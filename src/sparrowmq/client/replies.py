"""The replies that a process's producers wait for, and the match of a reply to its request. Pure.

A broker pushes a reply to the client id that called `request`; the correlation id names the
request. Source: ClientRemotingProcessor.receiveReplyMessage. Tests: test_request_reply.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from sparrowmq.calling.effects import Event
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import MessageExt
from sparrowmq.model.message import INFLATED_BYTES_MAX, PROPERTY_CORRELATION_ID
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.compression import COMPRESSED, inflate
from sparrowmq.protocol.headers import ReplyMessageRequestHeader, decode_header
from sparrowmq.protocol.properties import parse_properties


@dataclass(slots=True, eq=False)
class AwaitedReply:
    """A wait for a reply: the event is set when the reply arrives."""

    arrived: Event = field(default_factory=Event)
    message: MessageExt | None = None


# By correlation id.
Replies: TypeAlias = dict[str, AwaitedReply]


def note_reply(replies: Replies, request: RemotingCommand) -> RemotingCommand:
    """Take a broker's PUSH_REPLY_MESSAGE_TO_CLIENT; a reply that came too late is dropped.

    Raises: RemoteProtocolError if the reply cannot be read.
    """
    header = decode_header(ReplyMessageRequestHeader, request.ext_fields)
    properties = parse_properties(header.properties or "")
    body: bytes | None = request.body or b""
    if header.sys_flag & COMPRESSED:
        body = inflate(body or b"", sys_flag=header.sys_flag, bytes_max=INFLATED_BYTES_MAX)
    if body is None:
        raise RemoteProtocolError(f"a reply has more than {INFLATED_BYTES_MAX} bytes when inflated")
    awaited = replies.get(properties.get(PROPERTY_CORRELATION_ID, ""))
    if awaited is not None and awaited.message is None:
        awaited.message = MessageExt(
            topic=header.topic,
            body=body,
            properties=properties,
            broker_name="",
            queue_id=header.queue_id,
            queue_offset=-1,
            commit_log_position=-1,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp_ms=header.born_timestamp_ms,
            # Java's brokers write an address as /10.0.0.1:50123.
            born_host=header.born_host.removeprefix("/"),
            store_timestamp_ms=header.store_timestamp_ms,
            store_host=header.store_host.removeprefix("/"),
        )
        awaited.arrived.set()
    return response_to(request)
