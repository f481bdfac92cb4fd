"""One queue that a group member has in hand, from the rebalance that gives it to its release.

`queue_state.py` has the states of that life and the table of its transitions.

Deliveries, commits and messages sent back depend on the queue's lock, so each asks the `QueueLease`
first. While the lease is fenced none of them begins. After a lost connection the queue is
*doubted*: the broker may have been restarted without its newest messages, so nothing is pulled or
committed. In both cases the broker is asked (`Regain`). If nobody else has moved the group's offset
and the broker still has what was pulled, consumption goes on where it stopped.

`collect` works out the next actions from the state each time. Nothing has to be scheduled, so no
queue stops because a timer was forgotten. A request under way counts as lost after a bound, so an
answer that never comes does not stop the queue either. A queue that is consumed is left out of
rounds until something happens to it or `quiet_until_ms` has come: a member has many queues, and
most rounds are about one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

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
    OffsetCorrected,
    Pull,
    QueueLost,
    Regain,
    SendBack,
    Unlock,
)
from sparrowmq.membership.group_offset import GroupOffset, UncommittedProgress
from sparrowmq.membership.in_order import InOrder, OrderlyOutcome
from sparrowmq.membership.process_queue import (
    PULL_IDLE_MAX_MS,
    FlowLimits,
    ProcessQueue,
)
from sparrowmq.membership.queue_callbacks import QueueCallbacks
from sparrowmq.membership.queue_lease import QueueLease
from sparrowmq.membership.queue_state import TRANSITIONS, QueueEvent, QueueState
from sparrowmq.membership.repeated_job import (
    LOST_MS,
    RETRY_FIRST_MS,
    RETRY_MAX_MS,
    RepeatedJob,
    backoff_ms,
)
from sparrowmq.membership.send_backs import SendBacks
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.message import DEAD_LETTER_LEVEL, Decision

# MQClientInstance commits every offset at this interval (persistConsumerOffsetInterval), changed or
# not. So do we: the late commit of a former owner may have lowered the offset.
COMMIT_AGAIN_MS = 5_000
# Between two commits of a queue; and between any two commits of a member, on average. If the member
# is killed, messages consumed since the last commit come again. Java sends offsets with every pull.
COMMIT_WAIT_MIN_MS = 50
COMMIT_SPACING_MS = 20
# How long the last commit of a queue is tried once no delivery is under way any more.
LAST_COMMIT_MS = 3_000
# The longest wait between two requests for a queue's lock and start position that failed. A broker
# that does not answer in time has too many requests already; its next answer to a heartbeat ends
# the wait.
ACQUIRE_RETRY_MAX_MS = 5_000
# How long the member waits for an unlock to be answered before it may lock the queue again: an
# unlock that arrives later would release the new lock. The unlock is repeated within this time;
# after that, the lock ends with its lease.
UNLOCK_LOST_MS = 10_000
UNLOCK_CHECK_MS = 1_000
# A queue that a broker has begin anew is pulled from at once the first time, after the first wait
# the next time, and then at doubled waits up to the longest: such a queue's messages come again.
# DefaultMQPushConsumerImpl waits the longest each time, after OFFSET_ILLEGAL.
SETBACK_WAIT_FIRST_MS = 1_000
SETBACK_WAIT_MAX_MS = 10_000
# After so long without another, a setback counts as the first.
SETBACKS_FORGOTTEN_MS = 60_000


class OwnedQueue:
    """One queue that a member has in hand: acquires, pulls, delivers, commits and releases it.

    Args:
        epoch: a number that grows each time the member is given a queue.
        lease: the member's side of the queue's lock.
        calls: the user's callbacks for the queue.
        in_order: set if the queue is consumed in order.
        progress: what the member had finished and not committed when it last let go of the queue.
        now_ms: when the member was given the queue.
    """

    __slots__ = (
        "_acquire",
        "_commit",
        "_commit_again_ms",
        "_deadline_ms",
        "_failures",
        "_fruitless_count",
        "_group_offset",
        "_has_abandoned_pull",
        "_is_doubted",
        "_pull",
        "_setback_count",
        "_setback_ms",
        "_unlisted_since_ms",
        "_unlock",
        "backs",
        "call_count",
        "calls",
        "epoch",
        "in_order",
        "lease",
        "process_queue",
        "progress",
        "queue",
        "quiet_until_ms",
        "state",
    )

    def __init__(
        self,
        queue: MessageQueue,
        *,
        epoch: int,
        lease: QueueLease,
        calls: QueueCallbacks,
        now_ms: int,
        in_order: InOrder | None = None,
        progress: UncommittedProgress | None = None,
    ) -> None:
        self.queue = queue
        # Changed by `_move` alone.
        self.state = QueueState.STARTING
        self.in_order = in_order
        self.progress = progress
        self.lease = lease
        self.calls = calls
        self.epoch = epoch
        self.process_queue = ProcessQueue(queue, now_ms=now_ms)
        self.backs = SendBacks(self.process_queue)
        # Calls of the listener under way; the member's `Deliveries` lists them.
        self.call_count = 0
        self._failures = 0
        # Pulls in a row that did not advance the offset.
        self._fruitless_count = 0
        # How often a broker has had the queue begin anew of late, and when it last did.
        self._setback_count = 0
        self._setback_ms = now_ms
        self._acquire = RepeatedJob(now_ms)
        self._pull = RepeatedJob(now_ms, lost_ms=PULL_IDLE_MAX_MS)
        self._commit = RepeatedJob(now_ms)
        self._unlock = RepeatedJob(now_ms, lost_ms=UNLOCK_LOST_MS)
        # When even a committed offset is committed again.
        self._commit_again_ms = now_ms + COMMIT_AGAIN_MS
        self._group_offset = GroupOffset(0, is_committed=False, now_ms=now_ms)
        # Whether the broker may have lost what we know of the queue.
        self._is_doubted = False
        # Since when the broker may not list us; it refuses locks until our next heartbeat.
        self._unlisted_since_ms: int | None = None
        # When the deliveries under way are no longer waited for; in COMMITTING, the last commit.
        self._deadline_ms = 0
        self._has_abandoned_pull = False
        # Until then `collect` adds nothing unless an event comes, which sets it to 0.
        self.quiet_until_ms = 0

    @property
    def is_draining(self) -> bool:
        """Whether the queue is being given up and its offset may still be committed."""
        return self.state in (QueueState.DRAINING, QueueState.COMMITTING)

    @property
    def is_revoked(self) -> bool:
        """Whether the queue was given up or is being given up."""
        return self.state not in (QueueState.STARTING, QueueState.CONSUMING)

    @property
    def has_ended(self) -> bool:
        """Whether the messages are dropped: at most the lock is left to be given back."""
        return self.state in (QueueState.UNLOCKING, QueueState.RELEASED)

    @property
    def is_released(self) -> bool:
        """Whether the queue is out of the member's hand."""
        return self.state is QueueState.RELEASED

    def _move(self, event: QueueEvent) -> None:
        after = TRANSITIONS.get((self.state, event))
        assert after is not None, f"{self.queue} is {self.state.name}: {event.name} has no place"
        self.state = after

    @property
    def committed_offset(self) -> int | None:
        """The last offset of the queue that the broker is known to have."""
        return self._group_offset.known

    def is_sure(self, now_ms: int) -> bool:
        """Return whether messages may be delivered and committed under the lock."""
        is_ours = self.state is QueueState.CONSUMING or self.is_draining
        return is_ours and self.lease.is_held and not self.lease.is_fenced(now_ms)

    # --- what to do -------------------------------------------------------------------------

    def is_acquiring(self, now_ms: int) -> bool:
        """Return whether the lock and the start position are being asked for."""
        return self._acquire.is_under_way(now_ms)

    def collect(
        self,
        now_ms: int,
        actions: list[Action],
        facts: list[Fact],
        *,
        flow: FlowLimits | None,
        may_acquire: bool,
    ) -> bool:
        """Add the actions that are due now, except deliveries.

        Args:
            flow: how much may be cached; None while pulls pause.
            may_acquire: whether the lock and the start position may be asked for.

        Returns: whether they are asked for from now on.
        """
        if self._has_abandoned_pull:
            self._has_abandoned_pull = False
            actions.append(AbandonPull(self.queue, self.epoch))
        state = self.state
        is_fenced = self.lease.is_fenced(now_ms)
        has_asked = (
            may_acquire
            and self._wants_acquire(is_fenced=is_fenced)
            and self._collect_acquire(now_ms, actions)
        )
        if state is QueueState.CONSUMING and not is_fenced:
            # The start position is committed before any message is delivered.
            self._collect_commit(now_ms, actions)
            if self.calls.begin_assign(now_ms):
                actions.append(CallOnAssign(self.queue, self.epoch))
            if flow is not None and (pull := self.begin_pull(now_ms, flow)) is not None:
                actions.append(pull)
            if not self.backs.are_settled:
                self._collect_backs(now_ms, actions)
                self.backs.retry(now_ms)
            if flow is not None and not self._is_doubted and self._acquire.started_ms is None:
                # While pulls pause, those that are due wait, and no event ends that.
                self.quiet_until_ms = self.next_due_ms(now_ms, may_acquire=may_acquire)
        elif self.is_draining and is_fenced:
            facts.append(QueueLost(self.queue))
            self._end()
        elif self.is_draining:
            self._collect_backs(now_ms, actions)
            if state is QueueState.DRAINING:
                self._collect_drain(now_ms, actions)
            if self.state is QueueState.COMMITTING:
                self._collect_last_commit(now_ms, actions, facts)
        if self.state is QueueState.UNLOCKING:
            self._collect_unlock(now_ms, actions)
        return has_asked

    def _wants_acquire(self, *, is_fenced: bool) -> bool:
        """Return whether the broker is to be asked for the queue, for the first time or again."""
        if self.state is QueueState.CONSUMING:
            return (self._is_doubted or is_fenced) and self._unlisted_since_ms is None
        if self.state is QueueState.STARTING:
            return True
        return self._is_doubted and self.is_draining and self._unlisted_since_ms is None

    def _collect_acquire(self, now_ms: int, actions: list[Action]) -> bool:
        if not self._acquire.begin(now_ms):
            return False
        wants_lock = self.lease.asks_first
        if wants_lock:
            self.lease.ask()
        if self.state is QueueState.STARTING:
            newest = None if self.progress is None else self.progress.newest
            actions.append(Acquire(self.queue, self.epoch, wants_lock, newest))
        else:
            newest = self.process_queue.newest
            actions.append(Regain(self.queue, self.epoch, wants_lock, newest))
        return True

    def _collect_unlock(self, now_ms: int, actions: list[Action]) -> None:
        """Give the lock back if we may hold one and no request for it is under way."""
        lease = self.lease
        if not (lease.may_hold or lease.stands_in):
            self._move(QueueEvent.UNLOCKED)
        elif self.is_acquiring(now_ms) or lease.is_renewing(now_ms):
            return
        elif self._unlock.started_ms is None:
            self._unlock.begin(now_ms)
            actions.append(Unlock(self.queue, self.epoch))
        elif not self._unlock.is_under_way(now_ms):
            self._move(QueueEvent.UNLOCKED)

    def begin_pull(self, now_ms: int, flow: FlowLimits) -> Pull | None:
        """Return the next pull if it is due and there is room; it then counts as under way."""
        process_queue = self.process_queue
        may_begin = self._pull.may_begin(now_ms) and self.state is QueueState.CONSUMING
        if not may_begin or self._is_doubted or self.lease.is_fenced(now_ms):
            return None
        process_queue.last_pull_ms = now_ms
        in_order = self.in_order is not None
        if process_queue.flow_control(flow, in_order=in_order) is not None:
            # Every completed delivery collects again, so no timer is needed.
            return None
        assert process_queue.pull_offset is not None
        self._pull.begin(now_ms)
        return Pull(self.queue, self.epoch, process_queue.pull_offset)

    def wake_if_due(self) -> None:
        """Let `collect` look after messages have come or were consumed, unless it looks in time.

        It has nothing to do about them while the next pull is under way, until a commit is due.
        """
        commit = self._commit
        commit_waits = commit.started_ms is None and commit.due_ms < self.quiet_until_ms
        if commit_waits or self._pull.started_ms is None:
            self.quiet_until_ms = 0

    def _collect_backs(self, now_ms: int, actions: list[Action]) -> None:
        for messages, delay_level in self.backs.begin(now_ms):
            actions.append(SendBack(self.queue, self.epoch, messages, delay_level))

    def _collect_commit(self, now_ms: int, actions: list[Action]) -> None:
        if self._is_doubted or not self._commit.may_begin(now_ms):
            return
        offset = self.process_queue.commit_offset
        if offset is None or not (self._is_dirty() or now_ms >= self._commit_again_ms):
            return
        self._commit.begin(now_ms)
        actions.append(Commit(self.queue, self.epoch, offset, is_last=False))

    def _collect_drain(self, now_ms: int, actions: list[Action]) -> None:
        """Wait for the deliveries under way, then for `on_revoke`."""
        if self.in_order is not None:
            if self.call_count > 0:
                # Order takes precedence over time: no other member may begin while our listener
                # runs.
                return
            # Messages held without a commit come again at the next owner.
            self.process_queue.rollback_in_order()
        is_busy = self._in_flight_count() > 0 or self.backs.are_under_way
        if is_busy and now_ms < self._deadline_ms:
            return
        if self.calls.begin_revoke(now_ms):
            actions.append(CallOnRevoke(self.queue, self.epoch))
        if self.calls.may_release(now_ms):
            self._deadline_ms = now_ms + LAST_COMMIT_MS
            self._move(QueueEvent.DRAINED)

    def _collect_last_commit(self, now_ms: int, actions: list[Action], facts: list[Fact]) -> None:
        may_commit = now_ms < self._deadline_ms
        if may_commit and (self._is_doubted or self._commit.started_ms is not None):
            return
        if self._is_dirty():
            offset = self.process_queue.commit_offset
            assert offset is not None
            if may_commit:
                if self._commit.begin(now_ms):
                    actions.append(Commit(self.queue, self.epoch, offset, is_last=True))
                return
            facts.append(CommitLost(self.queue, offset))
        if (in_flight_count := self._in_flight_count()) > 0:
            facts.append(DrainTimedOut(self.queue, in_flight_count))
        self._end()

    def _in_flight_count(self) -> int:
        """Return how many messages listeners have, or are being sent back."""
        return self.process_queue.in_flight_count - self.backs.retry_count

    def _end(self) -> None:
        """Drop the queue's messages; only the lock is left to be given back."""
        self._move(QueueEvent.ENDED)
        self._drop()

    def _drop(self) -> None:
        """Drop the queue's messages; what was finished and not committed is kept."""
        process_queue, own_offset = self.process_queue, self.process_queue.commit_offset
        # A broker that was restarted may have forgotten even what it had answered.
        if own_offset is not None and (
            self._is_doubted or self._is_dirty() or self._group_offset.may_fall_back
        ):
            self.progress = UncommittedProgress(
                self._group_offset, own_offset, process_queue.newest
            )
        process_queue.drop()

    def next_due_ms(self, now_ms: int, *, may_acquire: bool) -> int:
        """Return when `collect` may add an action without an event; at most a minute ahead."""
        candidates = [now_ms + LOST_MS]
        if self.calls.is_wanted:
            candidates += self.calls.next_due_ms(now_ms)
        state = self.state
        is_fenced = self.lease.is_fenced(now_ms)
        if may_acquire and self._wants_acquire(is_fenced=is_fenced):
            candidates.append(self._acquire.next_due_ms(now_ms))
        if state is QueueState.CONSUMING and not is_fenced:
            if self.lease.until_ms is not None:
                candidates.append(self.lease.until_ms)
            if not self.backs.are_settled:
                candidates += self.backs.retries_due_ms
            if self.in_order is not None and self.in_order.resume_ms > now_ms:
                candidates.append(self.in_order.resume_ms)
            if not self._is_doubted:
                candidates += self._requests_due_ms(now_ms)
        elif self.is_draining:
            waits_ms = [self._deadline_ms, self._commit.due_ms]
            if self.lease.until_ms is not None:
                waits_ms.append(self.lease.until_ms)
            candidates += [wait_ms for wait_ms in waits_ms if wait_ms > now_ms]
        elif state is QueueState.UNLOCKING:
            candidates.append(now_ms + UNLOCK_CHECK_MS)
        return min(candidates)

    def _requests_due_ms(self, now_ms: int) -> list[int]:
        """Return when the next pull and the next commit are due."""
        pull_due_ms = self._pull.next_due_ms(now_ms)
        commit_due_ms = self._commit.next_due_ms(now_ms)
        if commit_due_ms <= now_ms and not self._is_dirty():
            # Looked at only then: what is consumed meanwhile makes the offset dirty.
            commit_due_ms = max(commit_due_ms, self._commit_again_ms)
        # A pull that is due already waits for room in the cache, which an event makes.
        return [commit_due_ms, pull_due_ms] if pull_due_ms > now_ms else [commit_due_ms]

    def _is_dirty(self) -> bool:
        offset = self.process_queue.commit_offset
        return offset is not None and offset != self._group_offset.known

    # --- what happened ----------------------------------------------------------------------

    def acquired(
        self,
        offset: int,
        *,
        is_committed: bool,
        lock_sent_ms: int | None,
        now_ms: int,
        has_newest: bool = True,
    ) -> None:
        """Begin at an offset, or go on where we stopped if only we have consumed since.

        Args:
            is_committed: whether the broker has the offset as the group's.
            lock_sent_ms: when the request for the lock was sent; None without the lock.
            has_newest: whether the broker still has the newest message of our progress.
        """
        if not self._end_acquire(lock_sent_ms, now_ms) or self.state is not QueueState.STARTING:
            return
        self._move(QueueEvent.ACQUIRED)
        self._group_offset = GroupOffset(offset, is_committed=is_committed, now_ms=now_ms)
        progress, self.progress = self.progress, None
        if progress is not None and has_newest:
            found, own_offset = offset if is_committed else None, progress.own_offset
            if progress.group_offset.is_ours(found, own_offset=own_offset):
                offset, self.process_queue.newest = own_offset, progress.newest
                self._group_offset = progress.group_offset
                self._group_offset.found_again(found)
        self.process_queue.start(offset, now_ms=now_ms)
        self._commit_again_ms = now_ms + COMMIT_AGAIN_MS
        self._failures = 0

    def regained(
        self, found: int | None, *, has_newest: bool, lock_sent_ms: int | None, now_ms: int
    ) -> Fact | None:
        """Go on if the queue is as we know it.

        Args:
            found: the group's offset at the broker, None if it has none.
            has_newest: whether the broker still has the newest message that was pulled.
            lock_sent_ms: when the request for the lock was sent; None without the lock.

        Returns: None to go on; else why the queue must begin anew.
        """
        if not self._end_acquire(lock_sent_ms, now_ms) or self.has_ended:
            return None
        own_offset, pull_offset = self.process_queue.commit_offset, self.process_queue.pull_offset
        assert own_offset is not None
        assert pull_offset is not None
        if not has_newest and found is not None and found < pull_offset:
            # The broker has lost messages; others get, or have got, their offsets.
            return OffsetCorrected(self.queue, pull_offset, found)
        if not (has_newest and self._group_offset.is_ours(found, own_offset=own_offset)):
            return QueueLost(self.queue)
        self._is_doubted = False
        # If the broker has forgotten our commit, the offset is committed again.
        self._group_offset.found_again(found)
        return None

    def _end_acquire(self, lock_sent_ms: int | None, now_ms: int) -> bool:
        """Record the lock, or its lack; return False if consumption cannot go on without it."""
        sent_ms = self._acquire.started_ms
        if lock_sent_ms is not None:
            self.lease.grant(lock_sent_ms)
        elif sent_ms is not None and self.lease.is_required:
            # No master answers. Consumption in order waits until a master does.
            self.acquire_failed(now_ms)
            return False
        elif sent_ms is not None and self.lease.is_wanted:
            self.lease.go_without(sent_ms)
        self._acquire.end(now_ms, next_in_ms=0)
        return True

    def lock_refused(
        self,
        *,
        is_owner_listed: bool,
        drain_timeout_ms: int,
        now_ms: int,
        stands_in: bool | None = None,
    ) -> bool:
        """Ask again a little later, or go on without the lock.

        Args:
            stands_in: see `QueueLease.stands_in`.

        Returns: False if we had the queue before, so that it must begin anew.
        """
        sent_ms = now_ms if self._acquire.started_ms is None else self._acquire.started_ms
        self._acquire.end(now_ms, next_in_ms=0)
        if self.state is not QueueState.STARTING:
            self.lease.may_hold, self.lease.stands_in = False, stands_in
            return self.has_ended
        again_ms = self.lease.wait_or_go_on(
            sent_ms,
            now_ms,
            is_owner_listed=is_owner_listed,
            drain_timeout_ms=drain_timeout_ms,
            stands_in=stands_in,
        )
        if again_ms is not None:
            self._acquire.due_ms = again_ms
        return True

    def nobody_has_it(self, now_ms: int) -> None:
        """Ask for the lock once more, since no other member has the queue in hand."""
        self.lease.nobody_has_it(now_ms)
        self._acquire.hurry(now_ms)

    def begin_renewal(self, now_ms: int) -> bool:
        """Return whether to renew the lock now; the renewal then counts as under way."""
        lease = self.lease
        is_ours = self.state is QueueState.CONSUMING or self.is_draining
        if not (is_ours and lease.is_wanted) or lease.is_fenced(now_ms):
            return False
        if lease.is_renewing(now_ms):
            return False
        lease.ask()
        lease.renewal.begin(now_ms)
        return True

    def lock_renewed(self, sent_ms: int, *, is_held: bool | None, now_ms: int) -> None:
        """Process the result of a renewal; `is_held` is None if the result is not known."""
        lease = self.lease
        if lease.renewal.started_ms != sent_ms:
            return
        lease.renewal.end(now_ms, next_in_ms=0)
        if is_held:
            lease.grant(sent_ms)
        elif is_held is not None:
            lease.refuse(sent_ms, now_ms)

    def unlocked(self) -> None:
        """Note that the lock was given back."""
        self.lease.give_back()

    def give_up(self) -> None:
        """End a drain at once, without the last commit."""
        self._end()

    def lose(self) -> AbandonPull | None:
        """Give the queue up at once, to begin anew. Return the pull to abandon."""
        is_pulling = self._pull.started_ms is not None
        self._move(QueueEvent.LOST)
        self._drop()
        return AbandonPull(self.queue, self.epoch) if is_pulling else None

    def acquire_failed(self, now_ms: int) -> None:
        """Try again a little later."""
        self._failures += 1
        wait_ms = backoff_ms(self._failures, max_ms=ACQUIRE_RETRY_MAX_MS)
        self._acquire.end(now_ms, next_in_ms=wait_ms)

    def pulled(
        self,
        offset: int,
        messages: Sequence[MessageExt],
        *,
        next_offset: int,
        now_ms: int,
        is_cut: bool = False,
    ) -> None:
        """Process the answer to the pull from `offset`; ignore answers to other pulls."""
        sent_ms = self._pull.started_ms
        if sent_ms is None or offset != self.process_queue.pull_offset:
            return
        self._failures = 0
        self._pace(sent_ms, now_ms, brings_on=next_offset > offset)
        self.process_queue.add(messages, next_offset=next_offset, is_cut=is_cut)

    def moved(self, offset: int, *, corrected_offset: int, now_ms: int) -> bool:
        """Go on at the corrected offset: the broker does not have `offset`.

        Returns: False if the corrected offset lies before the pulled messages; nothing has changed
        then. The cached messages stand at offsets that other messages will get, so the queue must
        begin anew.
        """
        if self._pull.started_ms is None or offset != self.process_queue.pull_offset:
            return True
        if corrected_offset < offset:
            return False
        self.pulled(offset, (), next_offset=corrected_offset, now_ms=now_ms)
        return True

    def set_back(self, former: OwnedQueue, now_ms: int) -> None:
        """Wait with the first pull if a broker has `former`, the same queue, begin anew often."""
        is_recent = now_ms - former._setback_ms < SETBACKS_FORGOTTEN_MS
        count = former._setback_count if is_recent else 0
        if count:
            wait_ms = min(SETBACK_WAIT_FIRST_MS << min(count - 1, 10), SETBACK_WAIT_MAX_MS)
            self._pull.due_ms = now_ms + wait_ms
        self._setback_count, self._setback_ms = count + 1, now_ms

    def _pace(self, sent_ms: int, now_ms: int, *, brings_on: bool) -> None:
        """Let the next pull follow at once, unless several pulls in a row brought nothing.

        A broker usually holds a pull that finds nothing, but need not.
        """
        self._fruitless_count = 0 if brings_on else self._fruitless_count + 1
        due_ms = now_ms
        if self._fruitless_count > 1:
            due_ms = max(now_ms, sent_ms + backoff_ms(self._fruitless_count - 1))
        self._pull.end(now_ms, next_in_ms=due_ms - now_ms)

    def pull_failed(self, offset: int, now_ms: int) -> None:
        """Try again a little later."""
        if self._pull.started_ms is None or offset != self.process_queue.pull_offset:
            return
        self._failures += 1
        self._pull.end(now_ms, next_in_ms=backoff_ms(self._failures))

    def hurry(self, now_ms: int) -> None:
        """Retry failed requests at once: they may succeed now."""
        if self._failures:
            self._pull.hurry(now_ms)
            self._acquire.hurry(now_ms)

    def commit_soon(self, now_ms: int) -> None:
        """Commit without delay if there is an offset to commit."""
        self._commit.hurry(now_ms)

    def connection_lost(self, now_ms: int) -> None:
        """Ask the broker before the next pull or commit: it may have been restarted."""
        self._unlisted_since_ms = now_ms
        self._is_doubted = self.state is QueueState.CONSUMING or self.is_draining

    def heartbeat_answered(self, sent_ms: int, now_ms: int) -> None:
        """Note that the queue's broker lists us; failed requests may succeed now."""
        if self._unlisted_since_ms is not None and sent_ms >= self._unlisted_since_ms:
            self._unlisted_since_ms = None
            self._acquire.hurry(now_ms)
        self.hurry(now_ms)

    def committed(self, offset: int, now_ms: int, *, wait_ms: int) -> None:
        """Note that the broker has an offset; the next is committed after a wait."""
        self._group_offset.note(offset, now_ms)
        self._commit_again_ms = now_ms + COMMIT_AGAIN_MS
        self._commit.end(now_ms, next_in_ms=0 if self.is_draining else wait_ms)

    def commit_failed(self, now_ms: int) -> None:
        """Try again a little later."""
        self._commit.end(now_ms, next_in_ms=RETRY_FIRST_MS if self.is_draining else RETRY_MAX_MS)

    def revoke(self, now_ms: int, *, drain_timeout_ms: int) -> None:
        """Begin to drain: no new pull and no new delivery; deliveries under way may finish."""
        if self.is_revoked:
            return
        self._has_abandoned_pull = self._pull.started_ms is not None
        self._pull.end(now_ms, next_in_ms=0)
        self._deadline_ms = now_ms + drain_timeout_ms
        self._commit.hurry(now_ms)
        self._move(QueueEvent.REVOKED)
        self.process_queue.revoke()

    # --- deliveries -------------------------------------------------------------------------

    def may_deliver(self, now_ms: int) -> bool:
        """Return whether the listener may be called: the lock is held, no callback is awaited."""
        return (
            not self.lease.is_fenced(now_ms)
            and self._may_go_on(now_ms)
            and self.calls.may_deliver(now_ms)
        )

    def take(self, count_max: int, calls_max: int, now_ms: int) -> list[tuple[MessageExt, ...]]:
        """Take the next messages for up to `calls_max` calls of the listener, if there are any.

        Args:
            count_max: the most messages of one call.
        """
        taken = self.process_queue.take_batch(count_max * calls_max, now_ms=now_ms)
        batches = [tuple(taken[at : at + count_max]) for at in range(0, len(taken), count_max)]
        self.call_count += len(batches)
        return batches

    def take_back(self, batches: Sequence[tuple[MessageExt, ...]]) -> None:
        """Let the messages of calls wait again: the listener was not called with them."""
        self.call_count -= len(batches)
        self.process_queue.make_again([message for batch in batches for message in batch])

    def consumed_all(self, batches: Sequence[tuple[MessageExt, ...]]) -> int:
        """Process calls of a listener that finished all messages; return how many messages."""
        self.call_count -= len(batches)
        messages = [message for batch in batches for message in batch]
        if not self.has_ended:
            self.process_queue.complete_taken(messages)
        return len(messages)

    def consumed(
        self,
        messages: Sequence[MessageExt],
        *,
        acked_count: int,
        delay_level: int,
        decided: Mapping[int, Decision],
        sends_back: bool,
    ) -> None:
        """Process the result of a listener's call: the first `acked_count` messages are done.

        The other messages are sent back, unless they had timed out and were sent back already.
        Where nothing is sent back (BROADCASTING), the other messages are done too.

        Args:
            decided: by offset, the results of single messages, which override `acked_count`.
        """
        self.call_count -= 1
        if self.has_ended:
            return
        backs: dict[int, list[MessageExt]] = {}
        for index, message in enumerate(messages):
            level = None if index < acked_count else delay_level
            if message.queue_offset in decided:
                level = decided[message.queue_offset].level
            if level is not None and sends_back:
                backs.setdefault(level, []).append(message)
        for level, some in backs.items():
            self.backs.add(some, level)
        sent = {message.queue_offset for some in backs.values() for message in some}
        self.process_queue.complete(
            [message.queue_offset for message in messages if message.queue_offset not in sent]
        )

    def consumed_in_order(
        self,
        messages: Sequence[MessageExt],
        outcome: OrderlyOutcome,
        *,
        sends_back: bool,
        now_ms: int,
    ) -> None:
        """Process the result of a call of a listener in order."""
        self.call_count -= 1
        if self.has_ended:
            return
        assert self.in_order is not None
        dead = self.in_order.settle(self.process_queue, messages, outcome, now_ms=now_ms)
        if dead and sends_back:
            self.backs.add(dead, DEAD_LETTER_LEVEL)
        elif dead:
            self.process_queue.complete([message.queue_offset for message in dead])

    def _may_go_on(self, now_ms: int) -> bool:
        """Return whether the next batch may begin; in order, the last batch must be settled."""
        if self.in_order is None:
            return True
        return self.backs.are_settled and now_ms >= self.in_order.resume_ms

    def sent_back(self, *, done: Collection[int], failed: Collection[int], now_ms: int) -> None:
        """Note by offset which messages the broker has now; the others are consumed here again."""
        if not self.has_ended:
            self.backs.end(done=done, failed=failed, now_ms=now_ms)


def commit_wait_ms(queue_count: int, *, longest_ms: int) -> int:
    """Return how long a member with `queue_count` queues waits between two commits of a queue."""
    return min(max(COMMIT_WAIT_MIN_MS, COMMIT_SPACING_MS * queue_count), longest_ms)


assert LOST_MS < PULL_IDLE_MAX_MS
