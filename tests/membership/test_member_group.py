"""Several members and a model of a broker: whatever happens, nothing is lost, and it settles.

Actions are carried out in any order, late, or not at all; members join, leave and are killed.
Checked after every commit: what lies before the committed offset has been consumed. Checked at
the end, when faults have stopped: every message consumed, every queue with exactly one owner.
In order also, at each delivery: one call for a queue at a time, and none before its turn.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queue_messages import all_queues, message
from sparrowmq.broker.queue_lock_table import QueueLockTable
from sparrowmq.coordination.member_marker import MARKED_LEASE_MS
from sparrowmq.membership.actions import (
    AbandonPull,
    Acquire,
    Action,
    AskMembers,
    Commit,
    Deliver,
    Fact,
    Heartbeat,
    Leave,
    Pull,
    QueueLost,
    Rebalance,
    RefreshRoutes,
    Regain,
    RenewLocks,
    SendBack,
    Unlock,
)
from sparrowmq.membership.in_order import OrderlyOutcome
from sparrowmq.membership.member import GroupMember, MemberConfig, TopicShare
from sparrowmq.membership.process_queue import FlowLimits
from sparrowmq.model import ConsumeOrderlyStatus, MessageQueue
from sparrowmq.model.queue import java_order
from sparrowmq.strategies.averagely import AllocateMessageQueueAveragely

TOPIC = "T"
QUEUES = [MessageQueue(TOPIC, "b", n) for n in range(5)]
PULL_COUNT = 3
DELIVERIES_MAX = 3
# How long the broker holds a pull that finds nothing.
HOLD_MS = 5_000
# What was lost on its way is begun anew after 60 s, a pull after 120 s; then two rebalances.
HEALING_MS = 180_000
MEMBERS_MAX = 4  # Not counting the one that joins at the end.


class Call(NamedTuple):
    """One of the calls of a delivery."""

    delivery: Deliver
    at: int

    @property
    def queue(self) -> MessageQueue:
        return self.delivery.queue

    @property
    def offsets(self) -> list[int]:
        return [message.queue_offset for message in self.delivery.batches[self.at]]


class World:
    """The broker's view and the members, on a virtual clock."""

    def __init__(self, chance: random.Random, *, is_orderly: bool) -> None:
        self.chance = chance
        self.is_orderly = is_orderly
        self.now_ms = 0
        self.ends = dict.fromkeys(QUEUES, 0)
        self.committed: dict[MessageQueue, int] = {}
        self.consumed: set[tuple[MessageQueue, int]] = set()
        self.listed: list[str] = []
        self.members: dict[str, GroupMember] = {}
        self.under_way: list[tuple[str, Action | Call]] = []
        self.held: list[tuple[int, str, Pull]] = []
        self.joined_count = self.begun_count = 0
        self.stuck_count: Counter[str] = Counter()
        self.is_healed = False
        # Queues whose lock ran out at a member: its listener may still run.
        self.lost: set[tuple[str, MessageQueue]] = set()
        self.locks = QueueLockTable()

    # --- what happens -----------------------------------------------------------------------

    def join(self) -> None:
        if len(self.members) < MEMBERS_MAX or self.is_healed:
            cid = f"c{self.joined_count}"
            self.joined_count += 1
            config = MemberConfig(
                group="G",
                client_id=cid,
                is_orderly=self.is_orderly,
                batch_size=2,
                deliveries_max=DELIVERIES_MAX,
                drain_timeout_ms=2_000,
                consume_timeout_ms=20_000,
            )
            self.members[cid] = GroupMember(config, topics={TOPIC}, now_ms=self.now_ms)

    def leave(self) -> None:
        if len(self.members) > 1:
            self.members[self.chance.choice(sorted(self.members))].leave(self.now_ms)

    def kill(self) -> None:
        if len(self.members) > 1:
            cid = self.chance.choice(sorted(self.members))
            self.forget(cid)

    def restart_broker(self) -> None:
        self.listed.clear()
        for member in self.members.values():
            member.connection_lost(all_queues(member), self.now_ms)

    def produce(self) -> None:
        self.ends[self.chance.choice(QUEUES)] += self.chance.randint(1, 4)

    def wait(self) -> None:
        self.now_ms += self.chance.choice((1, 50, 300, 1_500, 10_000))

    def begin_due(self) -> None:
        for cid, member in tuple(self.members.items()):
            self.begun_count += 1
            if self.begun_count % 64 == 0:
                self.check_quiet(member)
            actions = member.due(self.now_ms)
            facts = member.take_facts()
            self.lost |= {(cid, fact.queue) for fact in facts if isinstance(fact, QueueLost)}
            for action in actions:
                if isinstance(action, Deliver):
                    calls = [Call(action, at) for at in range(len(action.batches))]
                    for call in calls if self.is_orderly else []:
                        self.check_order(cid, call)
                    self.under_way += [(cid, call) for call in calls]
                    continue
                if self.is_orderly and isinstance(action, Unlock):
                    is_lost = (cid, action.queue) in self.lost
                    assert is_lost or not self.is_at_work(cid, action.queue), f"{cid}: {action}"
                self.under_way.append((cid, action))
            if member.is_done:
                self.forget(cid)
        self.check_leases()
        ready = [held for held in self.held if self.has_answer(*held)]
        self.held = [held for held in self.held if held not in ready]
        self.under_way += [(cid, action) for _, cid, action in ready]

    def check_quiet(self, member: GroupMember) -> None:
        """Check that queues which are left out of a round have nothing to do in it."""
        for owned in member.owned_queues():
            if owned.quiet_until_ms > self.now_ms:
                found: list[Action] = []
                facts: list[Fact] = []
                copy.deepcopy(owned).collect(
                    self.now_ms, found, facts, flow=FlowLimits(), may_acquire=True
                )
                assert (found, facts) == ([], []), owned.queue

    def has_answer(self, held_until_ms: int, _: str, action: Pull) -> bool:
        return held_until_ms <= self.now_ms or action.offset < self.ends[action.queue]

    def step(self) -> None:
        """Begin what is due; end one thing that is under way, well or badly."""
        self.begin_due()
        if self.under_way:
            place = self.chance.randrange(len(self.under_way))
            cid, action = self.under_way.pop(place)
            fault = 1.0 if self.is_healed else self.chance.random()
            if cid in self.members and not (fault < 0.03 and self.may_be_lost(cid, action)):
                self.carry_out(cid, self.members[cid], action, is_good=fault > 0.2)

    def may_be_lost(self, cid: str, action: Action | Call) -> bool:
        """Return whether nobody need hear of this again; one thread of each member stays free."""
        if isinstance(action, Call):
            if self.is_orderly:
                # Its queue waits for a listener in order, however long.
                return False
            self.stuck_count[cid] += 1
            return self.stuck_count[cid] < DELIVERIES_MAX
        return True

    def forget(self, cid: str) -> None:
        self.members.pop(cid, None)
        self.locks.shorten("G", cid, lease_ms=MARKED_LEASE_MS, now_ms=self.now_ms)
        self.listed = [other for other in self.listed if other != cid]
        self.notify()

    def notify(self) -> None:
        for cid in self.listed:
            if cid in self.members:
                self.members[cid].notified(self.now_ms)

    # --- the broker -------------------------------------------------------------------------

    def carry_out(
        self, cid: str, member: GroupMember, action: Action | Call, *, is_good: bool
    ) -> None:
        now_ms = self.now_ms
        if isinstance(action, Call):
            self.call_listener(member, action, is_good=is_good)
        elif isinstance(action, RefreshRoutes):
            found = [TOPIC] if is_good else []
            member.routes_refreshed(found=found, has_changed=is_good, now_ms=now_ms)
        elif isinstance(action, Heartbeat):
            if is_good and cid not in self.listed:
                self.listed.append(cid)
                self.notify()
            member.heartbeat_done(reached=int(is_good), failed=int(not is_good), now_ms=now_ms)
        elif isinstance(action, Rebalance):
            member.rebalanced([self.share_of(cid, is_good=is_good)], now_ms)
        elif isinstance(action, Leave):
            member.left()
        elif isinstance(action, RenewLocks):
            self.renew(cid, member, action, is_good=is_good)
        elif isinstance(action, AskMembers):
            others = [self.members[c] for c in self.listed if c in self.members and c != cid]
            in_hand = {owned.queue for other in others for owned in other.owned_queues()}
            member.members_asked(action, in_hand=in_hand if is_good else None, now_ms=now_ms)
        elif isinstance(action, Pull) and self.is_held(action):
            self.held.append((now_ms + HOLD_MS, cid, action))
        else:
            self.carry_out_for_queue(cid, member, action, is_good=is_good)

    def is_held(self, action: Pull) -> bool:
        return action.offset >= self.ends[action.queue] and self.chance.random() < 0.9

    def share_of(self, cid: str, *, is_good: bool) -> TopicShare:
        cids = sorted(self.listed, key=java_order)
        if not is_good or not cids:
            return TopicShare(TOPIC, None)
        queues = AllocateMessageQueueAveragely().allocate("G", cid, QUEUES, cids)
        return TopicShare(TOPIC, tuple(queues), tuple(cids))

    def carry_out_for_queue(
        self, cid: str, member: GroupMember, action: Action, *, is_good: bool
    ) -> None:
        now_ms = self.now_ms
        assert not isinstance(action, RefreshRoutes | Heartbeat | Rebalance | Leave)
        assert not isinstance(action, RenewLocks | AskMembers | Deliver)
        if isinstance(action, AbandonPull):
            return
        queue, epoch = action.queue, action.epoch
        if isinstance(action, Acquire | Regain):
            self.acquire(cid, member, action, is_good=is_good)
        elif isinstance(action, Unlock):
            if is_good:
                self.locks.unlock_batch("G", [queue], cid)
            if (owned := member.find_queue(queue, epoch)) is not None:
                owned.unlocked()
        elif isinstance(action, Pull):
            end = min(self.ends[queue], action.offset + PULL_COUNT)
            if is_good:
                member.pulled(
                    queue,
                    epoch,
                    offset=action.offset,
                    messages=[message(offset, queue) for offset in range(action.offset, end)],
                    next_offset=max(end, action.offset),
                    now_ms=now_ms,
                )
            elif (owned := member.find_queue(queue, epoch)) is not None:
                owned.pull_failed(action.offset, now_ms)
        elif isinstance(action, SendBack):
            offsets = [message.queue_offset for message in action.messages]
            done = offsets if is_good else []
            self.note_consumed(queue, done)
            failed = [offset for offset in offsets if offset not in done]
            if (owned := member.find_queue(queue, epoch)) is not None:
                owned.sent_back(done=done, failed=failed, now_ms=now_ms)
        else:
            assert isinstance(action, Commit)
            self.commit(member, action, is_good=is_good)

    def acquire(
        self, cid: str, member: GroupMember, action: Acquire | Regain, *, is_good: bool
    ) -> None:
        queue, epoch, wants_lock = action.queue, action.epoch, action.wants_lock
        now_ms = self.now_ms
        self.unlock_before(cid, queue)
        if not is_good:
            if wants_lock and self.chance.random() < 0.5:
                # The answer was lost, not the request.
                self.locks.try_lock_batch("G", [queue], cid, now_ms=now_ms)
            if (owned := member.find_queue(queue, epoch)) is not None:
                owned.acquire_failed(now_ms)
            return
        if wants_lock and not self.locks.try_lock_batch("G", [queue], cid, now_ms=now_ms):
            is_listed = self.locks.find_owner("G", queue, now_ms=now_ms) in self.listed
            member.lock_refused(queue, epoch, is_owner_listed=is_listed, now_ms=now_ms)
            return
        stored, sent_ms = self.committed.get(queue), now_ms if wants_lock else None
        if isinstance(action, Regain):
            member.regained(
                queue, epoch, found=stored, has_newest=True, lock_sent_ms=sent_ms, now_ms=now_ms
            )
            return
        member.acquired(
            queue,
            epoch,
            offset=stored or 0,
            is_committed=stored is not None,
            lock_sent_ms=sent_ms,
            now_ms=now_ms,
        )

    def unlock_before(self, cid: str, queue: MessageQueue) -> None:
        """Requests of one connection reach the broker in the order in which they were sent."""
        for place, (sender, action) in reversed([*enumerate(self.under_way)]):
            # By place: named tuples of two classes with the same fields are equal.
            if sender == cid and isinstance(action, Unlock) and action.queue == queue:
                del self.under_way[place]
                self.locks.unlock_batch("G", [queue], cid)

    def renew(self, cid: str, member: GroupMember, action: RenewLocks, *, is_good: bool) -> None:
        held = self.locks.try_lock_batch("G", action.queues, cid, now_ms=self.now_ms)
        member.locks_renewed(action, held=held if is_good else None, now_ms=self.now_ms)

    def check_leases(self) -> None:
        """No two members may believe in one lock."""
        sure = {cid: member.sure_queues(self.now_ms) for cid, member in self.members.items()}
        for queue in QUEUES:
            believers = [cid for cid, queues in sure.items() if queue in queues]
            assert len(believers) < 2, f"{believers} believe in the lock of {queue}"

    def call_listener(self, member: GroupMember, call: Call, *, is_good: bool) -> None:
        if self.is_orderly:
            self.call_in_order(member, call, is_good=is_good)
            return
        count = len(call.offsets) if is_good else self.chance.randrange(2)
        self.note_consumed(call.queue, call.offsets[:count])
        member.consumed(call.delivery, call.at, acked_count=count)

    def call_in_order(self, member: GroupMember, call: Call, *, is_good: bool) -> None:
        if is_good:
            self.note_consumed(call.queue, call.offsets)
        auto_commit = self.is_healed or self.chance.random() < 0.7
        status = self.chance.choice(
            (ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)
            if is_good
            else (
                ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
                ConsumeOrderlyStatus.ROLLBACK,
            )
        )
        if not is_good and auto_commit:
            # A rollback would count as done.
            status = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        outcome = OrderlyOutcome(status, auto_commit, 100)
        member.consumed_in_order(call.delivery, outcome, self.now_ms)

    def check_order(self, cid: str, call: Call) -> None:
        """One call per queue, and none before all earlier messages have been consumed."""
        assert not self.is_at_work(cid, call.queue), f"{cid} has two calls for {call.queue}"
        offsets = call.offsets
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        early = [n for n in range(offsets[0]) if (call.queue, n) not in self.consumed]
        assert early == [], f"{call} comes before {early}"

    def is_at_work(self, cid: str, queue: MessageQueue) -> bool:
        calls = [(c, a.queue) for c, a in self.under_way if isinstance(a, Call)]
        return (cid, queue) in calls

    def note_consumed(self, queue: MessageQueue, offsets: list[int]) -> None:
        self.consumed.update((queue, offset) for offset in offsets)

    def commit(self, member: GroupMember, action: Commit, *, is_good: bool) -> None:
        if not is_good:
            if (owned := member.find_queue(action.queue, action.epoch)) is not None:
                owned.commit_failed(self.now_ms)
            return
        lost = [n for n in range(action.offset) if (action.queue, n) not in self.consumed]
        assert lost == [], f"{action} passes messages that nobody consumed"
        self.committed[action.queue] = action.offset
        member.committed(action.queue, action.epoch, offset=action.offset, now_ms=self.now_ms)

    # --- the end ----------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults, for as long as it may take to settle."""
        self.is_healed = True
        self.join()
        end_ms = self.now_ms + HEALING_MS
        while self.now_ms < end_ms:
            self.step()
            while self.under_way:
                self.step()
            moments = [member.next_due_ms(self.now_ms) for member in self.members.values()]
            moments += [held_until_ms for held_until_ms, _, _ in self.held]
            self.now_ms = max(self.now_ms + 1, min(moments))


EVENTS: list[tuple[Callable[[World], None], int]] = [
    (World.step, 40),
    (World.wait, 8),
    (World.produce, 8),
    (World.join, 3),
    (World.leave, 1),
    (World.kill, 1),
    (World.restart_broker, 1),
]


@pytest.mark.parametrize("is_orderly", [False, True], ids=["concurrent", "in order"])
@given(seed=st.integers(min_value=0, max_value=2**32))
@example(seed=2_119_154_342)
@settings(max_examples=25, deadline=None)
def test_group_loses_nothing_and_settles_whatever_happens(is_orderly: bool, seed: int) -> None:
    chance = random.Random(seed)
    world = World(chance, is_orderly=is_orderly)
    world.join()
    events, weights = zip(*EVENTS, strict=True)
    for _ in range(600):
        chance.choices(events, weights)[0](world)

    world.heal()

    everything = {(queue, n) for queue, end in world.ends.items() for n in range(end)}
    assert set() == everything - world.consumed
    owned = sorted(queue for member in world.members.values() for queue in member.assigned)
    assert owned == QUEUES
    assert {q: end for q, end in world.ends.items() if end} == {
        q: offset for q, offset in world.committed.items() if offset
    }
