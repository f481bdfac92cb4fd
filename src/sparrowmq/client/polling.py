"""The state of a poll consumer beside its membership: the messages on their way to the user.

The group-member machine delivers as to a listener, but a delivery becomes a *batch* that waits
in the inbox until the user asks. Two threads may be at work, and each has its part:

- the driver's fills `inbox`, moves batches to `in_hand` (while the user's thread waits for that),
  and reports to the member what is done;
- the user's, which polls, goes through `in_hand` without a driver call: it only moves the counts
  `given` and `done` of a batch forward. So iterating costs a change of threads once per batch.

A message counts as done when the user asks for the next one (or by `end`), never earlier.
Tests: test_polling.py, test_poll_consumer.py.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparrowmq.calling.effects import Event
from sparrowmq.client.arguments import check_offset, check_queue
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.pull import PullStatus
from sparrowmq.client.subscriber import Notice, Subscriber, member_config_from
from sparrowmq.errors import UsageError
from sparrowmq.membership.actions import (
    AssignmentChanged,
    Deliver,
    OffsetCorrected,
    OffsetReset,
    QueueLost,
)
from sparrowmq.membership.member import GroupMember
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.namespace import Namespace

# Messages of one queue that the polling thread takes at once. Whatever this number is, a queue that
# moves leaves at most one message in work behind.
BATCH_MESSAGES_MAX = 16
# Polls have no bound in number or time: messages that nobody asked for wait in the inbox.
DELIVERIES_MAX = 1 << 30
UNLIMITED_MS = 1 << 60


class PullResult(NamedTuple):
    """The answer to a pull by hand: its status, the messages, and the offset of the next pull."""

    status: PullStatus
    messages: list[MessageExt]
    next_offset: int
    min_offset: int
    max_offset: int

    def __hash__(self) -> int:
        # A list has no hash.
        return hash((self.status, self.next_offset, self.min_offset, self.max_offset))


@dataclass(slots=True, eq=False)
class PolledBatch:
    """Messages of one queue: how many were given to the user, and how many of those are done."""

    delivery: Deliver
    # Its place in the delivery.
    at: int
    given: int = 0
    done: int = 0
    # The rest must not be given: the queue is given up, or consumption continues at another offset.
    is_withdrawn: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether no message is with the user or still to be given."""
        last = self.given if self.is_withdrawn else len(self.messages)
        return self.done == last

    @property
    def messages(self) -> tuple[MessageExt, ...]:
        """The messages."""
        return self.delivery.batches[self.at]


