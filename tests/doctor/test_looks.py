"""What differs between two views: who came, who went, which queues changed hands."""

from __future__ import annotations

from dataclasses import replace

from group_views import BEFORE, JOINED, JOINED_OWNERS, OF_A, QUEUES, view_at
from sparrowmq.coordination.member_marker import mark_version
from sparrowmq.doctor.group_snapshot import (
    BrokerView,
    GroupSnapshot,
    HeldQueue,
    MemberConnection,
    MemberReport,
    PlanSnapshot,
    QueueProgress,
    Sample,
    TopicQueues,
    TopicSnapshot,
)
from sparrowmq.doctor.group_view import examine
from sparrowmq.doctor.owner_history import (
    OwnerChange,
    SeenEvent,
    SeenEventKind,
    count_at_risk,
    list_changes,
    list_events,
)
from sparrowmq.model import MessageQueue

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
        OwnerChange(Q2, ("a",), ("b",), 7, 120, 1_000, is_lost=True),
        OwnerChange(Q3, ("a",), (), 5, 120, 1_000, is_lost=True),
    ]


def test_nothing_is_at_risk_where_a_member_that_stays_hands_over_under_locks() -> None:
    before = view_at(1_000, marked=True)
    stays, left = JOINED, view_at(2_000, JOINED_OWNERS, members={"b": 1})

    assert [change.at_risk for change in list_changes(before, stays)] == [0, 0]
    assert [change.at_risk for change in list_changes(before, left)] == [7, 5]


def test_events_name_who_came_and_went_and_who_has_another_ones_id() -> None:
    after = view_at(2_000, JOINED_OWNERS, members={"b": 2})

    assert list_events(BEFORE, after) == [
        SeenEvent(SeenEventKind.LEFT, "a"),
        SeenEvent(SeenEventKind.JOINED, "b"),
        SeenEvent(SeenEventKind.TWIN, "b", "2"),
    ]
    assert list_events(after, view_at(3_000, JOINED_OWNERS, members={"b": 1})) == [
        SeenEvent(SeenEventKind.LEFT, "b", "1")
    ]
    fewer = view_at(3_000, JOINED_OWNERS, members={"b": 2})
    assert list_events(view_at(2_000, JOINED_OWNERS, members={"b": 3}), fewer) == [
        SeenEvent(SeenEventKind.LEFT, "b", "2")
    ]
    assert list_events(fewer, fewer) == []


def test_events_name_queues_subscriptions_and_strategies_that_changed() -> None:
    owners = {MessageQueue("T", "broker-a", queue_id): ("a",) for queue_id in range(8)}
    after = view_at(2_000, owners, subscription="paid", strategy="AVG_BY_CIRCLE")

    assert list_events(BEFORE, after) == [
        SeenEvent(SeenEventKind.QUEUES, "T", "4 → 8"),
        SeenEvent(SeenEventKind.SUBSCRIPTION, "T", "* → paid"),
        SeenEvent(SeenEventKind.STRATEGY, "", "AVG → AVG_BY_CIRCLE"),
    ]


def test_a_member_that_only_a_silent_broker_lists_neither_left_nor_joins() -> None:
    silent = BrokerView(broker_name="broker-a", cid_all=None, failure="no answer")

    def looks(*brokers: BrokerView) -> GroupSnapshot:
        seen = snapshot(versions={"a": 1, "b": 1})
        return replace(seen, samples=(replace(seen.last, brokers=brokers),))

    (both,) = snapshot(versions={"a": 1, "b": 1}).last.brokers
    other = replace(both, broker_name="broker-b", cid_all=("b",), connections=both.connections[1:])
    before, after = examine(looks(both, other)), examine(looks(silent, other))
    gone = examine(looks(silent, replace(other, cid_all=(), connections=())))

    assert before.members.keys() - after.members.keys() == {"a"}
    assert list_events(before, after) == list_events(after, before) == []
    assert list_changes(before, after) == list_changes(after, before) == []
    assert list_events(before, gone) == [SeenEvent(SeenEventKind.LEFT, "b")]


def test_a_plan_moves_queues_once() -> None:
    plan = PlanSnapshot(epoch=7, moved=(Q0,), load_before=1.2, load_after=0.8)
    before, after = (
        replace(BEFORE, snapshot=replace(BEFORE.snapshot, plan=replace(plan, epoch=epoch)))
        for epoch in (6, 7)
    )

    assert list_events(before, after) == [SeenEvent(SeenEventKind.LOAD, "", "1.20 → 0.80")]
    assert list_events(after, after) == []


def test_a_group_that_everybody_left_changed_no_subscription() -> None:
    after = view_at(2_000, members={}, strategy="AVG_BY_CIRCLE")

    assert list_events(BEFORE, after) == [SeenEvent(SeenEventKind.LEFT, "a")]


