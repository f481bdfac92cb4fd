"""QUERY_MESSAGE: messages by key, by the id that their producer set, and by time.

Source: QueryMessageProcessor.java.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.broker.state import BrokerState
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    decode_header,
    encode_header,
)
from sparrowmq.protocol.signatures import UNIQUE_KEY_QUERY
from sparrowmq.serving.connections import Output
from sparrowmq.serving.requests import Refusal, Request, Steps, answer, answer_in_steps
from sparrowmq.store.key_search import COMPARED_BYTES_MAX

# MessageStoreConfig: defaultQueryMaxNum, maxMsgsNumBatch.
_UNIQUE_COUNT_MAX = 32
_COUNT_MAX = 64
# Clients refuse frames of more than 16 MiB.
_BYTES_MAX = 15 << 20


def query_message(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the latest messages of a topic with a key."""
    return answer_in_steps(request, _query_message(state, request))


def _query_message(state: BrokerState, request: Request) -> Steps:
    fields = request.command.ext_fields or {}
    header = decode_header(QueryMessageRequestHeader, fields)
    count_max = min(header.max_num, _COUNT_MAX)
    if fields.get(UNIQUE_KEY_QUERY) == "true":
        count_max = _UNIQUE_COUNT_MAX
    result = yield from state.store.query(
        header.topic,
        header.key,
        count_max=count_max,
        bytes_max=_BYTES_MAX,
        begin_timestamp_ms=header.begin_timestamp_ms,
        end_timestamp_ms=header.end_timestamp_ms,
    )
    if result.failure is not None:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"nothing is indexed until the broker is started again: {result.failure}",
        )
    if result.unindexed_bytes:
        raise Refusal(
            ResponseCode.SYSTEM_BUSY,
            f"the index is being built, {result.unindexed_bytes} bytes of the log are left; "
            f"ask again later",
        )
    if result.is_cut and not result.records:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"{COMPARED_BYTES_MAX >> 20} MiB of messages have the hash of key {header.key!r} in "
            f"topic {header.topic}, and none of them has the key; ask for a shorter time",
        )
    if result.lost_count and not result.records:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"{result.lost_count} messages that may have the key are damaged, or the disk has lost "
            f"them; the broker's log has their positions",
        )
    reached = encode_header(
        QueryMessageResponseHeader(
            index_last_update_timestamp_ms=result.last_timestamp_ms,
            index_last_update_position=result.last_position,
        )
    )
    if not result.records:
        raise Refusal(
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
            ext_fields=reached,
        )
    return answer(request, ext_fields=reached, body=result.records)
