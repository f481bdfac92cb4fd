"""What differs between two looks: who came, who went, which queues changed hands."""

from __future__ import annotations

from dataclasses import replace

from group_looks import BEFORE, JOINED, QUEUES
from sparrowmq.coordination.member_marker import mark_version
from sparrowmq.doctor.case import examine
from sparrowmq.doctor.looks import (
    OwnerChange,
    SeenEvent,
    SeenEventKind,
    list_changes,
    list_events,
    look_of,
)
from sparrowmq.doctor.snapshot import (
    BrokerView,
    GroupSnapshot,
    HeldQueue,
    MemberConnection,
    MemberReport,
    QueueProgress,
    Sample,
    TopicQueues,
    TopicSnapshot,
)

Q0, Q1, Q2, Q3 = QUEUES


def snapshot(*reports: MemberReport, versions: dict[str, int]) -> GroupSnapshot:
    view = BrokerView(
        broker_name="broker-a",
        cid_all=tuple(versions),
        connections=tuple(
            MemberConnection(cid, f"10.0.0.1:{n}", "JAVA", v)
            for n, (cid, v) in enumerate(versions.items())
        ),
    )
    sample = Sample(
        at_ms=0,
        timestamp_ms=5,
        brokers=(view,),
        progress=tuple(QueueProgress(queue, 150, 100) for queue in QUEUES),
    )
    topic = TopicSnapshot(topic="T", queues=(TopicQueues("broker-a", 4, 4),))
    return GroupSnapshot(group="G", samples=(sample,), topics=(topic,), reports=reports)


def test_changes_are_the_queues_with_other_owners_and_what_their_owner_had_in_hand() -> None:
    assert list_changes(BEFORE, JOINED) == [
        OwnerChange(Q2, ("a",), ("b",), 7, 120, 1_000),
        OwnerChange(Q3, ("a",), (), 5, 120, 1_000),
    ]


def test_nothing_is_at_risk_where_a_member_that_stays_hands_over_under_locks() -> None:
    before = replace(BEFORE, marked=frozenset({"a"}))
    stays, left = JOINED, replace(JOINED, members={"b": 1})

    assert [change.at_risk for change in list_changes(before, stays)] == [0, 0]
    assert [change.at_risk for change in list_changes(before, left)] == [7, 5]


def test_events_name_who_came_and_went_and_who_has_another_ones_id() -> None:
    after = replace(JOINED, members={"b": 2})

    assert list_events(BEFORE, after) == [
        SeenEvent(SeenEventKind.LEFT, "a"),
        SeenEvent(SeenEventKind.JOINED, "b"),
        SeenEvent(SeenEventKind.TWIN, "b", "2"),
    ]
    assert list_events(after, replace(after, members={"b": 1})) == [
        SeenEvent(SeenEventKind.LEFT, "b", "1")
    ]


def test_events_name_queues_subscriptions_and_strategies_that_changed() -> None:
    after = replace(
        BEFORE, queue_counts={"T": 8}, subscriptions={"T": "paid"}, strategy="AVG_BY_CIRCLE"
    )

    assert list_events(BEFORE, after) == [
        SeenEvent(SeenEventKind.QUEUES, "T", "4 → 8"),
        SeenEvent(SeenEventKind.SUBSCRIPTION, "T", "* → paid"),
        SeenEvent(SeenEventKind.STRATEGY, "", "AVG → AVG_BY_CIRCLE"),
    ]


def test_a_group_that_everybody_left_changed_no_subscription() -> None:
    after = replace(BEFORE, members={}, subscriptions={}, strategy="AVG_BY_CIRCLE")

    assert list_events(BEFORE, after) == [SeenEvent(SeenEventKind.LEFT, "a")]


def test_what_members_hold_counts_and_not_what_they_should() -> None:
    a = MemberReport(client_id="a", held=tuple(HeldQueue(queue) for queue in (Q0, Q1, Q2)))
    b = MemberReport(client_id="b", held=(HeldQueue(Q2, is_dropped=True),))
    case = examine(snapshot(a, b, versions={"a": 1, "b": 1}))

    # By AVG, b should have 2 and 3.
    assert {queue: case.ownership.owner_ids(queue) for queue in QUEUES} == {
        Q0: ("a",),
        Q1: ("a",),
        Q2: ("a",),
        Q3: (),
    }
    assert look_of(case).unowned == 1


def test_the_strategy_decides_where_members_say_nothing_or_share_an_id() -> None:
    silent = MemberReport(client_id="b", failure="no answer")
    a = MemberReport(client_id="a", held=(HeldQueue(Q0), HeldQueue(Q1)))

    case = examine(snapshot(a, silent, versions={"a": 1, "b": 1}))

    assert {queue: case.ownership.owner_ids(queue) for queue in QUEUES} == {
        Q0: ("a",),
        Q1: ("a",),
        Q2: ("b",),
        Q3: ("b",),
    }


def test_in_hand_is_what_is_cached_and_what_is_done_but_not_committed() -> None:
    held = HeldQueue(Q0, cached_count=3, commit_offset=110)
    a = MemberReport(client_id="a", held=(held,))

    look = look_of(examine(snapshot(a, versions={"a": mark_version(401)})))

    assert look.in_hand == {Q0: 13}
    assert look.marked == {"a"}
    assert look.lag == 200