def test_what_members_hold_counts_and_not_what_they_should() -> None:
    a = MemberReport(client_id="a", held=tuple(HeldQueue(queue) for queue in (Q0, Q1, Q2)))
    b = MemberReport(client_id="b", held=(HeldQueue(Q2, is_dropped=True),))
    view = examine(snapshot(a, b, versions={"a": 1, "b": 1}))

    # By AVG, b should have 2 and 3.
    assert {queue: view.ownership.owner_ids(queue) for queue in QUEUES} == {
        Q0: ("a",),
        Q1: ("a",),
        Q2: ("a",),
        Q3: (),
    }
    assert view.unowned == 1


def test_the_strategy_decides_where_members_say_nothing_or_share_an_id() -> None:
    silent = MemberReport(client_id="b", failure="no answer")
    a = MemberReport(client_id="a", held=(HeldQueue(Q0), HeldQueue(Q1)))

    view = examine(snapshot(a, silent, versions={"a": 1, "b": 1}))

    assert {queue: view.ownership.owner_ids(queue) for queue in QUEUES} == {
        Q0: ("a",),
        Q1: ("a",),
        Q2: ("b",),
        Q3: ("b",),
    }


def test_nothing_is_at_risk_at_an_owner_that_stays() -> None:
    both = view_at(2_000, {**OF_A, Q2: ("a", "b")})

    assert list_changes(BEFORE, both) == [OwnerChange(Q2, ("a",), ("a", "b"), 0, 100, 1_000)]


def test_in_hand_is_what_is_cached_and_what_is_done_but_not_committed() -> None:
    held = HeldQueue(Q0, cached_count=3, commit_offset=110)
    a = MemberReport(client_id="a", held=(held,))
    seen = snapshot(a, versions={"a": mark_version(401)})

    view = examine(seen)
    # A broker says 0 where nothing was ever committed, and the member began at the end.
    new = replace(seen.last, progress=tuple(QueueProgress(q, 150, 0) for q in QUEUES))
    assert examine(replace(seen, samples=(new,))).queues[Q0].in_hand == 3

    assert [view.queues[queue].in_hand for queue in QUEUES] == [13, 0, 0, 0]
    # Its next owner has less.
    b = MemberReport(client_id="b", held=(HeldQueue(Q0, cached_count=1),))
    assert examine(replace(seen, reports=(a, b))).queues[Q0].in_hand == 13
    assert view.marked == {"a"}
    assert view.lag() == 200


def test_members_of_a_broadcasting_group_take_no_queue_from_one_another() -> None:
    both = dict.fromkeys(QUEUES, ("a", "b"))
    before = view_at(1_000, is_broadcasting=True)
    after = view_at(2_000, both, offsets=200, is_broadcasting=True)

    assert list_changes(before, after) == []
    assert count_at_risk(after, view_at(3_000, both, offsets=300, is_broadcasting=True)) == 0


def test_what_came_through_a_queue_with_two_owners_may_be_consumed_twice() -> None:
    owners = {**OF_A, QUEUES[0]: ("a", "b")}

    assert count_at_risk(view_at(1_000, owners), view_at(2_000, owners, offsets=117)) == 17


def test_a_member_consumes_a_queue_until_it_has_committed() -> None:
    states = ("STARTING", "CONSUMING", "DRAINING", "COMMITTING", "UNLOCKING")

    assert [HeldQueue(Q0, state=state).is_consumed for state in states] == [
        *(False, True, True, True, False)
    ]


def test_owners_are_dated_exactly_only_if_the_look_before_had_others() -> None:
    first = examine(snapshot(versions={"a": 1}))
    changed = snapshot(versions={"b": 1})

    assert {each.is_exact for each in first.standings.values()} == {False}
    for is_watched in (True, False):
        view = examine(changed, first.standings, is_watched=is_watched)
        assert {each.is_exact for each in view.standings.values()} == {is_watched}


def test_a_plan_that_moves_nothing_for_load_is_no_event() -> None:
    before, after = (
        replace(view, snapshot=replace(view.snapshot, plan=PlanSnapshot(epoch=epoch, moved=moved)))
        for view, epoch, moved in ((BEFORE, 1, (Q0,)), (view_at(2_000), 2, ()))
    )

    assert list_events(before, after) == []
    assert [event.kind for event in list_events(after, before)] == [SeenEventKind.LOAD]


def test_queues_that_are_gone_are_an_event() -> None:
    fewer = view_at(2_000, {Q0: ("a",), Q1: ("a",)})

    assert list_events(BEFORE, fewer) == [SeenEvent(SeenEventKind.QUEUES, "T", "4 → 2")]
