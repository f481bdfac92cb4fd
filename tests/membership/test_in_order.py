"""How a member consumes queues in order: one batch at a time, under the lock, again if need be."""

from __future__ import annotations

import dataclasses

import pytest

from queue_messages import in_hand, message
from sparrowmq.coordination.member_marker import MARKED_LEASE_MS
from sparrowmq.membership.actions import (
    Acquire,
    Action,
    Commit,
    Deliver,
    DrainTimedOut,
    Pull,
    QueueLost,
    Regain,
    RenewLocks,
    SendBack,
    Unlock,
)
from sparrowmq.membership.in_order import SUSPEND_MAX_MS, SUSPEND_MIN_MS, OrderlyOutcome
from sparrowmq.membership.member import GroupMember, MemberConfig, TopicShare
from sparrowmq.membership.process_queue import CONSUME_TIMEOUT_MS, FlowLimits
from sparrowmq.membership.queue_lease import ORDERLY_LOCK_RETRY_MS
from sparrowmq.model import ConsumeOrderlyStatus, MessageQueue

CONFIG = MemberConfig(
    group="G", client_id="c0", is_orderly=True, drain_timeout_ms=2_000, rebalance_ms=10**9
)
Q0, Q1 = (MessageQueue("T", "b", n) for n in range(2))
SUCCESS = ConsumeOrderlyStatus.SUCCESS
COMMIT = ConsumeOrderlyStatus.COMMIT
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class World:
    """A member in order that holds queues of a topic, and its clock."""

    def __init__(self, *queues: MessageQueue, config: MemberConfig = CONFIG) -> None:
        self.now_ms = 0
        # Whether the broker answers renewals of locks.
        self.renews = True
        self._waiting: list[Action] = []
        self.member = member = GroupMember(config, topics={"T"}, now_ms=0)
        member.due(0)
        member.routes_refreshed(found=["T"], has_changed=True, now_ms=0)
        member.due(0)
        member.heartbeat_done(reached=1, failed=0, now_ms=0)
        member.due(0)
        self.rebalance(*queues)

    def rebalance(self, *queues: MessageQueue) -> None:
        self.member.rebalanced([TopicShare("T", queues, ("c0", "c1"))], self.now_ms)

    def due(self, kind: type) -> list[Action]:
        """Return what is due of one kind; the rest waits to be asked for."""
        for action in self.member.due(self.now_ms):
            if isinstance(action, RenewLocks):
                held = action.queues if self.renews else None
                self.member.locks_renewed(action, held=held, now_ms=self.now_ms)
            else:
                self._waiting.append(action)
        found = [action for action in self._waiting if isinstance(action, kind)]
        self._waiting = [action for action in self._waiting if not isinstance(action, kind)]
        return found

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass, in steps that keep the locks."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + 1_000)
            found = self.due(object)
            self._waiting += found

    def acquire(self, *, is_locked: bool = True) -> None:
        for action in self.due(Acquire):
            assert isinstance(action, Acquire)
            self.member.acquired(
                action.queue,
                action.epoch,
                offset=0,
                is_committed=True,
                lock_sent_ms=self.now_ms if is_locked else None,
                now_ms=self.now_ms,
            )

    def pull(self, count: int) -> None:
        """Answer the pulls under way with so many messages each."""
        for action in self.due(Pull):
            assert isinstance(action, Pull)
            messages = [message(action.offset + n, action.queue) for n in range(count)]
            self.member.pulled(
                action.queue,
                action.epoch,
                offset=action.offset,
                messages=messages,
                next_offset=action.offset + count,
                now_ms=self.now_ms,
            )

    def deliveries(self) -> list[Deliver]:
        return [action for action in self.due(Deliver) if isinstance(action, Deliver)]

    def delivery(self) -> Deliver:
        (found,) = self.deliveries()
        return found

    def end(
        self,
        delivery: Deliver,
        status: ConsumeOrderlyStatus,
        *,
        auto_commit: bool = True,
        suspend_ms: int = 1_000,
    ) -> None:
        outcome = OrderlyOutcome(status, auto_commit, suspend_ms)
        self.member.consumed_in_order(delivery, outcome, self.now_ms)

    def committed(self) -> list[int]:
        """Answer the commits that are due; return their offsets."""
        self.pass_ms(1_000)
        found = [action for action in self.due(Commit) if isinstance(action, Commit)]
        for action in found:
            self.member.committed(
                action.queue, action.epoch, offset=action.offset, now_ms=self.now_ms
            )
        return [action.offset for action in found]


def given(*queues: MessageQueue, config: MemberConfig = CONFIG, count: int = 4) -> World:
    """Return a world whose member holds queues with so many messages each."""
    world = World(*queues, config=config)
    world.acquire()
    world.pull(count)
    return world


