"""The requests about the locks of all queues of a member at once."""

from __future__ import annotations

from sparrowmq.coordination.member_marker import MARKED_LEASE_RENEWAL_MS
from sparrowmq.membership.actions import Action, AskMembers, RenewLocks
from sparrowmq.membership.lock_rounds import (
    LOCK_ASK_MS,
    MEMBERS_ASKED_MS,
    MEMBERS_SILENT_MS,
    LockRounds,
)
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.membership.queue_callbacks import QueueCallbacks
from sparrowmq.membership.queue_lease import QueueLease
from sparrowmq.model import MessageQueue


def owned(number: int, *, broker_name: str = "b", is_locked: bool = True) -> OwnedQueue:
    """Return a queue that is consumed since time 0, with or without its lock."""
    queue = OwnedQueue(
        MessageQueue("T", broker_name, number),
        epoch=1,
        lease=QueueLease(is_wanted=True),
        calls=QueueCallbacks(is_wanted=False),
        now_ms=0,
    )
    sent_ms = 0 if is_locked else None
    queue.acquired(0, is_committed=True, lock_sent_ms=sent_ms, now_ms=0)
    return queue


def waiting(number: int, *, since_ms: int = 0) -> OwnedQueue:
    """Return a queue whose lock is refused since a time."""
    queue = OwnedQueue(
        MessageQueue("T", "b", number),
        epoch=1,
        lease=QueueLease(is_wanted=True),
        calls=QueueCallbacks(is_wanted=False),
        now_ms=since_ms,
    )
    queue.lock_refused(is_owner_listed=True, drain_timeout_ms=10_000, now_ms=since_ms)
    return queue


def collect(rounds: LockRounds, queues: list[OwnedQueue], now_ms: int) -> list[Action]:
    actions: list[Action] = []
    rounds.collect(queues, now_ms, actions)
    return actions


def test_locks_are_renewed_by_one_request_to_each_broker() -> None:
    queues = [owned(0), owned(1, broker_name="c"), owned(2)]
    rounds = LockRounds(0)

    assert collect(rounds, queues, 0) == [
        RenewLocks("b", (queues[0].queue, queues[2].queue), 0),
        RenewLocks("c", (queues[1].queue,), 0),
    ]
    assert rounds.next_due_ms(queues, 0) == MARKED_LEASE_RENEWAL_MS


def test_renewal_under_way_is_not_sent_twice() -> None:
    queues = [owned(0)]
    rounds = LockRounds(0)
    collect(rounds, queues, 0)

    rounds.renew_soon(0)

    assert collect(rounds, queues, LOCK_ASK_MS) == []


def test_lock_that_is_not_held_is_asked_for_soon() -> None:
    queues = [owned(0), owned(1, is_locked=False)]
    rounds = LockRounds(0)

    collect(rounds, queues, 0)

    assert rounds.next_due_ms(queues, 0) == LOCK_ASK_MS


def test_members_are_asked_once_a_lock_has_been_refused_for_long_enough() -> None:
    queues = [waiting(0), waiting(1)]
    rounds = LockRounds(0)

    assert collect(rounds, queues, 0) == []
    assert rounds.next_due_ms(queues, 0) == MEMBERS_ASKED_MS
    assert collect(rounds, queues, MEMBERS_ASKED_MS - 1) == []
    asked = collect(rounds, queues, MEMBERS_ASKED_MS)
    assert asked == [AskMembers(tuple(queue.queue for queue in queues))]
    assert collect(rounds, queues, MEMBERS_ASKED_MS + 1) == []
    # Their answers are waited for without looking again and again.
    assert rounds.next_due_ms(queues, MEMBERS_ASKED_MS + 1) >= MARKED_LEASE_RENEWAL_MS


def test_nobody_is_asked_about_a_lock_that_was_granted_after_refusals() -> None:
    queue = waiting(0)
    rounds = LockRounds(0)
    queue.acquired(0, is_committed=True, lock_sent_ms=30, now_ms=30)

    found = collect(rounds, [queue], MEMBERS_ASKED_MS)

    assert [action for action in found if isinstance(action, AskMembers)] == []


def test_next_lock_that_is_refused_is_asked_about_as_often_as_the_first() -> None:
    first = waiting(0)
    rounds = LockRounds(0)
    now_ms = 0
    for wait_ms in (1, 2, 4, 8):
        now_ms += wait_ms * MEMBERS_ASKED_MS
        assert collect(rounds, [first], now_ms)
        rounds.members_asked([first], [first.queue], now_ms)
    first.acquired(0, is_committed=True, lock_sent_ms=now_ms, now_ms=now_ms)
    collect(rounds, [first], now_ms)

    begun_ms, waits = now_ms, []
    second = waiting(1, since_ms=begun_ms)
    for _ in range(3):
        while not any(isinstance(a, AskMembers) for a in collect(rounds, [first, second], now_ms)):
            now_ms += 5
        rounds.members_asked([second], [second.queue], now_ms)
        waits.append(now_ms - begun_ms)

    assert waits == [MEMBERS_ASKED_MS, 3 * MEMBERS_ASKED_MS, 7 * MEMBERS_ASKED_MS]


def test_large_group_is_asked_later_and_none_where_the_broker_knows_dead_holders() -> None:
    queues, known = [waiting(0)], waiting(1)
    known.lock_refused(is_owner_listed=True, drain_timeout_ms=10_000, now_ms=0, stands_in=False)
    rounds = LockRounds(0)
    rounds.note_members(100)

    assert collect(rounds, [*queues, known], 99) == []
    assert collect(rounds, [*queues, known], 100) == [AskMembers((queues[0].queue,))]


def test_wait_doubles_while_a_member_has_a_queue_in_hand() -> None:
    queues = [waiting(0)]
    rounds = LockRounds(0)
    waits = []
    now_ms = MEMBERS_ASKED_MS
    for _ in range(3):
        assert collect(rounds, queues, now_ms)
        rounds.members_asked(queues, [queues[0].queue], now_ms)
        begun_ms = now_ms
        while not collect(rounds, queues, now_ms):
            now_ms += 1
        waits.append(now_ms - begun_ms)
        rounds.members_asked(queues, None, now_ms)
        now_ms += MEMBERS_SILENT_MS

    assert waits == [2 * MEMBERS_ASKED_MS, 4 * MEMBERS_ASKED_MS, 8 * MEMBERS_ASKED_MS]


def test_member_that_does_not_answer_is_left_alone_for_long() -> None:
    queues = [waiting(0)]
    rounds = LockRounds(0)
    collect(rounds, queues, MEMBERS_ASKED_MS)

    rounds.members_asked(queues, None, 100)

    assert collect(rounds, queues, 99 + MEMBERS_SILENT_MS) == []
    assert collect(rounds, queues, 100 + MEMBERS_SILENT_MS) == [AskMembers((queues[0].queue,))]


def test_queue_that_nobody_has_is_acquired_at_once() -> None:
    queue = waiting(0)
    rounds = LockRounds(0)
    collect(rounds, [queue], MEMBERS_ASKED_MS)

    rounds.members_asked([queue], [], 45)

    assert queue.next_due_ms(45, may_acquire=True) <= 45
