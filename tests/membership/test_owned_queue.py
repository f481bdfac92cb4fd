"""A queue's whole life in a member's hand, against the table of its states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from queue_messages import QUEUE, message
from sparrowmq.coordination.member_marker import MARKED_LEASE_MS
from sparrowmq.membership.actions import (
    AbandonPull,
    Acquire,
    Action,
    CallOnAssign,
    CallOnRevoke,
    Commit,
    CommitLost,
    DrainTimedOut,
    Fact,
    Pull,
    QueueLost,
    Regain,
    Unlock,
)
from sparrowmq.membership.owned_queue import LAST_COMMIT_MS, UNLOCK_LOST_MS, OwnedQueue
from sparrowmq.membership.process_queue import FlowLimits, stored_of
from sparrowmq.membership.queue_callbacks import CALL_WAIT_MAX_MS, QueueCallbacks
from sparrowmq.membership.queue_lease import RENEWAL_LOST_MS, QueueLease
from sparrowmq.membership.queue_state import TRANSITIONS, QueueEvent, QueueState
from sparrowmq.model import MessageExt

DRAIN_MS = 2_000


def given(*, locks: bool = True, has_callbacks: bool = False) -> OwnedQueue:
    return OwnedQueue(
        QUEUE,
        epoch=1,
        lease=QueueLease(is_wanted=locks),
        calls=QueueCallbacks(is_wanted=has_callbacks),
        now_ms=0,
    )


def collect(owned: OwnedQueue, now_ms: int) -> tuple[list[Action], list[Fact]]:
    actions: list[Action] = []
    facts: list[Fact] = []
    owned.collect(now_ms, actions, facts, flow=FlowLimits(), may_acquire=True)
    return actions, facts


def has(actions: Sequence[Action], action: Action) -> bool:
    """Return whether an action is there: those of two classes with the same fields are equal."""
    return action in [each for each in actions if type(each) is type(action)]


def consuming(*, locks: bool = True, has_callbacks: bool = False, offset: int = 0) -> OwnedQueue:
    """Return a queue that was acquired at time 0 and whose first pull is under way."""
    owned = given(locks=locks, has_callbacks=has_callbacks)
    collect(owned, 0)
    owned.acquired(offset, is_committed=True, lock_sent_ms=0 if locks else None, now_ms=0)
    assert has(collect(owned, 0)[0], Pull(QUEUE, 1, offset))
    return owned


def delivered(owned: OwnedQueue, offsets: Sequence[int], *, now_ms: int) -> list[MessageExt]:
    messages = [message(offset) for offset in offsets]
    owned.pulled(offsets[0], messages, next_offset=offsets[-1] + 1, now_ms=now_ms)
    (batch,) = owned.take(len(offsets), 1, now_ms)
    return list(batch)


def state_of(owned: OwnedQueue) -> QueueState:
    return owned.state


def finish(owned: OwnedQueue, messages: Sequence[MessageExt]) -> None:
    owned.consumed(messages, acked_count=len(messages), delay_level=0, decided={}, sends_back=True)


# --- the table ------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["load-balancing.md", "load-balancing.zh.md"])
def test_the_reference_shows_the_table_that_holds(page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / page).read_text()
    table = next(part for part in text.split("\n\n") if "ACQUIRED |" in part)
    rows = [
        [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        for line in table.splitlines()
    ]
    events = [QueueEvent(name) for name in rows[0][1:]]
    shown = {
        (QueueState(row[0]), event): QueueState(cell)
        for row in rows[2:]
        for event, cell in zip(events, row[1:], strict=True)
        if cell
    }

    assert list(QueueEvent) == events
    assert list(QueueState) == [QueueState(row[0]) for row in rows[2:]]
    assert shown == TRANSITIONS


def test_every_state_is_reached_and_only_released_is_left_by_nothing() -> None:
    reached = {QueueState.STARTING}
    for _ in QueueState:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}

    assert set(QueueState) == reached
    assert set(QueueState) - {before for before, _ in TRANSITIONS} == {QueueState.RELEASED}


@pytest.mark.parametrize("state", QueueState)
@pytest.mark.parametrize("event", QueueEvent)
def test_an_event_moves_a_queue_by_the_table_or_is_a_mistake(
    state: QueueState, event: QueueEvent
) -> None:
    owned = given()
    owned.state = state

    after = TRANSITIONS.get((state, event))
    if after is None:
        with pytest.raises(AssertionError, match=f"is {state.name}: {event.name} has no place"):
            owned._move(event)
    else:
        owned._move(event)
    assert (after or state) is owned.state


# --- the life -------------------------------------------------------------------------------


def test_life_of_a_queue_from_its_lock_to_its_release() -> None:
    owned = given()
    assert state_of(owned) is QueueState.STARTING
    assert collect(owned, 0)[0] == [Acquire(QUEUE, 1, wants_lock=True)]

    owned.acquired(5, is_committed=True, lock_sent_ms=0, now_ms=1)
    assert state_of(owned) is QueueState.CONSUMING
    assert collect(owned, 1)[0] == [Pull(QUEUE, 1, 5)]

    messages = delivered(owned, [5, 6], now_ms=2)
    owned.revoke(3, drain_timeout_ms=DRAIN_MS)
    assert collect(owned, 3)[0] == []
    assert state_of(owned) is QueueState.DRAINING

    finish(owned, messages)
    assert collect(owned, 4)[0] == [Commit(QUEUE, 1, 7, is_last=True)]
    assert state_of(owned) is QueueState.COMMITTING

    owned.committed(7, 5, wait_ms=0)
    assert collect(owned, 5)[0] == [Unlock(QUEUE, 1)]
    assert state_of(owned) is QueueState.UNLOCKING
    assert owned.has_ended
    assert not owned.is_released

    owned.unlocked()
    assert collect(owned, 6) == ([], [])
    assert owned.is_released


def test_queue_revoked_before_it_was_acquired_gives_its_lock_back_once_the_request_ended() -> None:
    owned = given()
    collect(owned, 0)

    owned.revoke(1, drain_timeout_ms=DRAIN_MS)
    assert collect(owned, 1)[0] == []
    assert state_of(owned) is QueueState.UNLOCKING

    owned.acquired(5, is_committed=True, lock_sent_ms=0, now_ms=2)
    assert collect(owned, 2)[0] == [Unlock(QUEUE, 1)]


def test_queue_without_a_lock_is_released_with_its_last_commit() -> None:
    owned = consuming(locks=False)

    owned.revoke(1, drain_timeout_ms=DRAIN_MS)

    assert collect(owned, 1) == ([AbandonPull(QUEUE, 1)], [])
    assert owned.is_released


def test_unlock_that_is_never_answered_ends_after_its_bound() -> None:
    owned = consuming()
    owned.revoke(1, drain_timeout_ms=DRAIN_MS)
    assert has(collect(owned, 1)[0], Unlock(QUEUE, 1))

    collect(owned, 1 + UNLOCK_LOST_MS)
    assert state_of(owned) is QueueState.UNLOCKING
    collect(owned, 2 + UNLOCK_LOST_MS)
    assert state_of(owned) is QueueState.RELEASED


def test_drain_and_last_commit_have_a_bound_each() -> None:
    owned = consuming(locks=False)
    first, _ = delivered(owned, [0, 1], now_ms=1)
    owned.revoke(2, drain_timeout_ms=DRAIN_MS)
    collect(owned, 2)
    finish(owned, [first])

    drained_ms = 2 + DRAIN_MS
    assert owned.next_due_ms(2, may_acquire=True) == drained_ms
    assert collect(owned, drained_ms - 1) == ([], [])
    assert collect(owned, drained_ms)[0] == [Commit(QUEUE, 1, 1, is_last=True)]
    assert collect(owned, drained_ms + LAST_COMMIT_MS - 1) == ([], [])
    assert state_of(owned) is QueueState.COMMITTING

    facts = collect(owned, drained_ms + LAST_COMMIT_MS)[1]
    assert facts == [CommitLost(QUEUE, 1), DrainTimedOut(QUEUE, 1)]
    assert owned.is_released


def test_last_commit_waits_for_on_revoke_within_a_bound() -> None:
    owned = consuming(locks=False, has_callbacks=True)
    finish(owned, delivered(owned, [0], now_ms=1))
    owned.revoke(2, drain_timeout_ms=DRAIN_MS)

    assert has(collect(owned, 2)[0], CallOnRevoke(QUEUE, 1))
    assert collect(owned, 1 + CALL_WAIT_MAX_MS) == ([], [])
    assert state_of(owned) is QueueState.DRAINING
    assert owned.next_due_ms(1 + CALL_WAIT_MAX_MS, may_acquire=True) == 2 + CALL_WAIT_MAX_MS
    assert collect(owned, 2 + CALL_WAIT_MAX_MS)[0] == [Commit(QUEUE, 1, 1, is_last=True)]


def test_on_assign_that_returns_while_the_queue_is_given_up_is_not_taken_for_on_revoke() -> None:
    owned = consuming(locks=False, has_callbacks=True)
    owned.revoke(2, drain_timeout_ms=DRAIN_MS)
    assert has(collect(owned, 2)[0], CallOnRevoke(QUEUE, 1))

    owned.calls.returned(CallOnAssign(QUEUE, 1))
    collect(owned, 3)
    assert state_of(owned) is QueueState.DRAINING

    owned.calls.returned(CallOnRevoke(QUEUE, 1))
    collect(owned, 4)
    assert owned.is_released


@pytest.mark.parametrize("returns", [True, False])
def test_on_assign_is_called_once_and_deliveries_wait_for_it_within_a_bound(returns: bool) -> None:
    owned = given(locks=False, has_callbacks=True)
    collect(owned, 0)
    owned.acquired(0, is_committed=True, lock_sent_ms=None, now_ms=0)

    assert has(collect(owned, 0)[0], CallOnAssign(QUEUE, 1))
    assert not has(collect(owned, 1)[0], CallOnAssign(QUEUE, 1))
    assert not owned.may_deliver(CALL_WAIT_MAX_MS - 1)
    if returns:
        owned.calls.returned(CallOnAssign(QUEUE, 1))
    assert owned.may_deliver(1) is returns
    assert owned.may_deliver(CALL_WAIT_MAX_MS)


def test_on_revoke_is_not_called_for_a_queue_that_was_never_assigned() -> None:
    owned = given(locks=False, has_callbacks=True)
    collect(owned, 0)
    owned.acquired(0, is_committed=True, lock_sent_ms=None, now_ms=0)
    owned.revoke(0, drain_timeout_ms=DRAIN_MS)

    assert collect(owned, 0) == ([], [])
    assert owned.is_released


def test_lock_is_given_back_after_the_newest_renewal_though_an_older_one_is_answered_late() -> None:
    owned = consuming()
    second_ms = 4_001 + RENEWAL_LOST_MS
    assert [owned.begin_renewal(now_ms) for now_ms in (4_000, second_ms)] == [True, True]
    owned.lock_renewed(4_000, is_held=None, now_ms=second_ms + 1)
    owned.revoke(second_ms + 1, drain_timeout_ms=DRAIN_MS)

    assert not has(collect(owned, second_ms + 1)[0], Unlock(QUEUE, 1))
    owned.lock_renewed(second_ms, is_held=True, now_ms=second_ms + 2)
    assert has(collect(owned, second_ms + 2)[0], Unlock(QUEUE, 1))


def test_last_commit_does_not_wait_for_the_time_between_two_commits() -> None:
    owned = consuming(locks=False)
    first, second = delivered(owned, [0, 1], now_ms=1)
    finish(owned, [first])
    assert has(collect(owned, 1)[0], Commit(QUEUE, 1, 1, is_last=False))
    owned.committed(1, 2, wait_ms=1_000)
    finish(owned, [second])

    owned.revoke(3, drain_timeout_ms=DRAIN_MS)

    assert has(collect(owned, 3)[0], Commit(QUEUE, 1, 2, is_last=True))


def test_message_that_waits_to_be_consumed_here_again_does_not_hold_up_the_release() -> None:
    owned = consuming(locks=False)
    messages = delivered(owned, [0], now_ms=1)
    owned.consumed(messages, acked_count=0, delay_level=0, decided={}, sends_back=True)
    collect(owned, 2)
    owned.sent_back(done=[], failed=[0], now_ms=3)

    owned.revoke(4, drain_timeout_ms=DRAIN_MS)

    assert collect(owned, 4)[1] == []
    assert owned.is_released


def test_heartbeat_sent_before_the_connection_was_lost_does_not_show_that_the_broker_lists_us() -> (
    None
):
    owned = consuming(locks=False)
    owned.connection_lost(10)

    owned.heartbeat_answered(9, 11)
    assert collect(owned, 11)[0] == []
    owned.heartbeat_answered(10, 12)
    assert collect(owned, 12)[0] == [Regain(QUEUE, 1, wants_lock=False, newest=None)]


def test_last_commit_waits_until_a_broker_that_was_away_has_been_asked() -> None:
    owned = consuming(locks=False)
    finish(owned, delivered(owned, [0], now_ms=1))
    owned.connection_lost(2)
    owned.revoke(3, drain_timeout_ms=DRAIN_MS)

    assert collect(owned, 3) == ([], [])
    owned.heartbeat_answered(4, 5)
    newest = stored_of(message(0))
    assert collect(owned, 5)[0] == [Regain(QUEUE, 1, wants_lock=False, newest=newest)]
    assert owned.regained(0, has_newest=True, lock_sent_ms=None, now_ms=6) is None
    assert collect(owned, 6)[0] == [Commit(QUEUE, 1, 1, is_last=True)]


# --- the lock's end -------------------------------------------------------------------------


def test_fenced_queue_neither_delivers_nor_commits_and_is_acquired_again() -> None:
    owned = consuming()
    finish(owned, delivered(owned, [0], now_ms=1))

    assert collect(owned, MARKED_LEASE_MS)[0] == [
        Regain(QUEUE, 1, wants_lock=True, newest=stored_of(message(0)))
    ]
    assert not owned.may_deliver(MARKED_LEASE_MS)
    assert not owned.is_sure(MARKED_LEASE_MS)

    sent_ms = MARKED_LEASE_MS
    assert owned.regained(0, has_newest=True, lock_sent_ms=sent_ms, now_ms=sent_ms + 1) is None
    assert state_of(owned) is QueueState.CONSUMING
    assert has(collect(owned, sent_ms + 1)[0], Commit(QUEUE, 1, 1, is_last=False))


def test_fenced_queue_that_another_member_consumed_begins_anew() -> None:
    owned = consuming()
    collect(owned, MARKED_LEASE_MS)

    sent_ms = MARKED_LEASE_MS
    lost = owned.regained(3, has_newest=True, lock_sent_ms=sent_ms, now_ms=sent_ms)

    assert lost == QueueLost(QUEUE)

    assert owned.lose() == AbandonPull(QUEUE, 1)
    assert state_of(owned) is QueueState.RELEASED


@pytest.mark.parametrize("is_drained", [False, True])
def test_queue_whose_lock_ends_while_it_is_given_up_commits_nothing(is_drained: bool) -> None:
    owned = consuming()
    messages = delivered(owned, [0], now_ms=1)
    owned.revoke(2, drain_timeout_ms=10 * MARKED_LEASE_MS)
    if is_drained:
        finish(owned, messages)
        assert has(collect(owned, 3)[0], Commit(QUEUE, 1, 1, is_last=True))
    else:
        collect(owned, 3)
        assert owned.next_due_ms(3, may_acquire=True) == MARKED_LEASE_MS

    actions, facts = collect(owned, MARKED_LEASE_MS)
    assert facts == [QueueLost(QUEUE)]
    assert [action for action in actions if isinstance(action, Commit)] == []
    assert state_of(owned) is QueueState.UNLOCKING


def test_late_results_of_a_lost_queue_change_nothing() -> None:
    owned = consuming()
    messages = delivered(owned, [0, 1], now_ms=1)
    owned.lose()

    owned.consumed(messages, acked_count=0, delay_level=0, decided={}, sends_back=True)

    assert (owned.call_count, owned.backs.are_settled) == (0, True)
    assert owned.process_queue.commit_offset is None


def test_late_answer_that_the_offset_has_moved_does_not_begin_the_queue_anew() -> None:
    owned = consuming()

    # That is not the pull under way; then none is.
    assert owned.moved(7, corrected_offset=3, now_ms=1)
    assert not owned.moved(0, corrected_offset=-1, now_ms=1)
    owned.pull_failed(0, now_ms=1)
    assert owned.moved(0, corrected_offset=-1, now_ms=1)

    assert owned.process_queue.pull_offset == 0