def offsets(delivery: Deliver) -> list[int]:
    return [message.queue_offset for message in delivery.batches[0]]


def test_one_call_for_each_queue_at_a_time() -> None:
    world = given(Q0, Q1)
    first = world.deliveries()

    assert [(d.queue, offsets(d)) for d in first] == [(Q0, [0]), (Q1, [0])]
    assert world.deliveries() == []
    world.end(first[1], SUCCESS)
    assert [(d.queue, offsets(d)) for d in world.deliveries()] == [(Q1, [1])]


def test_nothing_is_consumed_without_the_lock() -> None:
    world = World(Q0)
    asked_ms = []
    for now_ms in range(0, 90_000, 10):
        world.now_ms = now_ms
        for action in world.due(Acquire):
            assert isinstance(action, Acquire)
            assert action.wants_lock
            asked_ms.append(now_ms)
            world.member.lock_refused(Q0, action.epoch, is_owner_listed=False, now_ms=now_ms)

    assert list(range(0, 90_000, ORDERLY_LOCK_RETRY_MS)) == asked_ms
    world.now_ms = 90_000
    # Where no master answers it is asked for again, too.
    world.acquire(is_locked=False)
    assert world.due(Pull) == []


def test_queue_is_pulled_as_soon_as_its_lock_is_held() -> None:
    world = World(Q0)
    world.acquire()

    assert [action.offset for action in world.due(Pull) if isinstance(action, Pull)] == [0]


def test_suspended_queue_gives_the_same_batch_again_after_a_moment() -> None:
    world = given(Q0, config=dataclasses.replace(CONFIG, batch_size=2))
    world.end(world.delivery(), SUSPEND, suspend_ms=700)

    world.now_ms += 699
    assert world.deliveries() == []
    assert world.now_ms + 1 >= world.member.next_due_ms(world.now_ms)
    world.now_ms += 1
    again = world.delivery()
    assert [(m.queue_offset, m.reconsume_times) for m in again.batches[0]] == [(0, 1), (1, 1)]
    world.end(again, SUCCESS)
    assert offsets(world.delivery()) == [2, 3]


@pytest.mark.parametrize(
    ("asked_ms", "waits_ms"), [(0, SUSPEND_MIN_MS), (10**9, SUSPEND_MAX_MS), (50, 50)]
)
def test_the_moment_is_kept_within_rocketmqs_bounds(asked_ms: int, waits_ms: int) -> None:
    world = given(Q0)
    world.end(world.delivery(), SUSPEND, suspend_ms=asked_ms)

    world.pass_ms(waits_ms - 1)
    assert world.deliveries() == []
    world.pass_ms(1)
    assert offsets(world.delivery()) == [0]


def test_message_that_came_too_often_is_a_dead_letter_before_the_queue_goes_on() -> None:
    world = given(Q0, config=dataclasses.replace(CONFIG, orderly_reconsume_times_max=1))
    world.end(world.delivery(), SUSPEND, suspend_ms=10)
    world.now_ms = 10
    world.end(world.delivery(), SUSPEND, suspend_ms=1_000)
    world.now_ms = 20
    (back,) = world.due(SendBack)

    assert isinstance(back, SendBack)
    assert ([m.queue_offset for m in back.messages], back.delay_level) == ([0], -1)
    assert world.deliveries() == []
    in_hand(world.member, Q0, back.epoch).sent_back(done=[0], failed=[], now_ms=20)
    assert offsets(world.delivery()) == [1]


def test_message_that_came_too_often_is_passed_over_where_nothing_is_sent_back() -> None:
    config = dataclasses.replace(CONFIG, is_broadcasting=True, orderly_reconsume_times_max=0)
    world = World(Q0, config=config)
    world.acquire(is_locked=False)
    world.pull(2)
    world.end(world.delivery(), SUSPEND)

    assert offsets(world.delivery()) == [1]
    assert world.committed() == [1]


def test_queue_is_not_given_up_while_a_dead_letter_is_sent() -> None:
    world = given(Q0, config=dataclasses.replace(CONFIG, orderly_reconsume_times_max=0))
    world.end(world.delivery(), SUSPEND)
    (back,) = world.due(SendBack)
    assert isinstance(back, SendBack)
    world.rebalance()

    assert world.due(Commit) + world.due(Unlock) == []
    in_hand(world.member, Q0, back.epoch).sent_back(done=[0], failed=[], now_ms=0)
    assert world.due(Commit) == [Commit(Q0, back.epoch, 1, is_last=True)]


