"""The offset at which a member begins in a queue that it was just given.

| consume from where          | committed n | nothing committed | the same, of `%RETRY%group` |
|-----------------------------|-------------|-------------------|-----------------------------|
| LAST_OFFSET, the three old  | n           | the max offset    | 0                           |
| FIRST_OFFSET                | n           | 0                 | 0                           |
| TIMESTAMP                   | n           | offset by time    | the max offset              |

Offset 0 is right even if the queue's min offset is higher: the broker answers the first pull with
the min offset. A failed query does not mean "nothing committed"; the query is repeated.

Differs from RocketMQ: under LAST_OFFSET, a queue that was added while the member consumed the topic
begins at 0 (`queue_is_new`). Java begins at the max offset and so loses the messages that were sent
before the member saw the queue.

Source: RebalancePushImpl.computePullFromWhere.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from sparrowmq.model import ConsumeFromWhere
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX


class UseOffset(NamedTuple):
    """Begin at this offset."""

    offset: int


class AskMaxOffset(NamedTuple):
    """Ask the broker for the queue's max offset, and begin there."""


class AskByTimestamp(NamedTuple):
    """Ask the broker for the offset of this time, and begin there."""

    timestamp_ms: int


StartPosition: TypeAlias = UseOffset | AskMaxOffset | AskByTimestamp


def choose_start_position(
    consume_from_where: ConsumeFromWhere,
    committed_offset: int | None,
    *,
    topic: str,
    consume_timestamp_ms: int,
    queue_is_new: bool = False,
) -> StartPosition:
    """Decide where to begin.

    Args:
        consume_from_where: the group's rule.
        committed_offset: the offset that the broker returned; None if it has none.
        topic: the queue's topic.
        consume_timestamp_ms: the wall-clock time of CONSUME_FROM_TIMESTAMP.
        queue_is_new: whether the queue was added after the member's first view of the topic.
    """
    if committed_offset is not None:
        return UseOffset(committed_offset)
    is_retry_topic = topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
    if consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return UseOffset(0)
    if consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        return AskMaxOffset() if is_retry_topic else AskByTimestamp(consume_timestamp_ms)
    # CONSUME_FROM_LAST_OFFSET and the three deprecated values with the same meaning.
    return UseOffset(0) if is_retry_topic or queue_is_new else AskMaxOffset()
