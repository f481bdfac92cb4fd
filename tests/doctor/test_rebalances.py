"""From changes of owners to rebalances: their causes, and their cost in time and duplicates."""

from __future__ import annotations

from sparrowmq.doctor.owner_history import (
    UNSETTLED_MS,
    At,
    GroupRebalance,
    OwnedSpan,
    OwnerChange,
    QueueMove,
    SeenEvent,
    SeenEventKind,
    count_recent,
    describe_moves,
    describe_reason,
    list_rebalances,
    list_seen_spans,
)
from sparrowmq.model import MessageQueue

Q0, Q1 = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(2))
JOIN = SeenEvent(SeenEventKind.JOINED, "b")


def rebalances(*seen: At, until_ms: int = 100_000) -> list[GroupRebalance]:
    return list_rebalances(seen, until_ms=until_ms, offsets={Q0: 500, Q1: 500})


def test_a_queue_that_two_looks_saw_change_hands_moved_once_and_was_nobodys_meanwhile() -> None:
    (found,) = rebalances(
        At(10_000, JOIN),
        At(10_000, OwnerChange(Q0, ("a",), (), 4, 100, gap_ms=1_500)),
        At(10_400, OwnerChange(Q0, (), ("b",), 0, 100)),
    )

    assert found.events == (JOIN,)
    assert found.moves == (QueueMove(Q0, ("a",), ("b",)),)
    assert found.settled_ms == 1_900, "it may have begun right after the look before"
    assert found.longest_unowned_ms == 400
    assert found.longest_double_ms == 0
    assert found.at_risk == 4


def test_changes_far_apart_are_rebalances_of_their_own_the_newest_first() -> None:
    newest, oldest = rebalances(
        At(10_000, OwnerChange(Q0, ("a",), ("b",))),
        At(15_001, OwnerChange(Q1, ("a",), ("b",))),
    )

    assert [move.queue for move in newest.moves] == [Q1]
    assert [move.queue for move in oldest.moves] == [Q0]


def test_a_cause_belongs_to_moves_that_come_within_ten_seconds() -> None:
    (one,) = rebalances(At(10_000, JOIN), At(20_000, OwnerChange(Q0, ("a",), ("b",))))
    two = rebalances(At(10_000, JOIN), At(20_001, OwnerChange(Q0, ("a",), ("b",))))

    assert one.events == (JOIN,)
    assert [(each.events, len(each.moves)) for each in two] == [((), 1), ((JOIN,), 0)]
    # A member did come, and its queues were released later.
    reason = describe_reason(two[0].events)
    assert reason.startswith("no member came or went in the 10 s before: ")


def test_who_goes_once_all_is_settled_begins_another_rebalance() -> None:
    leave = SeenEvent(SeenEventKind.LEFT, "b")
    newest, oldest = rebalances(
        At(10_000, JOIN),
        At(10_000, OwnerChange(Q0, ("a",), ("b",))),
        At(12_000, leave),
        At(12_000, OwnerChange(Q0, ("b",), ("a",))),
    )

    assert [oldest.events, newest.events] == [(JOIN,), (leave,)]


def test_who_goes_while_a_queue_is_nobodys_is_of_the_same_rebalance() -> None:
    leave = SeenEvent(SeenEventKind.LEFT, "b")
    (found,) = rebalances(
        At(10_000, JOIN),
        At(10_000, OwnerChange(Q0, ("a",), ())),
        At(12_000, leave),
        At(12_000, OwnerChange(Q0, (), ("a",))),
    )

    assert found.events == (JOIN, leave)


def test_rebalance_goes_on_until_each_queue_has_one_owner() -> None:
    (found,) = rebalances(
        At(10_000, OwnerChange(Q0, ("a",), ())),
        At(50_000, OwnerChange(Q0, (), ("b",))),
    )

    assert found.moves == (QueueMove(Q0, ("a",), ("b",)),)
    assert (found.longest_unowned_ms, found.settled_ms) == (40_000, 40_000)


def test_trouble_that_lasts_too_long_counts_until_the_queue_changes_hands_next() -> None:
    healed, began = rebalances(
        At(10_000, OwnerChange(Q0, ("a",), ())),
        At(10_001 + UNSETTLED_MS, OwnerChange(Q0, (), ("b",))),
        until_ms=500_000,
    )

    assert (began.longest_unowned_ms, began.settled_ms) == (UNSETTLED_MS + 1, None)
    assert healed.longest_unowned_ms == 0


def test_time_of_one_queue_and_of_any_queue_without_owner_are_two_figures() -> None:
    (found,) = rebalances(
        At(10_000, OwnerChange(Q0, ("a",), ())),
        At(10_300, OwnerChange(Q1, ("a",), ())),
        At(10_400, OwnerChange(Q0, (), ("b",))),
        At(10_900, OwnerChange(Q1, (), ("b",))),
    )

    assert (found.longest_unowned_ms, found.any_unowned_ms) == (600, 900)
    assert (found.longest_double_ms, found.any_double_ms) == (0, 0)


