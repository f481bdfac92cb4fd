"""What is counted of a group from look to look."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from sparrowmq.doctor.looks import Look
from sparrowmq.exporter.course import GroupCourse
from sparrowmq.model import MessageQueue

QUEUES = [MessageQueue("flights", "broker-a", n) for n in range(2)]
CASE: Any = SimpleNamespace(snapshot=SimpleNamespace(is_broadcasting=False))


def look(timestamp_ms: int, *owners: tuple[str, ...], **other: Any) -> Look:
    members = {client_id: 1 for ids in owners for client_id in ids}
    made = Look(
        timestamp_ms=timestamp_ms,
        members=members,
        marked=frozenset(),
        owners=dict(zip(QUEUES, owners, strict=True)),
        in_hand={},
        offsets={},
        queue_counts={"flights": 2},
        subscriptions={},
        strategy="AVG",
        lag=0,
        unowned=sum(not ids for ids in owners),
        double=sum(len(ids) > 1 for ids in owners),
    )
    return replace(made, **other)


def course_of(*looks: Look) -> GroupCourse:
    course = GroupCourse()
    for each in looks:
        course.note(CASE, (), each)
    return course


def test_member_that_joins_is_one_rebalance_until_every_queue_has_one_owner() -> None:
    course = course_of(
        look(0, ("a",), ("a",)),
        look(15_000, ("a",), (), members={"a": 1, "b": 1}),
        look(16_000, ("a",), (), members={"a": 1, "b": 1}),
    )
    assert course.is_moving

    course.note(CASE, (), look(17_000, ("a",), ("b",)))

    assert not course.is_moving
    assert dict(course.rebalances) == {"joined": 1}
    assert course.rebalance_s_sum == 17.0
    assert dict(course.rebalance_s) == {20.0: 1}


def test_first_look_and_looks_without_a_change_count_nothing() -> None:
    course = course_of(look(0, ("a",), ("b",)), look(1_000, ("a",), ("b",)))

    counts = (course.rebalances.total(), course.rebalance_s.total())
    assert counts == (0, 0)
    assert not course.is_moving


def test_group_whose_last_member_left_has_no_handover_time() -> None:
    course = course_of(look(0, ("a",), ("a",)), look(1_000, (), ()))

    assert dict(course.rebalances) == {"left": 1}
    assert course.rebalance_s.total() == 0
    assert not course.is_moving


def test_queues_that_move_long_after_an_event_do_so_for_an_unknown_reason() -> None:
    three = {"a": 1, "b": 1, "c": 1}
    course = course_of(
        look(0, ("a",), ("b",), members={"a": 1, "b": 1}),
        look(1_000, ("a",), ("b",), members=three),
        look(60_000, ("b",), ("a",), members=three),
    )

    assert dict(course.rebalances) == {"unknown": 1}


def test_what_came_through_a_queue_with_two_owners_may_be_consumed_twice() -> None:
    both = {"a": 1, "b": 1}
    course = course_of(
        look(0, ("a", "b"), ("b",), members=both, offsets={QUEUES[0]: 10, QUEUES[1]: 10}),
        look(1_000, ("a", "b"), ("b",), members=both, offsets={QUEUES[0]: 17, QUEUES[1]: 99}),
    )

    assert course.possible_duplicates == 7
