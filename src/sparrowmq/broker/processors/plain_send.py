"""The send of one plain message, by the shortest path.

Nearly all sends of a busy broker are plain. For them `send_plain` does exactly what `send` does, to
the byte (tests/broker/test_plain_send.py), with fewer steps. The record, the result and the answer
are not made as objects, a topic's rules are looked up once for all sends, and the answer is a
template. Every other send, also one that must be refused, is left to `send` (benchmarks/broker.py,
benchmarks/against_apache.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.broker.state import BrokerState
from sparrowmq.model.message import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT_STORE_OK,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import frame_json_header
from sparrowmq.protocol.headers import SendMessageRequestHeader
from sparrowmq.protocol.record import TRANSACTION_TYPE
from sparrowmq.serving.connections import Connection, Output, Written

# These texts may match other properties too; such sends are left to `send`.
_DELAY = f"{PROPERTY_DELAY_LEVEL}\x01"
_HALF = f"{PROPERTY_TRANSACTION_PREPARED}\x01"
_TIMER = "TIMER_D"
_WAIT = f"{PROPERTY_WAIT_STORE_OK}\x01"
_WAIT_TRUE = f"\x02{_WAIT}true"
_SEND = RequestCode.SEND_MESSAGE_V2.value


def send_plain(
    state: BrokerState,
    command: RemotingCommand,
    connection: Connection,
    *,
    now_ms: int,
    timestamp_ms: int,
) -> Sequence[Output] | None:
    """Serve a plain send whose header has been read.

    Returns: the outputs; None if the send is not plain, and nothing has changed.
    """
    header, body = command.header, command.body
    if command.code != _SEND or command.flag or body is None:
        return None
    assert isinstance(header, SendMessageRequestHeader)
    topic, queue_id = header.topic, header.queue_id
    text = header.properties or ""
    settings = state.topics.find_plain(topic)
    if (
        settings is None
        or not 0 <= queue_id < settings.write_queue_nums
        or header.sys_flag & TRANSACTION_TYPE
        or header.batch
        or _DELAY in text
        or _HALF in text
        or _TIMER in text
        or state.journal.finished < state.topics_journal_round
    ):
        return None
    # RocketMQ does not store this property.
    before, _, behind = text.partition(_WAIT_TRUE)
    stored = before + behind
    if _WAIT in stored or (behind and behind[0] != "\x02"):
        return None
    if not stored:
        stored = state.origin_properties
    elif stored[-1] == "\x02":
        stored += state.origin_properties
    else:
        stored = f"{stored}\x02{state.origin_properties}"
    place = state.store.append_plain(
        header, body, stored, born_host=connection.host, store_host=state.store_host,
        timestamp_ms=timestamp_ms,
    )  # fmt: skip
    if place is None:
        return None
    begin, end, queue_offset = place
    counters = state.counters
    counters.puts += 1
    counters.put_bytes += end - begin
    answer = state.sent_answer % (begin, queue_id, queue_offset, command.opaque)
    return state.pending.add(
        Written(connection, frame_json_header(answer)),
        position=end,
        waits_for_flush=state.config.is_sync,
        now_ms=now_ms,
    )
