"""How a member takes queues over and gives them back: locks, leases, patience."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from queue_messages import in_hand, message
from sparrowmq.coordination.member_marker import MARKED_LEASE_MS, MARKED_LEASE_RENEWAL_MS
from sparrowmq.membership.actions import (
    AbandonPull,
    Acquire,
    Action,
    AskMembers,
    Commit,
    CommitLost,
    Deliver,
    Leave,
    Pull,
    QueueLost,
    RefreshRoutes,
    Regain,
    RenewLocks,
    Unlock,
)
from sparrowmq.membership.lock_rounds import LOCK_ASK_MS, MEMBERS_ASKED_MS
from sparrowmq.membership.member import LEAVE_WAIT_MS, GroupMember, MemberConfig, TopicShare
from sparrowmq.membership.owned_queue import UNLOCK_LOST_MS
from sparrowmq.membership.process_queue import stored_of
from sparrowmq.membership.queue_lease import (
    LOCK_RETRY_FIRST_MS,
    LOCK_RETRY_MS,
    LOCK_RETRY_SOON_MS,
    PATIENCE_MARGIN_MS,
)
from sparrowmq.model import MessageQueue

CONFIG = MemberConfig(group="G", client_id="c0", drain_timeout_ms=2_000, rebalance_ms=10**9)
Q0, Q1 = (MessageQueue("T", "b", n) for n in range(2))


def given(*queues: MessageQueue, config: MemberConfig = CONFIG) -> GroupMember:
    """Return a member whose share these queues are, at time 0; nothing is acquired yet."""
    member = GroupMember(config, topics={"T"}, now_ms=0)
    member.due(0)
    member.routes_refreshed(found=["T"], has_changed=True, now_ms=0)
    member.due(0)
    member.heartbeat_done(reached=1, failed=0, now_ms=0)
    member.due(0)
    rebalance(member, *queues, now_ms=0)
    return member


A = TypeVar("A", bound=Action)


def rebalance(member: GroupMember, *queues: MessageQueue, now_ms: int) -> None:
    member.rebalanced([TopicShare("T", queues, ("c0", "c1"))], now_ms)


def take(member: GroupMember, queue: MessageQueue = Q0, *, now_ms: int = 0) -> int:
    """Acquire the queue with its lock from offset 5; returns its epoch. Its pull is under way."""
    (acquire,) = (a for a in of(member, Acquire, now_ms) if a.queue == queue)
    member.acquired(
        queue, acquire.epoch, offset=5, is_committed=True, lock_sent_ms=now_ms, now_ms=now_ms
    )
    of(member, Pull, now_ms)
    return acquire.epoch


def of(member: GroupMember, kind: type[A], now_ms: int) -> list[A]:
    """Return what is due of one kind."""
    return [action for action in member.due(now_ms) if isinstance(action, kind)]


def renew(member: GroupMember, *, now_ms: int, held: tuple[MessageQueue, ...] | None) -> None:
    (action,) = of(member, RenewLocks, now_ms)
    assert isinstance(action, RenewLocks)
    member.locks_renewed(action, held=held, now_ms=now_ms)


def pulled(member: GroupMember, epoch: int, count: int, *, now_ms: int) -> None:
    messages = [message(5 + n) for n in range(count)]
    member.pulled(Q0, epoch, offset=5, messages=messages, next_offset=5 + count, now_ms=now_ms)


# --- taking over ----------------------------------------------------------------------------


def test_refused_lock_is_asked_for_soon_and_then_less_often_while_the_owner_is_listed() -> None:
    member = given(Q0)
    asked_ms = []
    for now_ms in range(0, 210, 5):
        for action in of(member, Acquire, now_ms):
            assert action == Acquire(Q0, 1, wants_lock=True)
            asked_ms.append(now_ms)
            member.lock_refused(Q0, 1, is_owner_listed=True, now_ms=now_ms)

    soon = list(range(0, LOCK_RETRY_SOON_MS, LOCK_RETRY_FIRST_MS))
    assert [*soon, 100, 100 + LOCK_RETRY_MS, 100 + 2 * LOCK_RETRY_MS] == asked_ms


def test_refused_lock_of_an_owner_that_is_gone_costs_nothing() -> None:
    member = given(Q0)
    of(member, Acquire, 0)

    member.lock_refused(Q0, 1, is_owner_listed=False, now_ms=1)

    assert of(member, Acquire, 1) == [Acquire(Q0, 1, wants_lock=False)]


def test_patience_with_a_listed_owner_ends_a_second_after_its_drain() -> None:
    member = given(Q0)
    of(member, Acquire, 0)
    member.lock_refused(Q0, 1, is_owner_listed=True, now_ms=0)
    patience_ms = CONFIG.drain_timeout_ms + PATIENCE_MARGIN_MS

    before = of(member, Acquire, patience_ms - 1)
    member.lock_refused(Q0, 1, is_owner_listed=True, now_ms=patience_ms)
    after = of(member, Acquire, patience_ms)

    assert before == [Acquire(Q0, 1, wants_lock=True)]
    assert after == [Acquire(Q0, 1, wants_lock=False)]


def test_queue_taken_without_its_lock_is_consumed_and_the_lock_asked_for() -> None:
    member = given(Q0)
    of(member, Acquire, 0)
    member.lock_refused(Q0, 1, is_owner_listed=False, now_ms=0)
    of(member, Acquire, 0)
    member.acquired(Q0, 1, offset=5, is_committed=True, now_ms=0)
    pulls = of(member, Pull, 0)
    pulled(member, 1, 1, now_ms=0)
    for now_ms in range(LOCK_ASK_MS, 2 * MARKED_LEASE_MS, LOCK_ASK_MS):
        renew(member, now_ms=now_ms, held=())
    granted_ms = 2 * MARKED_LEASE_MS
    renew(member, now_ms=granted_ms, held=(Q0,))

    assert pulls == [Pull(Q0, 1, 5)]
    assert of(member, Regain, granted_ms + MARKED_LEASE_MS - 1) == []
    # From now on it is believed in for as long as the lease lasts.
    assert of(member, Regain, granted_ms + MARKED_LEASE_MS) == [
        Regain(Q0, 1, wants_lock=True, newest=stored_of(message(5)))
    ]


def test_member_that_wakes_late_without_a_lock_asks_before_it_delivers_or_commits() -> None:
    member = given(Q0)
    of(member, Acquire, 0)
    member.lock_refused(Q0, 1, is_owner_listed=False, now_ms=0)
    of(member, Acquire, 0)
    member.acquired(Q0, 1, offset=5, is_committed=True, now_ms=0)
    of(member, Pull, 0)
    pulled(member, 1, 2, now_ms=0)
    (delivery,) = of(member, Deliver, 1)
    assert isinstance(delivery, Deliver)
    member.consumed(delivery, 0, acked_count=1)

    woken = [a for a in member.due(MARKED_LEASE_MS) if not isinstance(a, RefreshRoutes)]
    member.regained(Q0, 1, found=9, has_newest=True, now_ms=MARKED_LEASE_MS + 1)

    assert woken == [Regain(Q0, 1, wants_lock=False, newest=stored_of(message(6)))]
    assert [a for a in member.take_facts() if isinstance(a, QueueLost)] == [QueueLost(Q0)]
    assert of(member, Acquire, MARKED_LEASE_MS + 1) == [
        Acquire(Q0, 2, wants_lock=True, newest=stored_of(message(6)))
    ]


def test_broadcasting_takes_no_locks() -> None:
    config = MemberConfig(group="G", client_id="c0", is_broadcasting=True)
    member = given(Q0, config=config)

    assert of(member, Acquire, 0) == [Acquire(Q0, 1, wants_lock=False)]
    member.acquired(Q0, 1, offset=5, is_committed=True, now_ms=0)
    assert of(member, RenewLocks, 10 * MARKED_LEASE_RENEWAL_MS) == []


# --- holding --------------------------------------------------------------------------------


def test_locks_are_renewed_together_before_their_leases_end() -> None:
    member = given(Q0, Q1)
    take(member, Q0)
    member.acquired(Q1, 2, offset=0, is_committed=True, lock_sent_ms=0, now_ms=0)

    for now_ms in range(MARKED_LEASE_RENEWAL_MS, 60_000, MARKED_LEASE_RENEWAL_MS):
        assert of(member, RenewLocks, now_ms) == [RenewLocks("b", (Q0, Q1), now_ms)]
        member.locks_renewed(RenewLocks("b", (Q0, Q1), now_ms), held=(Q0, Q1), now_ms=now_ms + 1)
        assert of(member, Acquire, now_ms + 1) == []


def refused(member: GroupMember, *, until_ms: int) -> list[AskMembers]:
    """Have the lock of the first queue refused until an instant; return what was asked."""
    asked: list[AskMembers] = []
    for now_ms in range(0, until_ms + 1, 10):
        for action in member.due(now_ms):
            if isinstance(action, Acquire):
                assert action.wants_lock
                member.lock_refused(Q0, action.epoch, is_owner_listed=True, now_ms=now_ms)
            elif isinstance(action, AskMembers):
                asked.append(action)
    return asked


def test_lock_that_no_listed_member_can_hold_is_asked_for_once_more_and_then_done_without() -> None:
    member = given(Q0)
    (asked,) = refused(member, until_ms=MEMBERS_ASKED_MS)

    member.members_asked(asked, in_hand=(Q1,), now_ms=MEMBERS_ASKED_MS + 5)
    assert of(member, Acquire, MEMBERS_ASKED_MS + 5) == [Acquire(Q0, 1, wants_lock=True)]
    member.lock_refused(Q0, 1, is_owner_listed=True, now_ms=MEMBERS_ASKED_MS + 6)

    assert of(member, Acquire, MEMBERS_ASKED_MS + 6) == [Acquire(Q0, 1, wants_lock=False)]


def test_refusal_of_a_request_that_was_sent_before_the_members_told_counts_for_nothing() -> None:
    member = given(Q0)
    (asked,) = refused(member, until_ms=MEMBERS_ASKED_MS)
    late_ms = MEMBERS_ASKED_MS + LOCK_RETRY_MS
    assert len(of(member, Acquire, late_ms)) == 1

    # Whoever had the queue may have given it back between the request and what it told.
    member.members_asked(asked, in_hand=(), now_ms=late_ms + 1)
    member.lock_refused(Q0, 1, is_owner_listed=True, now_ms=late_ms + 2)

    assert of(member, Acquire, late_ms + 2) == [Acquire(Q0, 1, wants_lock=True)]


def test_members_are_asked_at_growing_intervals_while_one_has_the_queue() -> None:
    member = given(Q0)
    times_ms: list[int] = []
    for now_ms in range(0, 2_000, 10):
        for action in member.due(now_ms):
            if isinstance(action, Acquire):
                member.lock_refused(Q0, 1, is_owner_listed=True, now_ms=now_ms)
            elif isinstance(action, AskMembers):
                times_ms.append(now_ms)
                member.members_asked(action, in_hand=(Q0,), now_ms=now_ms)

    assert times_ms == [40, 120, 280, 600, 1_240]


def test_member_that_does_not_tell_is_not_asked_again_for_long() -> None:
    member = given(Q0)
    (asked,) = refused(member, until_ms=MEMBERS_ASKED_MS)

    member.members_asked(asked, in_hand=None, now_ms=MEMBERS_ASKED_MS)

    assert [a for n in range(0, 1_900, 50) for a in of(member, AskMembers, 150 + n)] == []


def test_orderly_member_waits_for_the_lock_without_asking_others() -> None:
    member = given(Q0, config=replace(CONFIG, is_orderly=True))

    assert refused(member, until_ms=3_000) == []


def test_queue_whose_start_came_with_the_refusal_of_its_lock_is_asked_for_again_as_well() -> None:
    member = given(Q0)
    of(member, Acquire, 0)

    # One answer to both: no further request was sent.
    assert member.lock_refused(Q0, 1, is_owner_listed=False, now_ms=1)
    member.acquired(Q0, 1, offset=5, is_committed=True, now_ms=1)

    assert of(member, Regain, MARKED_LEASE_MS - 1) == []
    assert of(member, Regain, MARKED_LEASE_MS) == [Regain(Q0, 1, wants_lock=False, newest=None)]


def test_member_that_wakes_late_neither_delivers_nor_commits() -> None:
    member = given(Q0)
    epoch = take(member)
    pulled(member, epoch, 2, now_ms=1)
    (delivery,) = of(member, Deliver, 1)
    assert isinstance(delivery, Deliver)
    member.consumed(delivery, 0, acked_count=1)

    woken = [a for a in member.due(MARKED_LEASE_MS) if not isinstance(a, RefreshRoutes)]

    assert woken == [Regain(Q0, epoch, wants_lock=True, newest=stored_of(message(6)))]
    pulled(member, epoch, 2, now_ms=MARKED_LEASE_MS)
    member.lock_refused(Q0, epoch, is_owner_listed=True, now_ms=MARKED_LEASE_MS + 1)
    member.consumed(delivery, 1, acked_count=1)
    after = member.due(MARKED_LEASE_MS + 1)
    assert [action for action in after if not isinstance(action, AbandonPull)] == [
        Acquire(Q0, epoch + 1, wants_lock=True, newest=stored_of(message(6)))
    ]
    assert QueueLost(Q0) in member.take_facts()
    assert len(member.deliveries) == 0


def test_consumption_goes_on_where_the_lock_ran_out_and_nobody_came() -> None:
    member = given(Q0)
    epoch = take(member)
    pulled(member, epoch, 1, now_ms=1)
    (delivery,) = of(member, Deliver, 1)
    assert isinstance(delivery, Deliver)
    of(member, Acquire, MARKED_LEASE_MS)
    member.consumed(delivery, acked_count=1)

    member.acquired(
        Q0,
        epoch,
        offset=5,
        is_committed=True,
        lock_sent_ms=MARKED_LEASE_MS,
        now_ms=MARKED_LEASE_MS + 1,
    )

    assert of(member, Commit, MARKED_LEASE_MS + 1) == [Commit(Q0, epoch, 6, is_last=False)]
    assert QueueLost(Q0) not in member.take_facts()


def test_queue_is_lost_if_somebody_committed_while_the_lock_had_run_out() -> None:
    member = given(Q0)
    epoch = take(member)
    of(member, Regain, MARKED_LEASE_MS)

    member.regained(
        Q0, epoch, found=9, has_newest=True, lock_sent_ms=MARKED_LEASE_MS, now_ms=MARKED_LEASE_MS
    )

    assert of(member, Acquire, MARKED_LEASE_MS) == [Acquire(Q0, epoch + 1, wants_lock=True)]
    assert QueueLost(Q0) in member.take_facts()


def test_refused_renewal_stops_deliveries_at_once() -> None:
    member = given(Q0)
    epoch = take(member)

    renew(member, now_ms=MARKED_LEASE_RENEWAL_MS, held=())
    pulled(member, epoch, 1, now_ms=MARKED_LEASE_RENEWAL_MS)
    actions = member.due(MARKED_LEASE_RENEWAL_MS)

    assert actions == [Regain(Q0, epoch, wants_lock=True, newest=stored_of(message(5)))]


def test_renewal_without_an_answer_is_repeated_and_the_lease_counts_on() -> None:
    member = given(Q0)
    take(member)

    renew(member, now_ms=MARKED_LEASE_RENEWAL_MS, held=None)

    assert of(member, Regain, MARKED_LEASE_RENEWAL_MS) == []
    assert len(of(member, RenewLocks, MARKED_LEASE_RENEWAL_MS + LOCK_ASK_MS)) == 1
    assert len(of(member, Regain, MARKED_LEASE_MS)) == 1


def test_member_that_has_left_waits_for_its_locks_to_be_taken_back_within_a_bound() -> None:
    member = given(Q0)
    take(member)
    member.leave(1)
    assert [type(action) for action in member.due(1)][-2:] == [Unlock, Leave]
    member.left()

    member.due(LEAVE_WAIT_MS)
    is_done_early = member.is_done
    member.due(1 + LEAVE_WAIT_MS)

    assert (is_done_early, member.is_done) == (False, True)


# --- giving back ----------------------------------------------------------------------------


def test_lock_is_given_back_after_the_last_commit_is_answered() -> None:
    member = given(Q0)
    epoch = take(member)
    pulled(member, epoch, 1, now_ms=1)
    (delivery,) = of(member, Deliver, 1)
    assert isinstance(delivery, Deliver)

    rebalance(member, now_ms=2)
    draining = [action for action in member.due(2) if not isinstance(action, AbandonPull)]
    member.consumed(delivery, acked_count=1)
    drained = member.due(3)
    member.committed(Q0, epoch, offset=6, now_ms=4)
    committed = member.due(4)
    held = member.holds(Q0)
    in_hand(member, Q0, epoch).unlocked()

    assert draining == []
    assert drained == [Commit(Q0, epoch, 6, is_last=True)]
    assert committed == [Unlock(Q0, epoch)]
    assert held
    assert member.due(5) == []
    assert not member.holds(Q0)


def test_lock_is_not_given_back_while_it_may_be_renewed() -> None:
    member = given(Q0)
    epoch = take(member)
    (renewal,) = of(member, RenewLocks, MARKED_LEASE_RENEWAL_MS)
    assert isinstance(renewal, RenewLocks)
    rebalance(member, now_ms=MARKED_LEASE_RENEWAL_MS)

    before = of(member, Unlock, MARKED_LEASE_RENEWAL_MS)
    member.locks_renewed(renewal, held=(Q0,), now_ms=MARKED_LEASE_RENEWAL_MS + 1)

    assert before == []
    assert of(member, Unlock, MARKED_LEASE_RENEWAL_MS + 1) == [Unlock(Q0, epoch)]


def test_queue_given_up_while_its_lock_is_asked_for_is_unlocked_then() -> None:
    member = given(Q0)
    of(member, Acquire, 0)

    rebalance(member, now_ms=1)
    before = member.due(1)
    member.acquired(Q0, 1, offset=5, is_committed=True, lock_sent_ms=0, now_ms=2)

    assert before == []
    assert member.due(2) == [Unlock(Q0, 1)]


@pytest.mark.parametrize("stands_in", [False, True])
def test_queue_given_up_after_a_refusal_is_unlocked_by_a_stand_in_alone(stands_in: bool) -> None:
    member = given(Q0)
    of(member, Acquire, 0)
    member.lock_refused(Q0, 1, is_owner_listed=True, stands_in=stands_in, now_ms=1)

    rebalance(member, now_ms=2)

    assert member.due(2) == ([Unlock(Q0, 1)] if stands_in else [])
    assert member.holds(Q0) == stands_in


def test_unlock_without_an_answer_ends_after_its_bound() -> None:
    member = given(Q0)
    epoch = take(member)
    rebalance(member, now_ms=1)
    assert of(member, Unlock, 1) == [Unlock(Q0, epoch)]

    member.due(1 + UNLOCK_LOST_MS)
    held = member.holds(Q0)
    member.due(2 + UNLOCK_LOST_MS)

    assert held
    assert not member.holds(Q0)


def test_drain_that_outlasts_the_lock_commits_nothing() -> None:
    member = given(Q0)
    epoch = take(member)
    pulled(member, epoch, 1, now_ms=1)
    (delivery,) = of(member, Deliver, 1)
    assert isinstance(delivery, Deliver)
    rebalance(member, now_ms=MARKED_LEASE_MS - 1)
    member.consumed(delivery, acked_count=1)

    actions = member.due(MARKED_LEASE_MS)

    assert [action for action in actions if isinstance(action, Commit)] == []
    facts = member.take_facts()
    assert QueueLost(Q0) in facts
    assert CommitLost(Q0, 6) not in facts


def test_member_leaves_while_locks_are_given_back_and_is_done_when_they_are() -> None:
    member = given(Q0)
    epoch = take(member)
    pulled(member, epoch, 1, now_ms=0)
    (delivery,) = of(member, Deliver, 0)
    assert isinstance(delivery, Deliver)

    member.leave(1)
    draining = member.due(1)
    member.consumed(delivery, acked_count=1)
    committing = member.due(2)
    member.committed(Q0, epoch, offset=6, now_ms=3)
    leaving = member.due(3)
    member.left()
    is_done_early = member.is_done
    in_hand(member, Q0, epoch).unlocked()
    member.due(4)

    assert [type(action) for action in draining] == [AbandonPull]
    assert committing == [Commit(Q0, epoch, 6, is_last=True)]
    assert leaving == [Unlock(Q0, epoch), Leave()]
    assert (is_done_early, member.is_done) == (False, True)
    assert member.next_due_ms(4) == 4
