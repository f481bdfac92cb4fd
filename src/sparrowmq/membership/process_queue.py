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
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from operator import attrgetter

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


_offset_of = attrgetter("queue_offset")


def _size_of(messages: Sequence[MessageExt]) -> int:
    """Return the size of the bodies."""
    return sum([len(message.body) for message in messages])


def stored_of(message: MessageExt) -> Stored:
    """Return where and when a message was stored."""
    return Stored(message.queue_offset, message.commit_log_position, message.store_timestamp_ms)


class _Taken:
    """Messages under delivery that were taken at once, in offset order, at least one."""

    __slots__ = ("begun_ms", "messages", "size_bytes")

    def __init__(self, messages: list[MessageExt], size_bytes: int, begun_ms: int) -> None:
        self.messages = messages
        self.size_bytes = size_bytes
        self.begun_ms = begun_ms


class ProcessQueue:
    """The messages pulled from one queue and not yet consumed, with the offset to commit.

    Messages are kept as they come and go: an answer's together, then a delivery's. A step for each
    of them would be most of their cost here (benchmarks/against_apache.py: drain, a listener by
    32).

    Args:
        now_ms: when the member was given the queue; idle pulls are counted from then.
    """

    __slots__ = (
        "_is_cut",
        "_is_open",
        "_taken",
        "_waiting",
        "_waiting_bytes",
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
        # Of the bodies of all unfinished messages.
        self.size_bytes = 0
        self.last_pull_ms = now_ms
        self.last_consume_ms: int | None = None
        # The unfinished messages that are not under delivery, in offset order.
        self._waiting: deque[MessageExt] = deque()
        self._waiting_bytes = 0
        # Whether the last pull answer had further messages, for which there was no room.
        self._is_cut = False
        # The unfinished messages under delivery.
        self._taken: list[_Taken] = []

    def __repr__(self) -> str:
        return (
            f"ProcessQueue({self.queue}, cached={self.count}, "
            f"taken={self.in_flight_count}, commit={self.commit_offset}, pull={self.pull_offset})"
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

    def drop(self) -> None:
        """Drop all messages; later results have no effect, and no offset is left to commit."""
        self.revoke()
        self._taken.clear()
        self._waiting.clear()
        self.pull_offset = None
        self.size_bytes = self._waiting_bytes = 0

    # --- pulling ----------------------------------------------------------------------------

    def room_bytes(self, limits: FlowLimits) -> int:
        """Return how many bytes of inflated bodies fit; one body always fits in an empty queue."""
        room_bytes = limits.room_bytes(self.size_bytes)
        has_any = self._waiting or self._taken
        return room_bytes if has_any else max(room_bytes, INFLATED_BYTES_MAX)

    def add(self, messages: Sequence[MessageExt], *, next_offset: int, is_cut: bool = False) -> int:
        """Add the messages of a pull, in offset order, and the offset of the next pull.

        A message that is unfinished already is not taken in again. A pull answer that comes after a
        revoke is dropped.

        Args:
            is_cut: whether there was no room for the next message; the next pull waits for it.

        Returns: how many messages are new.
        """
        if not self._is_open:
            return 0
        new, last = messages, self._last_unfinished()
        if not messages or last is None or messages[0].queue_offset > last:
            # The usual case: all messages are new.
            self._waiting.extend(messages)
            self._count_waiting(messages)
        else:
            held = set(map(_offset_of, self._unfinished()))
            new = [message for message in messages if message.queue_offset not in held]
            self._wait_again(new)
        if messages:
            self.newest = stored_of(messages[-1])
        self.pull_offset = next_offset
        self._is_cut = is_cut
        return len(new)

    def _count_waiting(self, messages: Sequence[MessageExt]) -> None:
        """Count the bodies of messages that wait from now on."""
        size_bytes = _size_of(messages)
        self._waiting_bytes += size_bytes
        self.size_bytes += size_bytes

    def _wait_again(self, messages: Sequence[MessageExt]) -> None:
        """Let messages wait in their places between others."""
        self._waiting = deque(sorted([*self._waiting, *messages], key=_offset_of))
        self._count_waiting(messages)

    def flow_control(self, limits: FlowLimits, *, in_order: bool = False) -> FlowControl | None:
        """Return why the next pull must wait, or None.

        Size counts whole MiB, as Java's integer division does. Delivery in order ignores the span.
        """
        if self.count > limits.count_max:
            return FlowControl.COUNT
        if self.size_bytes // MIB > limits.size_mib_max:
            return FlowControl.SIZE
        if self._is_cut and self.room_bytes(limits) < INFLATED_BYTES_MAX:
            return FlowControl.SIZE
        return None if in_order or self.span <= limits.span_max else FlowControl.SPAN

    # --- what is cached ---------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Unfinished messages, those under delivery included."""
        return len(self._waiting) + self.in_flight_count

    @property
    def pending_count(self) -> int:
        """Messages that wait for delivery."""
        return len(self._waiting) if self._is_open else 0

    @property
    def in_flight_count(self) -> int:
        """Messages under delivery."""
        return sum([len(taken.messages) for taken in self._taken])

    def has(self, offset: int) -> bool:
        """Return whether the message at this offset is unfinished."""
        return offset in map(_offset_of, self._unfinished())

    def _unfinished(self) -> Iterator[MessageExt]:
        """Return the unfinished messages, those under delivery first."""
        return chain(*[taken.messages for taken in self._taken], self._waiting)

    @property
    def span(self) -> int:
        """Highest unfinished offset less the lowest; 0 if there is none."""
        first, last = self._first_unfinished(), self._last_unfinished()
        return 0 if first is None or last is None else last - first

    @property
    def commit_offset(self) -> int | None:
        """The offset that may be committed now; None before the start and once dropped."""
        first = self._first_unfinished()
        return self.pull_offset if first is None else first

    def _first_unfinished(self) -> int | None:
        firsts = [taken.messages[0].queue_offset for taken in self._taken]
        if self._waiting:
            firsts.append(self._waiting[0].queue_offset)
        return min(firsts, default=None)

    def _last_unfinished(self) -> int | None:
        lasts = [taken.messages[-1].queue_offset for taken in self._taken]
        if self._waiting:
            lasts.append(self._waiting[-1].queue_offset)
        return max(lasts, default=None)

    # --- concurrent delivery ----------------------------------------------------------------

    def take_batch(self, count_max: int, *, now_ms: int) -> list[MessageExt]:
        """Take the lowest waiting messages for delivery; the list is for reading only."""
        waiting = self._waiting
        if not waiting or not self._is_open or count_max < 1:
            return []
        if len(waiting) <= count_max:
            messages = list(waiting)
            waiting.clear()
            size_bytes, self._waiting_bytes = self._waiting_bytes, 0
        else:
            messages = [waiting.popleft() for _ in range(count_max)]
            size_bytes = _size_of(messages)
            self._waiting_bytes -= size_bytes
        self._taken.append(_Taken(messages, size_bytes, now_ms))
        self.last_consume_ms = now_ms
        return messages

    def complete_taken(self, messages: list[MessageExt]) -> None:
        """Finish messages of one delivery, usually all that were taken at once."""
        for place, taken in enumerate(self._taken):
            if taken.messages == messages:
                self.size_bytes -= taken.size_bytes
                del self._taken[place]
                return
        self.complete(list(map(_offset_of, messages)))

    def complete(self, offsets: Collection[int]) -> int | None:
        """Finish messages (consumed, sent back or given up), whether or not they were taken.

        Returns: the offset that may be committed; None once the queue is dropped.
        """
        done = set(offsets)
        if len(self._take_out(done)) < len(done):
            left = [message for message in self._waiting if message.queue_offset not in done]
            if len(left) < len(self._waiting):
                self.size_bytes -= self._waiting_bytes
                self._waiting_bytes = 0
                self._waiting.clear()
                self._wait_again(left)
        return self.commit_offset

    def _take_out(self, offsets: Container[int]) -> list[MessageExt]:
        """Take messages out of their deliveries; leave out those that are not under delivery."""
        found: list[MessageExt] = []
        for taken in self._taken:
            some = [message for message in taken.messages if message.queue_offset in offsets]
            if some:
                size_bytes = _size_of(some)
                taken.size_bytes -= size_bytes
                self.size_bytes -= size_bytes
                taken.messages = [m for m in taken.messages if m.queue_offset not in offsets]
                found += some
        self._taken = [taken for taken in self._taken if taken.messages]
        return found

    def put_back(self, offsets: Collection[int]) -> None:
        """Let messages under delivery wait again and count one more re-consumption of each.

        These messages could be neither consumed nor sent back. In a draining queue they only leave
        the delivery; they stay unfinished, so the next owner gets them.
        """
        self._wait_again(
            [
                msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1)
                for message in self._take_out(offsets)
            ]
        )

    def find_expired(
        self, now_ms: int, *, timeout_ms: int = CONSUME_TIMEOUT_MS
    ) -> list[MessageExt]:
        """Return the lowest unfinished messages, up to the first that is not overdue.

        A message is overdue when its listener has had it longer than `timeout_ms`. An overdue
        message holds up the commit. It is sent back and then completed; the listener's later result
        has no effect.
        """
        overdue: list[MessageExt] = []
        # The lowest offset that is not overdue.
        end = self._waiting[0].queue_offset if self._waiting else None
        for taken in self._taken:
            if now_ms - taken.begun_ms > timeout_ms:
                overdue += taken.messages
            elif end is None or taken.messages[0].queue_offset < end:
                end = taken.messages[0].queue_offset
        lowest = sorted(overdue, key=_offset_of)[:EXPIRED_BATCH_MAX]
        return [message for message in lowest if end is None or message.queue_offset < end]

    # --- delivery in order ------------------------------------------------------------------

    def commit_in_order(self) -> int | None:
        """Finish the batch under delivery; return the offset that may be committed."""
        return self.complete(list(map(_offset_of, self._under_delivery())))

    def rollback_in_order(self) -> None:
        """Let the whole batch wait again, unchanged."""
        self.make_again(self._under_delivery())

    def _under_delivery(self) -> list[MessageExt]:
        return [message for taken in self._taken for message in taken.messages]

    def make_again(self, messages: Sequence[MessageExt]) -> None:
        """Let messages of the batch wait again, with the re-consume times they carry here."""
        given = {message.queue_offset: message for message in messages}
        taken = self._take_out(given)
        if taken:
            self._wait_again([given[message.queue_offset] for message in taken])
