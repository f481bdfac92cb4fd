"""Which offsets a broker may come back with before somebody else must have moved the group."""

from __future__ import annotations

import pytest

from sparrowmq.membership.actions import Stored
from sparrowmq.membership.group_offset import (
    KNOWN_MAX,
    WRITTEN_MS,
    GroupOffset,
    KnownOffset,
    KnownOffsets,
)
from sparrowmq.model import MessageQueue

STORED = Stored(offset=4, position=100, timestamp_ms=0)


def committed(*offsets: tuple[int, int]) -> GroupOffset:
    """Return what is known after commits: (offset, time)."""
    known = GroupOffset(0, is_committed=True, now_ms=0)
    for offset, now_ms in offsets:
        known.note(offset, now_ms)
    return known


@pytest.mark.parametrize(("found", "is_ours"), [(4, False), (5, True), (9, True), (10, False)])
def test_offset_is_ours_between_what_is_surely_written_and_what_is_finished(
    found: int, is_ours: bool
) -> None:
    known = committed((5, 0), (5, WRITTEN_MS), (7, 2 * WRITTEN_MS), (8, 2 * WRITTEN_MS + 1))

    assert known.is_ours(found, own_offset=9) is is_ours


def test_broker_may_fall_back_to_any_commit_that_may_be_unwritten() -> None:
    known = committed((5, WRITTEN_MS // 3), (6, WRITTEN_MS // 2), (7, WRITTEN_MS - 1))

    assert known.is_ours(0, own_offset=7)


def test_offset_that_a_broker_fell_back_to_is_the_lowest_again() -> None:
    known = committed((10, WRITTEN_MS), (11, 2 * WRITTEN_MS))
    known.found_again(10)
    known.note(11, 3 * WRITTEN_MS)

    assert known.is_ours(10, own_offset=11)


@pytest.mark.parametrize(("found", "is_ours"), [(4, False), (5, True), (9, True), (10, False)])
def test_offset_that_comes_after_the_broker_had_none_may_be_that_of_others(
    found: int, is_ours: bool
) -> None:
    known = committed((5, WRITTEN_MS), (7, 2 * WRITTEN_MS))
    known.found_again(None)

    assert known.is_ours(found, own_offset=9) is is_ours


def test_no_offset_at_the_broker_and_no_commit_of_ours_contradict_nothing() -> None:
    sought = GroupOffset(3, is_committed=False, now_ms=0)

    assert committed((5, 0)).is_ours(None, own_offset=5)
    assert sought.is_ours(9, own_offset=4)


def test_broker_that_is_killed_may_forget_a_commit_of_a_moment_ago() -> None:
    fresh = committed((5, 1))
    written = committed((5, 1), (5, WRITTEN_MS + 1), (5, 2 * WRITTEN_MS + 1))

    assert (fresh.may_fall_back, written.may_fall_back) == (True, False)


@pytest.mark.parametrize(
    ("address", "offset", "newest"),
    [("a:1", 5, STORED), ("a:1", 6, None), ("b:1", 5, None)],
    ids=["nothing behind it", "something behind it", "another broker"],
)
def test_newest_message_stays_known_while_the_group_stands_behind_it(
    address: str, offset: int, newest: Stored | None
) -> None:
    known, queue = KnownOffsets(), MessageQueue("T", "b", 0)
    known.note(queue, KnownOffset("a:1", 5, STORED))

    known.note(queue, KnownOffset(address, offset, None))

    assert known.find(queue, address) == KnownOffset(address, offset, newest)
    assert known.find(queue, "c:1") is None


def test_offsets_of_the_queues_noted_last_are_known() -> None:
    known, offset = KnownOffsets(), KnownOffset("a:1", 5, None)
    queues = [MessageQueue("T", "b", number) for number in range(KNOWN_MAX + 1)]
    for queue in (*queues[:KNOWN_MAX], queues[0], queues[-1]):
        known.note(queue, offset)

    assert [n for n, queue in enumerate(queues) if not known.find_newer(queue, "b:1", None)] == [1]