def test_dead_letter_that_cannot_be_sent_holds_the_queue_and_comes_again() -> None:
    world = given(Q0, config=dataclasses.replace(CONFIG, orderly_reconsume_times_max=0))
    world.end(world.delivery(), SUSPEND)
    (back,) = world.due(SendBack)
    assert isinstance(back, SendBack)
    in_hand(world.member, Q0, back.epoch).sent_back(done=[], failed=[0], now_ms=0)

    world.pass_ms(4_999)
    assert world.deliveries() == []
    world.pass_ms(1)
    assert offsets(world.delivery()) == [0]


@pytest.mark.parametrize("status", [SUCCESS, COMMIT, ROLLBACK])
def test_with_auto_commit_whatever_is_not_suspended_is_done(status: ConsumeOrderlyStatus) -> None:
    world = given(Q0)
    world.end(world.delivery(), status)

    assert world.committed() == [1]


def test_without_auto_commit_batches_are_held_until_commit() -> None:
    world = given(Q0)
    for _ in range(2):
        world.end(world.delivery(), SUCCESS, auto_commit=False)
    assert world.committed() == []
    world.end(world.delivery(), COMMIT, auto_commit=False)

    assert world.committed() == [3]


def test_rollback_gives_all_that_was_held_again() -> None:
    world = given(Q0)
    for status in (SUCCESS, SUCCESS, ROLLBACK):
        world.end(world.delivery(), status, auto_commit=False, suspend_ms=10)
    world.now_ms += 10
    again = []
    for _ in range(4):
        delivery = world.delivery()
        again += offsets(delivery)
        world.end(delivery, SUCCESS)

    assert again == [0, 1, 2, 3]


def test_queue_is_not_given_up_while_its_listener_runs() -> None:
    world = given(Q0)
    delivery = world.delivery()
    world.rebalance()
    world.pass_ms(3 * MARKED_LEASE_MS)
    assert world.member.holds(Q0)
    assert world.due(Unlock) == []
    world.end(delivery, SUCCESS)
    (commit,) = world.due(Commit)
    assert isinstance(commit, Commit)
    world.member.committed(Q0, commit.epoch, offset=commit.offset, now_ms=world.now_ms)

    assert (commit.offset, commit.is_last) == (1, True)
    assert world.due(Unlock) == [Unlock(Q0, commit.epoch)]
    assert [f for f in world.member.take_facts() if isinstance(f, DrainTimedOut)] == []


def test_queue_given_up_keeps_what_was_held_for_the_next_owner() -> None:
    world = given(Q0)
    world.end(world.delivery(), COMMIT, auto_commit=False)
    assert world.committed() == [1]
    world.end(world.delivery(), SUCCESS, auto_commit=False)
    world.rebalance()

    assert world.due(Commit) == []
    assert len(world.due(Unlock)) == 1


def test_queue_lost_while_its_listener_runs_waits_for_it_before_the_next_call() -> None:
    world = given(Q0)
    late = world.delivery()
    world.renews = False
    world.pass_ms(MARKED_LEASE_MS)
    world.renews = True
    (regain,) = world.due(Regain)
    assert isinstance(regain, Regain)
    # Somebody else had the queue meanwhile, and has committed.
    world.member.regained(
        Q0,
        regain.epoch,
        found=2,
        has_newest=True,
        lock_sent_ms=world.now_ms,
        now_ms=world.now_ms,
    )
    assert [f for f in world.member.take_facts() if isinstance(f, QueueLost)] == [QueueLost(Q0)]
    world.acquire()
    world.pull(1)
    assert world.deliveries() == []

    world.end(late, SUCCESS)
    assert offsets(world.delivery()) == [0]


def test_listener_in_order_is_never_taken_to_run_too_long() -> None:
    world = given(Q0)
    world.delivery()
    world.pass_ms(2 * CONSUME_TIMEOUT_MS)

    assert world.due(SendBack) == []


def test_span_does_not_stop_pulls() -> None:
    flow = FlowLimits(span_max=1)
    world = given(Q0, config=dataclasses.replace(CONFIG, flow=flow), count=10)

    assert [action.offset for action in world.due(Pull) if isinstance(action, Pull)] == [10]


def test_broadcasting_needs_no_lock() -> None:
    world = World(Q0, config=dataclasses.replace(CONFIG, is_broadcasting=True))
    (acquire,) = world.due(Acquire)

    assert isinstance(acquire, Acquire)
    assert not acquire.wants_lock


@pytest.mark.parametrize("is_orderly", [False, True])
def test_suspended_member_begins_no_pull_and_no_call_and_keeps_its_queues(
    is_orderly: bool,
) -> None:
    world = given(Q0, config=dataclasses.replace(CONFIG, is_orderly=is_orderly))
    world.member.is_suspended = True
    world.pass_ms(30_000)

    assert world.due(Pull) == []
    assert world.deliveries() == []
    assert world.member.holds(Q0)
    world.member.is_suspended = False
    assert offsets(world.deliveries()[0]) == [0]
    assert len(world.due(Pull)) == 1