def test_reason_is_the_first_event_unless_the_queue_moved_before() -> None:
    late, joined = rebalances(
        At(10_000, JOIN),
        At(11_000, OwnerChange(Q0, ("a",), ("b",))),
        At(30_000, OwnerChange(Q0, ("b",), ())),
        At(31_000, SeenEvent(SeenEventKind.LEFT, "b")),
        At(31_000, OwnerChange(Q0, (), ("a",))),
    )

    assert [late.reason, joined.reason] == [None, SeenEventKind.JOINED]


def test_trouble_that_goes_on_counts_until_now() -> None:
    (found,) = rebalances(At(10_000, OwnerChange(Q0, ("a",), ("a", "a"), 0, 100)), until_ms=70_000)

    assert found.longest_double_ms == 60_000
    assert found.settled_ms is None


def test_everything_that_came_through_a_queue_of_two_was_consumed_twice_at_most() -> None:
    (found,) = rebalances(
        At(10_000, OwnerChange(Q0, ("a",), ("a", "b"), 3, 100)),
        At(30_000, OwnerChange(Q0, ("a", "b"), ("b",), 0, 160)),
    )

    assert found.at_risk == 63


def test_a_queue_that_came_back_did_not_move() -> None:
    (found,) = rebalances(
        At(10_000, OwnerChange(Q0, ("a",), ())), At(10_400, OwnerChange(Q0, (), ("a",)))
    )

    assert found.moves == ()
    assert found.longest_unowned_ms == 400


def test_moves_name_their_topics_where_there_are_several() -> None:
    moves = [QueueMove(queue, ("a",), ("b",)) for queue in (Q0, Q1, Q0._replace(topic="U"))]

    assert describe_moves(moves[:2], " + ".join) == "a → b: broker-a:0, 1"
    assert describe_moves(moves, " + ".join) == "a → b: T broker-a:0, 1, U broker-a:0"


def test_without_anything_seen_there_is_no_rebalance() -> None:
    assert rebalances() == []


def test_only_rebalances_of_the_last_ten_minutes_that_moved_something_are_recent() -> None:
    found = rebalances(
        At(10_000, OwnerChange(Q0, ("a",), ("b",))),
        At(500_000, JOIN),
        At(600_000, OwnerChange(Q0, ("b",), ("a",))),
        until_ms=700_000,
    )

    assert count_recent(found, until_ms=700_000) == 1


def test_queues_that_a_plan_moves_for_load_are_no_sign_of_members_that_come_and_go() -> None:
    load = SeenEvent(SeenEventKind.LOAD, "", "1.20 → 1.00")
    found = rebalances(
        At(600_000, load),
        At(600_000, OwnerChange(Q0, ("a",), ("b",))),
        At(650_000, JOIN),
        At(650_000, OwnerChange(Q0, ("b",), ("a",))),
        until_ms=700_000,
    )

    assert [len(each.moves) for each in found] == [1, 1]
    assert count_recent(found, until_ms=700_000) == 1


def test_bands_follow_the_owners_and_leave_out_when_nobody_looked() -> None:
    seen = [At(40_000, OwnerChange(Q0, ("a",), ("b",)))]

    watched = [(0, 4_000), (5_000, 20_000), (30_000, 60_000), (80_000, 90_000)]
    bands = list_seen_spans(Q0, ("b",), seen, watched, since_ms=10_000, until_ms=70_000)

    assert bands == [
        OwnedSpan(Q0, 10_000, 20_000, ("a",)),
        OwnedSpan(Q0, 20_000, 30_000, None),
        OwnedSpan(Q0, 30_000, 40_000, ("a",)),
        OwnedSpan(Q0, 40_000, 60_000, ("b",)),
        OwnedSpan(Q0, 60_000, 70_000, None),
    ]


def test_a_queue_without_changes_has_one_band_of_its_owners() -> None:
    (band,) = list_seen_spans(Q0, ("b",), [], [(0, 100)], since_ms=0, until_ms=100)

    assert band == OwnedSpan(Q0, 0, 100, ("b",))


def test_only_queues_that_were_lost_say_how_long_nobody_looked() -> None:
    handed_over = At(10_000, OwnerChange(Q0, ("a",), ("b",), gap_ms=20_000))
    lost = At(10_000, OwnerChange(Q1, ("a",), ("b",), gap_ms=400, is_lost=True))

    (well,) = rebalances(handed_over)
    (both,) = rebalances(handed_over, lost)

    assert (well.lost_gap_ms, both.lost_gap_ms) == (None, 400)
