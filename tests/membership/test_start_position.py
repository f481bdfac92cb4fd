from __future__ import annotations

import pytest

from sparrowmq.membership.start_position import (
    AskByTimestamp,
    AskMaxOffset,
    StartPosition,
    UseOffset,
    choose_start_position,
)
from sparrowmq.model import ConsumeFromWhere

LAST = [
    ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST,
    ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET,
    ConsumeFromWhere.CONSUME_FROM_MAX_OFFSET,
]
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
TIME_MS = 1_700_000_000_000


def choose(
    where: ConsumeFromWhere,
    committed: int | None,
    topic: str = "T",
    *,
    queue_is_new: bool = False,
) -> StartPosition:
    return choose_start_position(
        where, committed, topic=topic, consume_timestamp_ms=TIME_MS, queue_is_new=queue_is_new
    )


@pytest.mark.parametrize("where", ConsumeFromWhere)
@pytest.mark.parametrize("topic", ["T", "%RETRY%G"])
@pytest.mark.parametrize("committed", [0, 7])
def test_a_committed_offset_always_counts(
    where: ConsumeFromWhere, topic: str, committed: int
) -> None:
    assert choose(where, committed, topic, queue_is_new=True) == UseOffset(committed)


@pytest.mark.parametrize(
    ("where", "topic", "expected"),
    [
        *((where, "T", AskMaxOffset()) for where in LAST),
        *((where, "%RETRY%G", UseOffset(0)) for where in LAST),
        (FIRST, "T", UseOffset(0)),
        (FIRST, "%RETRY%G", UseOffset(0)),
        (TIMESTAMP, "T", AskByTimestamp(TIME_MS)),
        (TIMESTAMP, "%RETRY%G", AskMaxOffset()),
    ],
)
def test_without_a_committed_offset_the_rule_decides(
    where: ConsumeFromWhere, topic: str, expected: StartPosition
) -> None:
    assert choose(where, None, topic) == expected


@pytest.mark.parametrize("where", LAST)
def test_a_queue_added_later_is_read_from_its_beginning(where: ConsumeFromWhere) -> None:
    assert choose(where, None, queue_is_new=True) == UseOffset(0)


def test_a_queue_added_later_still_follows_a_timestamp() -> None:
    assert choose(TIMESTAMP, None, queue_is_new=True) == AskByTimestamp(TIME_MS)
