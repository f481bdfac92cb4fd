"""The process queue: the messages that a member has pulled from one queue and not yet finished.

Rules of this file:
- Messages wait in offset order. A batch is *taken* for delivery and later *completed*, in any
  order of batches. The commit offset is the lowest offset not yet completed. If nothing is cached,
  the commit offset is the next pull's offset. A commit therefore never passes an unfinished
  message.
- A dropped queue delivers nothing and commits nothing: a late result has no effect.
- A queue is used either concurrently (`take_batch`, `complete`, `put_back`) or in order
  (`take_in_order`, `commit_in_order`, `rollback_in_order`, `make_again`), never both.

Differs from RocketMQ: when all messages are finished, Java commits the last message's offset + 1.
SparrowMQ commits the next pull's offset, which also passes messages that the broker filtered out.
A SparrowMQ queue also drains before it is dropped: no delivery begins, and deliveries under way
count.

Source: ProcessQueue.java, DefaultMQPushConsumerImpl.pullMessage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from sparrowmq.membership.actions import Stored
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.message import INFLATED_BYTES_MAX

# ProcessQueue.PULL_MAX_IDLE_TIME, ProcessQueue.java.
PULL_IDLE_MAX_MS = 120_000
# DefaultMQPushConsumer.consumeTimeout, 15 min.
CONSUME_TIMEOUT_MS = 15 * 60 * 1000
# ProcessQueue.cleanExpiredMsg looks at this many messages of a queue in one round.
EXPIRED_BATCH_MAX = 16

MIB = 1024 * 1024
# While compressed bodies are read, there are also in memory: their answer, a second copy of the
# body being inflated, and two finished bodies, whose memory the C library keeps for a while.
READING_BYTES_MAX = 4 * INFLATED_BYTES_MAX


class FlowControl(Enum):
    """The reason why the next pull has to wait."""

    COUNT = "COUNT"
    SIZE = "SIZE"
    SPAN = "SPAN"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """How much a queue may cache before pulling pauses; a limit may be reached, not passed.

    Args:
        count_max: messages (pullThresholdForQueue).
        size_mib_max: whole MiB of bodies (pullThresholdSizeForQueue).
        span_max: highest cached offset less the lowest (consumeConcurrentlyMaxSpan).
    """

    count_max: int = 1000
    size_mib_max: int = 100
    span_max: int = 2000

    def room_bytes(self, held_bytes: int) -> int:
        """Return how many bytes of inflated bodies fit beside `held_bytes`; below 0 for none.

        The size limit holds for all memory that an answer takes while it is read: an answer of a
        few kilobytes may inflate to gigabytes.
        """
        return self.size_mib_max * MIB - READING_BYTES_MAX - held_bytes


def stored_of(message: MessageExt) -> Stored:
    """Return where and when a message was stored."""
    return Stored(message.queue_offset, message.commit_log_position, message.store_timestamp_ms)


class ProcessQueue:
    """The messages pulled from one queue and not yet consumed, with the offset to commit.

    Args:
        now_ms: when the member was given the queue; idle pulls are counted from then.
    """

    __slots__ = (
        "_cached",
        "_is_cut",
        "_is_open",
        "_offsets",
        "_pending",
        "_taken",
        "last_consume_ms",
        "last_pull_ms",
        "newest",
        "pull_offset",
        "queue",
        "size_bytes",
    )

    def __init__(self, queue: MessageQueue, *, now_ms: int) -> None:
        self.queue = queue
        # Whether messages are taken in and delivered: from the start to the revoke.
        self._is_open = False
        self.pull_offset: int | None = None
        # The newest message pulled so far, finished or not.
        self.newest: Stored | None = None
        self.size_bytes = 0
        self.last_pull_ms = now_ms
        self.last_consume_ms: int | None = None
        # Every unfinished message by offset.
        self._cached: dict[int, MessageExt] = {}
        # Ascending offsets. A completed offset stays until it is the first, so that finding the
        # lowest unfinished offset costs O(1) on average.
        self._offsets: deque[int] = deque()
        # Ascending offsets of unfinished messages that wait for delivery.
        self._pending: deque[int] = deque()
        # Whether the last pull answer had further messages, for which there was no room.
        self._is_cut = False
        # Offsets under delivery, and since when.
        self._taken: dict[int, int] = {}

    def __repr__(self) -> str:
        return (
            f"ProcessQueue({self.queue}, cached={len(self._cached)}, "
            f"taken={len(self._taken)}, commit={self.commit_offset}, pull={self.pull_offset})"
        )

    # --- begin and end ----------------------------------------------------------------------

    def start(self, offset: int, *, now_ms: int) -> None:
        """Begin to consume at an offset."""
        self._is_open = True
        self.pull_offset = offset
        self.last_pull_ms = now_ms

    def revoke(self) -> None:
        """Accept and deliver nothing more; deliveries under way may finish."""
        self._is_open = False
        self._pending.clear()

    def drop(self) -> None:
        """Drop all messages; later results have no effect, and no offset is left to commit."""
        self.revoke()
        self._taken.clear()
        self._offsets.clear()
        self._cached.clear()
        self.pull_offset = None
        self.size_bytes = 0

    # --- pulling ----------------------------------------------------------------------------

    def room_bytes(self, limits: FlowLimits) -> int:
        """Return how many bytes of inflated bodies fit; one body always fits in an empty queue."""
        room_bytes = limits.room_bytes(self.size_bytes)
        return room_bytes if self._cached else max(room_bytes, INFLATED_BYTES_MAX)

    def add(self, messages: Sequence[MessageExt], *, next_offset: int, is_cut: bool = False) -> int:
        """Add the messages of a pull, in offset order, and the offset of the next pull.

        A message that is cached already is replaced and not delivered again. A pull answer that
        comes after a revoke is dropped.

        Args:
            is_cut: whether there was no room for the next message; the next pull waits for it.

        Returns: how many messages are new.
        """
        if not self._is_open:
            return 0
        count_before = len(self._cached)
        found = [message.queue_offset for message in messages]
        if found and (not self._offsets or self._offsets[-1] < found[0]):
            # The usual case: all messages are new.
            self._cached.update(zip(found, messages, strict=True))
            self._offsets.extend(found)
            self._pending.extend(found)
            self.size_bytes += sum([len(message.body) for message in messages])
        else:
            for message in messages:
                self._add_one(message)
        if messages:
            self.newest = stored_of(messages[-1])
        self.pull_offset = next_offset
        self._is_cut = is_cut
        return len(self._cached) - count_before

    def _add_one(self, message: MessageExt) -> None:
        """Add a message that may be cached already or may precede cached messages."""
        offset = message.queue_offset
        previous = self._cached.get(offset)
        self._cached[offset] = message
        self.size_bytes += len(message.body)
        if previous is not None:
            self.size_bytes -= len(previous.body)
        elif self._offsets and offset <= self._offsets[-1]:
            self._insert_out_of_order(offset)
        else:
            self._offsets.append(offset)
            self._pending.append(offset)

    def flow_control(self, limits: FlowLimits, *, in_order: bool = False) -> FlowControl | None:
        """Return why the next pull must wait, or None.

        Size counts whole MiB, as Java's integer division does. Delivery in order ignores the span.
        """
        if len(self._cached) > limits.count_max:
            return FlowControl.COUNT
        if self.size_bytes // MIB > limits.size_mib_max:
            return FlowControl.SIZE
        if self._is_cut and self.room_bytes(limits) < INFLATED_BYTES_MAX:
            return FlowControl.SIZE
        offsets = self._offsets
        if in_order or not offsets or offsets[-1] - offsets[0] <= limits.span_max:
            return None
        return FlowControl.SPAN if self.span > limits.span_max else None

    def _insert_out_of_order(self, offset: int) -> None:
        # The offset may be completed and not yet popped; its message was pulled again.
        self._offsets = deque(sorted({*self._offsets, offset}))
        self._pending = deque(sorted({*self._pending, offset}))

    # --- what is cached ---------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Unfinished messages, those under delivery included."""
        return len(self._cached)

    @property
    def pending_count(self) -> int:
        """Messages that wait for delivery."""
        return len(self._pending)

    @property
    def in_flight_count(self) -> int:
        """Messages under delivery."""
        return len(self._taken)

    def has(self, offset: int) -> bool:
        """Return whether the message at this offset is unfinished."""
        return offset in self._cached

    @property
    def span(self) -> int:
        """Highest unfinished offset less the lowest; 0 if there is none."""
        first = self._first_unfinished()
        if first is None:
            return 0
        while self._offsets[-1] not in self._cached:
            self._offsets.pop()
        return self._offsets[-1] - first

    @property
    def commit_offset(self) -> int | None:
        """The offset that may be committed now; None before the start and once dropped."""
        first = self._first_unfinished()
        return self.pull_offset if first is None else first

    def _first_unfinished(self) -> int | None:
        offsets, cached = self._offsets, self._cached
        while offsets and offsets[0] not in cached:
            offsets.popleft()
        return offsets[0] if offsets else None

    # --- concurrent delivery ----------------------------------------------------------------

    def take_batch(self, count_max: int, *, now_ms: int) -> list[MessageExt]:
        """Take the lowest waiting messages for delivery."""
        pending, cached = self._pending, self._cached
        if len(pending) <= count_max:
            offsets = list(pending)
            pending.clear()
        else:
            offsets = [pending.popleft() for _ in range(count_max)]
        if offsets:
            self._taken.update(dict.fromkeys(offsets, now_ms))
            self.last_consume_ms = now_ms
        return [cached[offset] for offset in offsets]

    def complete(self, offsets: Collection[int]) -> int | None:
        """Finish messages (consumed, sent back or given up), whether or not they were taken.

        Returns: the offset that may be committed; None once the queue is dropped.
        """
        taken, cached, size_bytes = self._taken, self._cached, self.size_bytes
        if len(offsets) == len(cached) and cached.keys() == set(offsets):
            # The usual case where the listener is quick: nothing is left.
            for left in (taken, cached, self._offsets, self._pending):
                left.clear()
            self.size_bytes = 0
            return self.pull_offset
        were_taken = True
        for offset in offsets:
            if taken.pop(offset, None) is None:
                were_taken = False
            if (message := cached.pop(offset, None)) is not None:
                size_bytes -= len(message.body)
        self.size_bytes = size_bytes
        if not were_taken:
            self._pending = deque([offset for offset in self._pending if offset in cached])
        return self.commit_offset

    def put_back(self, offsets: Iterable[int]) -> None:
        """Let messages under delivery wait again and count one more re-consumption of each.

        These messages could be neither consumed nor sent back. In a draining queue they only leave
        the delivery; they stay unfinished, so the next owner gets them.
        """
        returned = [offset for offset in offsets if self._taken.pop(offset, None) is not None]
        for offset in returned:
            message = self._cached[offset]
            self._cached[offset] = msgspec.structs.replace(
                message, reconsume_times=message.reconsume_times + 1
            )
        if self._is_open:
            self._pending = deque(sorted({*self._pending, *returned}))

    def find_expired(
        self, now_ms: int, *, timeout_ms: int = CONSUME_TIMEOUT_MS
    ) -> list[MessageExt]:
        """Return the lowest unfinished messages, up to the first that is not overdue.

        A message is overdue when its listener has had it longer than `timeout_ms`. An overdue
        message holds up the commit. It is sent back and then completed; the listener's later result
        has no effect.
        """
        expired: list[MessageExt] = []
        self._first_unfinished()
        for offset in self._offsets:
            if offset not in self._cached:
                continue
            taken_ms = self._taken.get(offset)
            if (
                taken_ms is None
                or now_ms - taken_ms <= timeout_ms
                or len(expired) == EXPIRED_BATCH_MAX
            ):
                break
            expired.append(self._cached[offset])
        return expired

    # --- delivery in order ------------------------------------------------------------------

    def commit_in_order(self) -> int | None:
        """Finish the batch under delivery; return the offset that may be committed."""
        return self.complete(list(self._taken))

    def rollback_in_order(self) -> None:
        """Let the whole batch wait again, unchanged."""
        self.make_again([self._cached[offset] for offset in self._taken])

    def make_again(self, messages: Sequence[MessageExt]) -> None:
        """Let messages of the batch wait again, with the re-consume times they carry here."""
        for message in messages:
            if self._taken.pop(message.queue_offset, None) is None:
                continue
            self._cached[message.queue_offset] = message
            if self._is_open:
                self._pending.append(message.queue_offset)
        self._pending = deque(sorted(self._pending))