@dataclass(slots=True, kw_only=True)
class Polling:
    """A poll consumer's state.

    Args:
        subscriber: its membership; the listener is not used.
    """

    subscriber: Subscriber
    directory: Directory = field(init=False)
    # The queues of `assign`, or None while queues come by subscription.
    assigned: tuple[MessageQueue, ...] | None = None
    # Whether a topic was ever subscribed.
    has_subscribed: bool = False
    inbox: deque[PolledBatch] = field(default_factory=deque)
    in_hand: list[PolledBatch] = field(default_factory=list)
    paused: set[MessageQueue] = field(default_factory=set)
    # Set when a poll may find messages, or must end.
    arrived: Event = field(default_factory=Event)
    is_closed: bool = False
    # Whether the consumer's loop has ended without `close`: no message can come any more.
    has_failed: bool = False
    # By queue: the offset after the last message given, and the user's last commit.
    positions: dict[MessageQueue, int] = field(default_factory=dict)
    committed: dict[MessageQueue, int] = field(default_factory=dict)
    # Is called with the messages that a poll returns, if any, and the poll's wall-clock start.
    received: Callable[[Sequence[MessageExt], int], None] | None = None

    def __post_init__(self) -> None:
        subscriber = self.subscriber
        self.directory = Directory(
            name_servers=subscriber.name_servers,
            routes=subscriber.routes,
            timeout_ms=subscriber.config.times.invoke_timeout_ms,
            namespace=subscriber.config.namespace,
        )
        subscriber.member = GroupMember(
            dataclasses.replace(
                member_config_from(subscriber.config, has_callbacks=any(subscriber.callbacks)),
                batch_size=BATCH_MESSAGES_MAX,
                # Flow control bounds the inbox of each queue.
                deliveries_max=DELIVERIES_MAX,
                consume_timeout_ms=UNLIMITED_MS,
                # Messages that were not given must be delivered again.
                keeps_unfinished=True,
            ),
            topics=subscriber.subscriptions,
            now_ms=0,
        )

    @property
    def is_auto_commit(self) -> bool:
        """Whether finished messages are committed automatically."""
        return self.subscriber.config.auto_commit

    @property
    def namespace(self) -> Namespace:
        """The namespace of the topics that users name; inside, queues have wire names."""
        return self.subscriber.config.namespace

    # --- the polling thread -----------------------------------------------------------------

    def take(self, count_max: int) -> list[MessageExt]:
        """Give the user the next messages in hand; the messages given before are done."""
        found: list[MessageExt] = []
        for batch in self.in_hand:
            batch.done = batch.given
            messages, queue = batch.messages, batch.delivery.queue
            end = min(len(messages), batch.given + count_max - len(found))
            if end > batch.given and not batch.is_withdrawn and queue not in self.paused:
                found += messages[batch.given : end]
                batch.given = end
                self.positions[queue] = found[-1].queue_offset + 1
        return self.namespace.unwrap_messages(found)

    # --- the driver's thread ----------------------------------------------------------------

    def deliver(self, deliveries: Sequence[Deliver]) -> None:
        """Process deliveries of the member."""
        self.inbox.extend(
            PolledBatch(delivery, at)
            for delivery in deliveries
            for at in range(len(delivery.batches))
        )
        self.arrived.set()

    def fetch(self, count_max: int) -> bool:
        """Make messages ready for `take`, at least `count_max` if the inbox has that many.

        Returns: whether there are any.
        """
        self.settle()
        ready = sum(self._count_ready(batch) for batch in self.in_hand)
        waiting: list[PolledBatch] = []
        while self.inbox and ready < count_max:
            batch = self.inbox.popleft()
            count = self._count_ready(batch)
            (self.in_hand if count else waiting).append(batch)
            self.subscriber.counters.delivered += count
            ready += count
        self.inbox.extendleft(reversed(waiting))
        return ready > 0

    def _count_ready(self, batch: PolledBatch) -> int:
        if batch.is_withdrawn or batch.delivery.queue in self.paused:
            return 0
        return len(batch.messages) - batch.given

    def settle(self) -> None:
        """Report the finished messages to the member."""
        finished = [batch for batch in self.in_hand if batch.is_finished]
        for batch in finished:
            self.in_hand.remove(batch)
            self._note_consumed(batch)

    def withdraw(self, queues: Collection[MessageQueue]) -> None:
        """Give no more messages of these queues; those that the user has may still be finished."""
        for batch in [batch for batch in self.inbox if batch.delivery.queue in queues]:
            self.inbox.remove(batch)
            self._note_consumed(batch)
        for batch in self.in_hand:
            if batch.delivery.queue in queues:
                batch.is_withdrawn = True
        # A poll that waits settles.
        self.arrived.set()

    def note(self, notice: Notice) -> None:
        """Withdraw the messages that must not be given any more."""
        if isinstance(notice, AssignmentChanged):
            self.forget(notice.gained)
            self.withdraw(notice.revoked)
            self.paused.difference_update(notice.revoked)
        elif isinstance(notice, QueueLost | OffsetReset) or (
            isinstance(notice, OffsetCorrected) and notice.corrected_offset < notice.wanted_offset
        ):
            self.forget((notice.queue,))
            self.withdraw((notice.queue,))

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Forget the user's offsets in these queues."""
        for queue in queues:
            self.positions.pop(queue, None)
            self.committed.pop(queue, None)

    def end(self, *, is_done: bool) -> None:
        """Let waiting polls return; `is_done` says whether the given messages are done."""
        self.is_closed = True
        for batch in [*self.in_hand, *self.inbox]:
            if is_done:
                batch.done = batch.given
            self._note_consumed(batch)
        self.in_hand.clear()
        self.inbox.clear()
        self.arrived.set()

    def fail(self) -> None:
        """Let waiting polls end: the consumer's loop has ended."""
        self.has_failed = True
        self.arrived.set()

    def _note_consumed(self, batch: PolledBatch) -> None:
        subscriber = self.subscriber
        subscriber.counters.succeeded += batch.done
        subscriber.member.consumed(batch.delivery, batch.at, acked_count=batch.done)
        subscriber.wake.set()

    # --- subscriptions and commits ------------------------------------------------------------

    def note_subscribing(self) -> None:
        """Record that a topic is subscribed. Raises: UsageError if queues are assigned."""
        if self.assigned is not None:
            raise UsageError(
                "this consumer's queues were given by assign; make another consumer to subscribe"
            )
        self.has_subscribed = True

    def check_has_source(self) -> None:
        """Raise a UsageError if nothing was ever subscribed or assigned: no message could come."""
        if self.assigned is None and not self.has_subscribed:
            raise UsageError(
                f"consumer {self.subscriber.config.client_id} has subscribed no topic and was "
                f"assigned no queues; call subscribe or assign first"
            )

    def check_ours(self, queue: MessageQueue) -> None:
        """Raise a UsageError if a queue is not assigned to this consumer."""
        # A queue given by `assign` is this consumer's before its membership has begun with it.
        if queue not in (self.assigned or ()) and not self.subscriber.member.holds(queue):
            raise UsageError(f"{queue} is not assigned to this consumer")

    def is_untouched(self, queue: MessageQueue) -> bool:
        """Return whether no message of an assigned queue was given or committed yet."""
        is_new = self.subscriber.member.committed_offset(queue) is None and self.assigned is None
        return is_new and queue not in self.positions and queue not in self.committed

    def is_committed(self, queue: MessageQueue) -> bool:
        """Return whether the user has committed every message given of a queue."""
        position = self.positions.get(queue)
        return position is None or self.committed.get(queue, -1) >= position

    def offsets_to_commit(
        self, chosen: Mapping[MessageQueue, int] | None
    ) -> dict[MessageQueue, int]:
        """Return the offsets of a commit: the user's choice, or all messages given.

        Queues that were given up meanwhile are left out. Raises: UsageError for a chosen queue that
        is not assigned to this consumer.
        """
        if chosen is None:
            holds = self.subscriber.member.holds
            return {queue: n for queue, n in sorted(self.positions.items()) if holds(queue)}
        if not isinstance(chosen, Mapping):
            raise UsageError(f"{chosen!r} is not a mapping of queues to offsets")
        wrap = self.namespace.wrap_queue
        wrapped = {wrap(check_queue(q)): check_offset(offset) for q, offset in chosen.items()}
        for queue in wrapped:
            self.check_ours(queue)
        return wrapped
