"""The group-member machine: what one member of a consumer group does next.

`due(now_ms)` returns the actions to begin now. An operation carries out each action and reports the
result by the method that the action names (`actions.py`). Every event may make an action due;
`next_due_ms` returns the time at which an action becomes due without an event.

Rules of this file:
- Due actions are worked out from the state each time. There is no list of coming actions.
- A failed or empty list of members changes nothing; neither does a topic without a route.
- A wanted queue that is not in hand is acquired.
- A queue in hand that is not wanted is drained: pulls stop, running listeners may finish within a
  bound, the offset is committed, the commit's answer is awaited, and the lock is given back.
- After a lost connection, or once its lease has run out, a queue is neither pulled nor committed
  before the broker was asked what it knows (`Regain`).
- A queue's lock is taken before its start position is read, and is renewed while we own the queue.
  `QueueLease` says how long the member believes in the lock. Java's concurrent members take no
  locks, so the lock of a queue that comes from one of them is free.
- A notification commits first and rebalances next, so that the next owner of a queue begins at our
  latest offset.

Source: RebalanceImpl.java, MQClientInstance.java, DefaultMQPushConsumerImpl.java.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from sparrowmq.coordination.member_marker import HEARTBEATS_PER_EXPIRY
from sparrowmq.membership.actions import (
    Action,
    AskMembers,
    AssignmentChanged,
    CallOnAssign,
    CallOnRevoke,
    Deliver,
    Fact,
    Heartbeat,
    Leave,
    OffsetCorrected,
    OffsetReset,
    Pull,
    QueueLost,
    Rebalance,
    RefreshRoutes,
    RenewLocks,
    StoodStill,
    Stored,
)
from sparrowmq.membership.deliveries import Deliveries
from sparrowmq.membership.group_offset import UncommittedProgress
from sparrowmq.membership.in_order import InOrder, OrderlyOutcome
from sparrowmq.membership.listed_ids import ListedIds
from sparrowmq.membership.lock_rounds import LockRounds
from sparrowmq.membership.owned_queue import OwnedQueue, commit_wait_ms
from sparrowmq.membership.process_queue import CONSUME_TIMEOUT_MS, FlowLimits
from sparrowmq.membership.queue_callbacks import QueueCallbacks
from sparrowmq.membership.queue_history import QueueHistory
from sparrowmq.membership.queue_lease import QueueLease, handover_ms
from sparrowmq.membership.queue_state import QueueState
from sparrowmq.membership.reconcile import RebalancePlan, reconcile
from sparrowmq.membership.repeated_job import LOST_MS, RepeatedJob
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.message import Decision
from sparrowmq.model.queue import queue_order

# RebalanceService.minInterval of 5.2 and later: between two rebalances while not balanced.
REBALANCE_RETRY_MS = 1_000
# Where no broker gives the list of members, the time doubles up to this: on a machine without
# processor time, the questions of many members would take the rest.
REBALANCE_RETRY_MAX_MS = 8_000
# A heartbeat that did not reach every broker is repeated after this.
HEARTBEAT_RETRY_MS = 1_000
# How long a broker that does not say lists a silent member (ClientHousekeepingService, 120 s).
LISTED_MS = 120_000
# The route of a topic without one is asked for again after this, and then at doubled intervals.
ROUTE_RETRY_FIRST_MS = 250
# Routes that have changed are asked for again after this, and then at doubled intervals: brokers
# register one after the other, so that more changes may follow. The first routes count as changed.
ROUTE_AGAIN_FIRST_MS = 1_000
# The longest interval. A route does not show that a broker is missing. A broker that registers
# again has queues with no owner or two owners until all members have the new route. RocketMQ's
# clients ask every 30 s.
ROUTE_WAIT_MAX_MS = 10_000
# How long a member that leaves waits until the brokers have taken its locks back.
LEAVE_WAIT_MS = 3_000
# The number of queues whose locks and start positions are asked for at once. The broker would need
# longer for thousands than their answers are waited for, and all would be asked for again.
ACQUIRES_MAX = 256
# A queue that is lost so soon after the member stood still is lost because of that.
STANDSTILL_TOLD_MS = 10_000
# How often the member looks for listeners that run too long.
EXPIRY_CHECK_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """The settings of one member; `client.config.ConsumerConfig` explains the fields."""

    group: str
    client_id: str
    is_broadcasting: bool = False
    # Whether messages that a call did not finish come again in BROADCASTING too. RocketMQ drops
    # them.
    keeps_unfinished: bool = False
    # Whether members hand queues over by locks; never in a BROADCASTING group.
    locks_queues: bool = True
    # Whether each queue is consumed in order, one call of the listener at a time.
    is_orderly: bool = False
    # How often a message consumed in order may come again; None for no limit.
    orderly_reconsume_times_max: int | None = None
    # Whether the user has callbacks for queues that come or go.
    has_callbacks: bool = False
    batch_size: int = 1
    deliveries_max: int = 20
    flow: FlowLimits = field(default_factory=FlowLimits)
    heartbeat_ms: int = 30_000
    rebalance_ms: int = 20_000
    route_refresh_ms: int = 30_000
    route_retry_max_ms: int = 30_000
    commit_ms: int = 1_000
    drain_timeout_ms: int = 10_000
    consume_timeout_ms: int = CONSUME_TIMEOUT_MS


class TopicShare(NamedTuple):
    """The result of a rebalance for one topic.

    A topic without a route has no `TopicShare`, and nothing changes.

    Args:
        queues: our share; None if the share could not be worked out, which changes nothing.
        cid_all: the broker's list of members, () for none.
        mq_all: all queues of the topic; None if the members could not be found.
        is_settled: False while queues are known to be in a handover.
    """

    topic: str
    queues: tuple[MessageQueue, ...] | None
    cid_all: tuple[str, ...] = ()
    mq_all: Sequence[MessageQueue] | None = None
    is_settled: bool = True


class GroupMember:
    """One member of a consumer group: which actions to begin now, and what their results change.

    Args:
        config: the member's settings.
        topics: the subscribed topics, the group's retry topic included.
    """

    def __init__(self, config: MemberConfig, *, topics: Collection[str], now_ms: int) -> None:
        self._config = config
        self._topics = set(topics)
        self._queues: dict[MessageQueue, OwnedQueue] = {}
        self._wanted: dict[str, tuple[MessageQueue, ...]] = {}
        self._routes = RepeatedJob(now_ms)
        self.heartbeat = RepeatedJob(now_ms)
        self._rebalance = RepeatedJob(now_ms)
        self._rebalance_retry_ms = REBALANCE_RETRY_MS
        self._expiry_due_ms = now_ms + EXPIRY_CHECK_MS
        self._locks = LockRounds(now_ms)
        self.locks_queues = config.locks_queues and not config.is_broadcasting
        # Pulls of lost queues, which are to be abandoned.
        self._abandoned: list[Action] = []
        # Of queues that are not in hand: what was finished and could not be committed.
        self._progress: dict[MessageQueue, UncommittedProgress] = {}
        self._route_retry_ms = ROUTE_RETRY_FIRST_MS
        # The order of the first steps: routes, then a heartbeat, then a rebalance.
        self._has_routes = self._had_all_routes = False
        self._is_known = False
        # When a broker last answered a heartbeat, and until when it lists this member after that.
        self.heartbeat_answered_ms: int | None = None
        self._listed_until_ms = 0
        self._listed_ids = ListedIds(config.group, config.client_id)
        self.history = QueueHistory(handover_ms(config.drain_timeout_ms))
        self._epoch = 0
        self.deliveries = Deliveries(
            count_max=config.deliveries_max,
            batch_size=config.batch_size,
            is_in_order=config.is_orderly,
        )
        self._may_acquire = True
        self._facts: list[Fact] = []
        # How long the member last stood still, and when it went on.
        self._still_ms = self._still_until_ms = 0
        self._is_leaving = False
        self._leave_sent_ms: int | None = None
        # Whether pulls and deliveries pause; the member keeps its queues.
        self.is_suspended = False
        self._has_left = False
        self.assigned: tuple[MessageQueue, ...] = ()

    # --- questions --------------------------------------------------------------------------

    def due(self, now_ms: int) -> list[Action]:
        """Return the actions to begin now; the actions then count as under way."""
        if self.is_done:
            return []
        actions, self._abandoned = self._abandoned, []
        if now_ms - self._still_until_ms > STANDSTILL_TOLD_MS:
            self._still_ms = 0
        self._collect_jobs(now_ms, actions)
        if now_ms >= self._expiry_due_ms:
            self._expiry_due_ms = now_ms + EXPIRY_CHECK_MS
            self._send_back_expired(now_ms)
        flow = None if self.is_suspended else self._config.flow
        # None of the quiet queues is being acquired or released.
        in_hand = [owned for owned in self._queues.values() if owned.quiet_until_ms <= now_ms]
        acquiring = sum([owned.is_acquiring(now_ms) for owned in in_hand])
        for owned in in_hand:
            may_acquire = acquiring < ACQUIRES_MAX
            acquiring += owned.collect(
                now_ms, actions, self._facts, flow=flow, may_acquire=may_acquire
            )
            if owned.is_released:
                in_hand += self._release(owned, now_ms)
        # Each answer makes room for another request.
        self._may_acquire = acquiring < ACQUIRES_MAX
        if self.locks_queues:
            self._locks.collect(self._queues.values(), now_ms, actions)
        if not self.is_suspended:
            actions += self.deliveries.begin(self._queues, now_ms)
        if not self._is_member():
            # Only locks are still to be given back.
            self._collect_leave(now_ms, actions)
        return actions

    def next_due_ms(self, now_ms: int) -> int:
        """Return the time at which `due` may return an action although no event has come."""
        candidates = [now_ms if self.is_done else now_ms + LOST_MS]
        if self._is_member():
            candidates.append(self._routes.next_due_ms(now_ms))
            if self._has_routes:
                candidates.append(self.heartbeat.next_due_ms(now_ms))
        if self._can_rebalance():
            candidates.append(self._rebalance.next_due_ms(now_ms))
        if self.deliveries:
            candidates.append(self._expiry_due_ms)
        if self.locks_queues:
            candidates.append(self._locks.next_due_ms(self._queues.values(), now_ms))
        for owned in self._queues.values():
            due_ms = owned.quiet_until_ms
            if due_ms <= now_ms:
                due_ms = owned.next_due_ms(now_ms, may_acquire=self._may_acquire)
            candidates.append(due_ms)
        return min(candidates)

    def stood_still(self, still_ms: int, now_ms: int) -> None:
        """Note that nothing called `due` for so long after it was to be called."""
        self._still_ms, self._still_until_ms = still_ms, now_ms
        self._facts.append(StoodStill(still_ms, len(self.deliveries)))

    def take_facts(self) -> list[Fact]:
        """Return the facts since the last call, for the log."""
        facts, self._facts = self._facts, []
        if not self._still_ms:
            return facts
        return [
            fact._replace(still_ms=self._still_ms) if isinstance(fact, QueueLost) else fact
            for fact in facts
        ]

    @property
    def is_done(self) -> bool:
        """Whether the member has left the group."""
        return self._has_left and not self._queues

    @property
    def topics(self) -> tuple[str, ...]:
        """The subscribed topics, sorted."""
        return tuple(sorted(self._topics))

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether the member has a queue in hand, also while the queue starts or drains."""
        return queue in self._queues

    def owned_queues(self) -> tuple[OwnedQueue, ...]:
        """Return the queues in hand, for reading only."""
        return tuple(self._queues.values())

    def sure_queues(self, now_ms: int) -> list[MessageQueue]:
        """Return the queues whose locks we hold, so that no other member consumes them."""
        return [queue for queue, owned in self._queues.items() if owned.is_sure(now_ms)]

    def committed_offset(self, queue: MessageQueue) -> int | None:
        """Return the last offset of a queue in hand that the broker is known to have."""
        owned = self._queues.get(queue)
        return None if owned is None else owned.committed_offset

    def finished_offset(self, queue: MessageQueue) -> int | None:
        """Return the offset before which every message of a queue in hand is finished."""
        owned = self._queues.get(queue)
        return None if owned is None else owned.process_queue.commit_offset

    def newest_message(self, queue: MessageQueue) -> Stored | None:
        """Return the newest message that was pulled of a queue in hand; None for none."""
        owned = self._queues.get(queue)
        return None if owned is None else owned.process_queue.newest

    def room_bytes(self, queue: MessageQueue) -> int:
        """Return how many bytes of inflated bodies a queue in hand may still take in."""
        owned = self._queues.get(queue)
        return 0 if owned is None else owned.process_queue.room_bytes(self._config.flow)

    def _can_rebalance(self) -> bool:
        # A rebalance reads the list of members after our heartbeat has put our client id there.
        is_listed = self._is_known and self.heartbeat.started_ms is None
        return is_listed and not self._is_leaving

    def _is_member(self) -> bool:
        # Who leaves stays a member until the queues are drained: a broker that was restarted
        # meanwhile is found, gives their locks again, and takes their last commits.
        return not (self._is_leaving and all(each.has_ended for each in self._queues.values()))

    def _collect_jobs(self, now_ms: int, actions: list[Action]) -> None:
        if self._is_member():
            if self._routes.begin(now_ms):
                actions.append(RefreshRoutes())
            if self._has_routes and self.heartbeat.begin(now_ms):
                actions.append(Heartbeat())
        if self._can_rebalance() and self._rebalance.begin(now_ms):
            actions.append(Rebalance())

    def _collect_leave(self, now_ms: int, actions: list[Action]) -> None:
        if self._leave_sent_ms is None:
            self._leave_sent_ms = now_ms
            actions.append(Leave())
        elif self._has_left and now_ms - self._leave_sent_ms >= LEAVE_WAIT_MS:
            self._queues.clear()
        elif now_ms - self._leave_sent_ms > LOST_MS:
            self._has_left = True

    # --- subscriptions and routes -----------------------------------------------------------

    def subscribe(self, topic: str, *, now_ms: int) -> None:
        """Add a topic and ask for a rebalance, which brings the topic's queues."""
        self._topics.add(topic)
        self._routes.ask(now_ms)
        self.heartbeat.ask(now_ms)
        self._rebalance.ask(now_ms)

    def unsubscribe(self, topic: str, *, now_ms: int) -> None:
        """Remove a topic and give up its queues."""
        self._topics.discard(topic)
        self.heartbeat.ask(now_ms)
        self._apply_targets({}, now_ms)

    def routes_refreshed(self, *, found: Collection[str], has_changed: bool, now_ms: int) -> None:
        """Note which topics have a route, and whether any route has changed."""
        config = self._config
        self._has_routes = self._has_routes or bool(found)
        has_all = self._topics <= set(found)
        if has_all and (has_changed or not self._had_all_routes):
            self._route_retry_ms = ROUTE_AGAIN_FIRST_MS
        elif has_changed or (self._had_all_routes and not has_all):
            self._route_retry_ms = ROUTE_RETRY_FIRST_MS
        self._had_all_routes = has_all
        limit_ms = config.route_refresh_ms if has_all else config.route_retry_max_ms
        next_in_ms = min(self._route_retry_ms, limit_ms, ROUTE_WAIT_MAX_MS)
        self._route_retry_ms = 2 * next_in_ms
        self._routes.end(now_ms, next_in_ms=next_in_ms)
        if has_changed:
            # New brokers must have our heartbeat before we ask them for the list of members.
            self.heartbeat.ask(now_ms)
            self._rebalance.ask(now_ms)

    def heartbeat_done(
        self,
        *,
        reached: int,
        failed: int,
        now_ms: int,
        expiry_ms: int | None = None,
        silent: Collection[MessageQueue] = (),
        has_returned: bool = False,
    ) -> None:
        """Note how many brokers answered the heartbeat and how many did not.

        Args:
            expiry_ms: the time after which a broker forgets a silent member; None if none says so.
            silent: the queues whose brokers did not answer.
            has_returned: whether a broker answered that did not answer the last heartbeat, or to
                which the connection was lost since.
        """
        sent_ms = now_ms if self.heartbeat.started_ms is None else self.heartbeat.started_ms
        next_in_ms = HEARTBEAT_RETRY_MS if failed else self._config.heartbeat_ms
        if expiry_ms is not None:
            next_in_ms = min(next_in_ms, max(1, expiry_ms // HEARTBEATS_PER_EXPIRY))
        self.heartbeat.end(now_ms, next_in_ms=next_in_ms)
        if not reached:
            return
        if has_returned:
            self._listed_ids.broker_returned(now_ms)
        self.heartbeat_answered_ms = now_ms
        self._listed_until_ms = sent_ms + (LISTED_MS if expiry_ms is None else expiry_ms)
        if not self._is_known:
            self._is_known = True
            # The heartbeat makes the group's retry topic.
            self._route_retry_ms = ROUTE_RETRY_FIRST_MS
        for owned in self._wake():
            if owned.queue not in silent:
                owned.heartbeat_answered(sent_ms, now_ms)

    def is_listed(self, now_ms: int) -> bool:
        """Return whether a broker still lists this member after its last heartbeat."""
        return now_ms < self._listed_until_ms

    def registration_missing(self, now_ms: int) -> None:
        """Send a heartbeat at once: a broker does not know this member or its subscription."""
        self.heartbeat.ask(now_ms)

    def connection_lost(self, queues: Collection[MessageQueue], now_ms: int) -> None:
        """Send a heartbeat, and doubt what we know of a broker's queues: it may have restarted.

        It may also have got another master: its route is asked for as often as one that changes.
        """
        self.heartbeat.ask(now_ms)
        self.queue_moved(now_ms)
        self._locks.renew_soon(now_ms)
        for owned in self._wake():
            if owned.queue in queues:
                owned.connection_lost(now_ms)

    def queue_moved(self, now_ms: int) -> None:
        """Ask for the routes: a broker does not serve a queue, or perhaps not any more."""
        self._routes.ask(now_ms)
        self._route_retry_ms = min(self._route_retry_ms, ROUTE_AGAIN_FIRST_MS)

    # --- rebalance --------------------------------------------------------------------------

    def notified(self, now_ms: int) -> None:
        """Commit and rebalance: the group's members have changed."""
        for owned in self._wake():
            owned.commit_soon(now_ms)
        self._rebalance.ask(now_ms)

    def rebalanced(self, shares: Sequence[TopicShare], now_ms: int) -> RebalancePlan:
        """Apply the shares of all topics; return the queues to acquire and to give up."""
        if self._is_leaving:
            return RebalancePlan((), (), self.assigned)
        ids = self._listed_ids
        if not self._config.is_broadcasting:
            lists = [share.cid_all for share in shares if share.cid_all]
            ids.note(lists, self._facts, now_ms=now_ms)
        if ids.is_missing:
            self.heartbeat.ask(now_ms)
        targets: dict[str, tuple[MessageQueue, ...]] = {}
        is_complete = True
        for share in shares:
            is_early = bool(share.cid_all) and ids.is_early
            if share.mq_all is not None and not is_early:
                self.history.note(share.topic, share.mq_all, cid_all=share.cid_all, now_ms=now_ms)
                self._locks.note_members(len(share.cid_all))
            is_complete = is_complete and share.is_settled
            if share.queues is None or is_early:
                is_complete = False
            else:
                targets[share.topic] = share.queues
        next_in_ms, again_ms = REBALANCE_RETRY_MS, REBALANCE_RETRY_MS
        if is_complete:
            next_in_ms = self._config.rebalance_ms
        elif all(share.mq_all is None for share in shares):
            next_in_ms = self._rebalance_retry_ms
            again_ms = min(2 * next_in_ms, REBALANCE_RETRY_MAX_MS)
        self._rebalance_retry_ms = again_ms
        self._rebalance.end(now_ms, next_in_ms=next_in_ms)
        return self._apply_targets(targets, now_ms)

    def may_lack_members(self, cid_all: Collection[str], now_ms: int) -> bool:
        """Return whether other brokers are to be asked for members that this list may lack."""
        return self._listed_ids.may_lack(cid_all, now_ms)

    def has_share(self, topic: str) -> bool:
        """Return whether a rebalance has given this member its share of a topic, perhaps none."""
        return topic in self._wanted

    def _apply_targets(
        self, targets: Mapping[str, tuple[MessageQueue, ...]], now_ms: int
    ) -> RebalancePlan:
        """Go from the last share to the new shares of some topics; return what changes."""
        self._wanted.update(targets)
        for topic in self._wanted.keys() - self._topics:
            del self._wanted[topic]
        target = {queue for queues in self._wanted.values() for queue in queues}
        plan = reconcile(self.assigned, target)
        for owned in self._wake():
            if owned.queue not in target:
                owned.revoke(now_ms, drain_timeout_ms=self._config.drain_timeout_ms)
        for queue in plan.acquire:
            # A queue that still drains is taken again when it is released.
            if queue not in self._queues:
                self._give(queue, now_ms)
        if not plan.is_balanced:
            self.assigned = tuple(sorted(target, key=queue_order))
            self._facts.append(AssignmentChanged(self.assigned, plan.acquire, plan.revoke))
        return plan

    def _give(
        self, queue: MessageQueue, now_ms: int, *, former: OwnedQueue | None = None
    ) -> OwnedQueue:
        """Begin with a queue; the lock and the running calls of its `former` epoch go on."""
        self._epoch += 1
        config = self._config
        is_required = self.locks_queues and config.is_orderly
        lease = QueueLease(is_wanted=self.locks_queues, is_required=is_required)
        order = InOrder(max_reconsume_times=config.orderly_reconsume_times_max)
        owned = OwnedQueue(
            queue,
            epoch=self._epoch,
            lease=lease if former is None else former.lease,
            calls=QueueCallbacks(is_wanted=config.has_callbacks, epoch=self._epoch)
            if former is None
            else former.calls,
            now_ms=now_ms,
            in_order=order if config.is_orderly else None,
            progress=self._progress.pop(queue, None),
        )
        self._queues[queue] = owned
        return owned

    def _release(self, owned: OwnedQueue, now_ms: int) -> tuple[OwnedQueue, ...]:
        """Release a queue; if the queue is wanted again, return it as a new `OwnedQueue`."""
        del self._queues[owned.queue]
        self._note_progress(owned)
        if owned.queue in self._wanted.get(owned.queue.topic, ()):
            return (self._give(owned.queue, now_ms),)
        return ()

    def _note_progress(self, owned: OwnedQueue) -> None:
        if owned.progress is not None:
            self._progress[owned.queue] = owned.progress

    # --- what happened to a queue -----------------------------------------------------------

    def find_queue(self, queue: MessageQueue, epoch: int) -> OwnedQueue | None:
        """Return a queue to which something has happened, to be told of it, and wake it.

        None if the queue of that epoch is no longer in hand: what happened concerns nobody now.
        """
        owned = self._queues.get(queue)
        if owned is None or owned.epoch != epoch:
            return None
        owned.quiet_until_ms = 0
        return owned

    def pull_abandoned(self, queue: MessageQueue, now_ms: int) -> None:
        """Pull the queue again a little later: the pull under way was ended."""
        owned = self._queues.get(queue)
        if owned is not None and owned.process_queue.pull_offset is not None:
            owned.quiet_until_ms = 0
            owned.pull_failed(owned.process_queue.pull_offset, now_ms)

    def acquired(
        self,
        queue: MessageQueue,
        epoch: int,
        *,
        offset: int,
        is_committed: bool,
        now_ms: int,
        lock_sent_ms: int | None = None,
        has_newest: bool = True,
    ) -> None:
        """Begin to consume a queue at an offset.

        Args:
            is_committed: whether the group has committed the offset.
            has_newest: whether the broker still has the newest message that we pulled before.
            lock_sent_ms: when the request for the queue's lock was sent; None without the lock.
        """
        owned = self.find_queue(queue, epoch)
        if owned is None:
            return
        owned.acquired(
            offset,
            is_committed=is_committed,
            lock_sent_ms=lock_sent_ms,
            has_newest=has_newest,
            now_ms=now_ms,
        )
        if lock_sent_ms is None:
            self._locks.renew_soon(now_ms)

    def regained(
        self,
        queue: MessageQueue,
        epoch: int,
        *,
        found: int | None,
        has_newest: bool,
        now_ms: int,
        lock_sent_ms: int | None = None,
    ) -> None:
        """Go on with a queue if it is as we know it; else begin anew at the group's offset.

        Args:
            found: the group's offset at the broker, None if it has none.
            has_newest: whether the broker still has the newest message that was pulled.
            lock_sent_ms: when the request for the queue's lock was sent; None without the lock.
        """
        owned = self.find_queue(queue, epoch)
        if owned is None:
            return
        fact = owned.regained(
            found, has_newest=has_newest, lock_sent_ms=lock_sent_ms, now_ms=now_ms
        )
        if fact is not None:
            self._lose(owned, fact, now_ms)
        if lock_sent_ms is None:
            self._locks.renew_soon(now_ms)

    def lock_refused(
        self,
        queue: MessageQueue,
        epoch: int,
        *,
        is_owner_listed: bool,
        now_ms: int,
        stands_in: bool | None = None,
    ) -> bool:
        """Record that another member holds the queue's lock; return whether to begin without it.

        Args:
            is_owner_listed: whether the queue's former owner is still in the group.
            stands_in: see `QueueLease.stands_in`.
        """
        owned = self.find_queue(queue, epoch)
        if owned is None:
            return False
        if not owned.lock_refused(
            is_owner_listed=is_owner_listed,
            drain_timeout_ms=self._config.drain_timeout_ms,
            now_ms=now_ms,
            stands_in=stands_in,
        ):
            self._lose(owned, QueueLost(queue), now_ms)
            return False
        return not owned.lease.asks_first

    def locks_renewed(
        self, action: RenewLocks, *, held: Collection[MessageQueue] | None, now_ms: int
    ) -> None:
        """Apply the broker's list of our locks; `held` is None if the broker did not answer."""
        self._wake()
        for queue in action.queues:
            owned = self._queues.get(queue)
            if owned is not None:
                is_held = None if held is None else queue in held
                owned.lock_renewed(action.sent_ms, is_held=is_held, now_ms=now_ms)
        if held is None or len(held) < len(action.queues):
            self._locks.renew_soon(now_ms)

    def members_asked(
        self, action: AskMembers, *, in_hand: Collection[MessageQueue] | None, now_ms: int
    ) -> None:
        """Record the queues that other members have in hand; None if a member did not answer."""
        self._wake()
        refused = [self._queues[queue] for queue in action.queues if queue in self._queues]
        self._locks.members_asked(refused, in_hand, now_ms)

    def _lose(self, owned: OwnedQueue, fact: Fact, now_ms: int) -> None:
        """Begin anew in a queue, or end its drain: its messages are not as we know them."""
        self._facts.append(fact)
        if owned.is_draining:
            owned.give_up()
            return
        self._abandon(owned)
        self._note_progress(owned)
        # Only another member's ownership ends ours; what a broker has lost does not.
        former = None if isinstance(fact, QueueLost) else owned
        self._give(owned.queue, now_ms, former=former).set_back(owned, now_ms)

    def pulled(
        self,
        queue: MessageQueue,
        epoch: int,
        *,
        offset: int,
        messages: Sequence[MessageExt],
        next_offset: int,
        now_ms: int,
        is_cut: bool = False,
        goes_on: bool = False,
    ) -> Pull | None:
        """Process the answer to the pull from `offset`; the next pull begins at `next_offset`.

        Args:
            is_cut: whether the answer had further messages, for which there was no room.
            goes_on: whether the caller makes the next pull, which is returned if it is due now.
        """
        owned = self._queues.get(queue)
        if owned is None or owned.epoch != epoch:
            return None
        owned.pulled(
            offset,
            messages,
            next_offset=max(offset, next_offset),
            now_ms=now_ms,
            is_cut=is_cut,
        )
        following = self._begin_pull(owned, now_ms) if goes_on else None
        owned.wake_if_due()
        return following

    def next_pull(self, queue: MessageQueue, epoch: int, now_ms: int) -> Pull | None:
        """Return the queue's next pull if it is due now, without waiting for `due`."""
        owned = self.find_queue(queue, epoch)
        return None if owned is None else self._begin_pull(owned, now_ms)

    def _begin_pull(self, owned: OwnedQueue, now_ms: int) -> Pull | None:
        return None if self.is_suspended else owned.begin_pull(now_ms, self._config.flow)

    def pull_moved(
        self, queue: MessageQueue, epoch: int, *, offset: int, corrected_offset: int, now_ms: int
    ) -> None:
        """Go on at the corrected offset: the broker does not have `offset`."""
        owned = self.find_queue(queue, epoch)
        if owned is None:
            return
        self._facts.append(OffsetCorrected(queue, offset, corrected_offset))
        if owned.moved(offset, corrected_offset=corrected_offset, now_ms=now_ms):
            return
        owned.lose()
        self._begin_at(owned, corrected_offset, now_ms).set_back(owned, now_ms)

    def reset(self, queue: MessageQueue, offset: int, *, now_ms: int) -> None:
        """Go on at another offset because the broker says so, as an operator's reset makes it."""
        owned = self._queues.get(queue)
        if owned is None or owned.state is not QueueState.CONSUMING:
            return
        own_offset = owned.process_queue.commit_offset
        assert own_offset is not None
        self._facts.append(OffsetReset(queue, own_offset, offset))
        self._abandon(owned)
        self._begin_at(owned, offset, now_ms).set_back(owned, now_ms)

    def seek(self, queue: MessageQueue, offset: int, *, now_ms: int) -> bool:
        """Go on at another offset; False if the queue is not being consumed."""
        owned = self._queues.get(queue)
        if owned is None or owned.state is not QueueState.CONSUMING:
            return False
        self._abandon(owned)
        self._begin_at(owned, offset, now_ms)
        return True

    def _begin_at(self, owned: OwnedQueue, offset: int, now_ms: int) -> OwnedQueue:
        """Begin anew in a queue in hand and keep its lock."""
        again = self._give(owned.queue, now_ms, former=owned)
        again.acquired(offset, is_committed=False, lock_sent_ms=None, now_ms=now_ms)
        return again

    def _abandon(self, owned: OwnedQueue) -> None:
        abandoned = owned.lose()
        if abandoned is not None:
            self._abandoned.append(abandoned)

    def take_back(self, delivery: Deliver, calls: Collection[int]) -> None:
        """Let the messages of calls wait again: the listener was not called with them."""
        owned, batches = self.deliveries.end(delivery, calls)
        if owned is not None:
            owned.quiet_until_ms = 0
            owned.take_back(batches)

    def consumed_all(self, delivery: Deliver, calls: Collection[int]) -> int:
        """Process calls in which the listener finished every message; return how many messages."""
        owned, batches = self.deliveries.end(delivery, calls)
        if owned is None:
            return 0
        owned.wake_if_due()
        return owned.consumed_all(batches)

    def consumed(
        self,
        delivery: Deliver,
        at: int = 0,
        *,
        acked_count: int,
        delay_level: int = 0,
        decided: Mapping[int, Decision] = MappingProxyType({}),
    ) -> None:
        """Process a call of the listener: its first `acked_count` messages are done, others not.

        Args:
            at: the place of the call in the delivery.
            decided: by offset, the results of single messages, which override `acked_count`.
        """
        owned, batches = self.deliveries.end(delivery, (at,))
        for messages in batches:
            assert owned is not None
            owned.quiet_until_ms = 0
            owned.consumed(
                messages,
                acked_count=acked_count,
                delay_level=delay_level,
                decided=decided,
                sends_back=self._config.keeps_unfinished or not self._config.is_broadcasting,
            )

    def consumed_in_order(self, delivery: Deliver, outcome: OrderlyOutcome, now_ms: int) -> None:
        """Process a call of the listener in order: the only one of its delivery."""
        owned, batches = self.deliveries.end(delivery, (0,))
        for messages in batches:
            assert owned is not None
            owned.quiet_until_ms = 0
            sends_back = not self._config.is_broadcasting
            owned.consumed_in_order(messages, outcome, sends_back=sends_back, now_ms=now_ms)

    def callback_returned(self, call: CallOnAssign | CallOnRevoke) -> None:
        """Note that a callback has returned; the queue may have begun anew meanwhile (`seek`)."""
        owned = self._queues.get(call.queue)
        if owned is not None:
            owned.quiet_until_ms = 0
            owned.calls.returned(call)

    def committed(self, queue: MessageQueue, epoch: int, *, offset: int, now_ms: int) -> None:
        """Note that the broker has the committed offset."""
        owned = self.find_queue(queue, epoch)
        if owned is not None:
            wait_ms = commit_wait_ms(len(self._queues), longest_ms=self._config.commit_ms)
            owned.committed(offset, now_ms, wait_ms=wait_ms)

    def _wake(self) -> Collection[OwnedQueue]:
        """Wake the queues in hand, to all of which something happens, and return them."""
        for owned in self._queues.values():
            owned.quiet_until_ms = 0
        return self._queues.values()

    def _send_back_expired(self, now_ms: int) -> None:
        if self._config.is_broadcasting or self._config.is_orderly:
            return
        for owned in self._wake():
            if owned.state is QueueState.CONSUMING:
                owned.backs.add_expired(now_ms, timeout_ms=self._config.consume_timeout_ms)

    # --- the end ----------------------------------------------------------------------------

    @property
    def is_leaving(self) -> bool:
        """Whether the member was told to leave."""
        return self._is_leaving

    def leave(self, now_ms: int) -> None:
        """Give up all queues and then leave the group."""
        if self._is_leaving:
            return
        self._is_leaving = True
        self._apply_targets(dict.fromkeys(self._topics, ()), now_ms)

    def left(self) -> None:
        """Note that every broker has removed the member from its list or could not be reached."""
        self._has_left = True
