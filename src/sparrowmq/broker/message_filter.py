"""The messages that a subscription selects: by tag codes, or by a condition over properties.

Differs from RocketMQ: conditions need no `enablePropertyFilter`. A condition that cannot be parsed
is refused at once; RocketMQ delivers every message to a pull that carries one.

Source: ExpressionMessageFilter.java, ConsumerFilterManager.java. Tests: test_pull.py.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sparrowmq.errors import LocalProtocolError, RemoteProtocolError
from sparrowmq.protocol.bodies import SubscriptionData
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.record import decode_record
from sparrowmq.protocol.sql92 import Condition, parse_condition
from sparrowmq.protocol.subscription import (
    EXPRESSION_TYPE_SQL92,
    EXPRESSION_TYPE_TAG,
    SUBSCRIBE_ALL,
)
from sparrowmq.store.results import GetResult, GetStatus

# GetMessageResult: how many messages one filtered pull examines (maxFilterMessageCount / 20).
EXAMINED_COUNT_MAX = 800
# The cost of examining, some 40 ms at most. A character of a message's properties costs 1; a
# character of the condition costs 4 for each message. A condition of 4,096 characters therefore
# examines 48 messages.
EXAMINATION_COST_MAX = 800_000
_CONDITION_CHARACTER_COST = 4


class MessageFilter(NamedTuple):
    """The filters of a subscription; a filter that is None leaves no message out.

    Args:
        tags: the tags of `tags_codes`. Pulls compare only the codes, as in RocketMQ, where their
            consumers compare the tags themselves.
    """

    tags_codes: frozenset[int] | None = None
    condition: Condition | None = None
    tags: frozenset[str] = frozenset()


def make_filter(data: SubscriptionData) -> MessageFilter:
    """Return the filter of a subscription.

    Raises: LocalProtocolError for a condition that cannot be parsed, or an unknown type of filter.
    """
    if data.expression_type == EXPRESSION_TYPE_SQL92:
        return MessageFilter(condition=parse_condition(data.sub_string))
    if data.expression_type != EXPRESSION_TYPE_TAG:
        raise LocalProtocolError(
            f"a filter of type {data.expression_type[:40]!r}; "
            f"it must be {EXPRESSION_TYPE_TAG} or {EXPRESSION_TYPE_SQL92}"
        )
    if data.sub_string == SUBSCRIBE_ALL or not data.code_set:
        return MessageFilter()
    return MessageFilter(tags_codes=frozenset(data.code_set), tags=data.tags_set)


def keep_matching(
    result: GetResult, condition: Condition, *, count_max: int, bytes_max: int
) -> GetResult:
    """Return the result of a pull without the messages that a condition rejects.

    The result ends before the first selected message that does not fit `count_max` or `bytes_max`;
    one message always fits. The result also ends where `EXAMINATION_COST_MAX` is reached, and
    before a damaged record. If the first record is damaged, the result is returned as it is.
    """
    if result.status is not GetStatus.FOUND:
        return result
    kept: list[memoryview] = []
    records, at, total = memoryview(result.records), 0, 0
    next_offset, cost = result.next_offset, 0
    examined_to: int | None = None
    condition_cost = _CONDITION_CHARACTER_COST * len(condition.text)
    while at < len(records):
        try:
            record = decode_record(records, at, check_crc=False)
        except RemoteProtocolError:
            # A reader stops at this record: it is the first of the next result.
            if examined_to is None:
                return result
            next_offset = examined_to
            break
        examined_to = record.queue_offset + 1
        if cost > EXAMINATION_COST_MAX:
            next_offset = record.queue_offset
            break
        cost += condition_cost + len(record.properties)
        if condition.matches(parse_properties(record.properties)):
            if kept and (len(kept) == count_max or total + record.size > bytes_max):
                next_offset = record.queue_offset
                break
            kept.append(records[at : at + record.size])
            total += record.size
        at += record.size
    status = GetStatus.FOUND if kept else GetStatus.NO_MATCHED_MESSAGE
    return msgspec.structs.replace(
        result, status=status, next_offset=next_offset, records=b"".join(kept), count=len(kept)
    )
