"""The calls of a consumer's listener: their tasks, their recent pace, and calls that hang.

Pure. `membership/deliveries.py` records the calls that are under way.

Calls wait here for a task to make them. For a moment a task makes one call after another
(`CallEach`), since passing a call to a thread and its outcome back often takes longer than the
call. A listener that is quick keeps one task busy, and calls are handed out ahead of it; for any
other there are as many tasks as calls, so that they run concurrently. If a quick listener turns out
slow, the calls that wait go back to the member after `PATIENCE_MS`, and have tasks of their own
when they come again (benchmarks/against_apache.py: drain, a listener by 1).

The messages of a call that runs too long are sent back, but the call keeps its thread. Once such
calls keep every thread, the member is alive and listed but consumes nothing. Only `ListenersStuck`
shows this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from sparrowmq.calling.effects import WaitingCalls, drop_empty
from sparrowmq.membership.actions import Deliver
from sparrowmq.membership.deliveries import Deliveries
from sparrowmq.model import (
    ConsumeContext,
    ConsumeOrderlyContext,
    ConsumeStatus,
    MessageExt,
    MessageQueue,
)

T = TypeVar("T")

MINUTE_MS = 60_000
# So many calls or more, each in an eighth of a millisecond or less on average, show that the
# listener is quick; fewer say little, since time is counted in whole milliseconds.
QUICK_CALLS_MIN = 8
QUICK_CALLS_PER_MS = 8
# The most calls that count, the latest most: a quick listener may stand still for some 50 ms, as
# on a machine without processor time, and a listener that turns slow is noticed as soon.
JUDGED_CALLS_MAX = 512
# How long calls wait for the one task of a quick listener, and how many calls it may have ahead.
# Its thread may wait 5 ms for Python's lock (`sys.getswitchinterval`), longer for a processor.
PATIENCE_MS = 20
AHEAD_MAX = 256


class ListenersStuck(NamedTuple):
    """Every call that may be under way has run for longer than the consume timeout."""

    call_count: int
    shortest_ms: int
    longest_ms: int
    # The longest first: topic/broker/queue id/offset of its first message.
    messages: tuple[str, ...]


class Pace(NamedTuple):
    """The recent calls for one topic: their mean time, and messages a second by outcome."""

    mean_ms: float = 0.0
    done_per_s: float = 0.0
    failed_per_s: float = 0.0


@dataclass(slots=True)
class _Tally:
    """The calls that ended in one minute of the clock."""

    minute: int
    calls: int = 0
    total_ms: int = 0
    done: int = 0
    failed: int = 0


class Returned(msgspec.Struct, frozen=True):
    """The end of a call of the listener: its place in the delivery, what it had, what it gave."""

    at: int
    messages: tuple[MessageExt, ...]
    context: ConsumeContext | ConsumeOrderlyContext
    value: Any
    error: BaseException | None
    duration_ms: int


class Ended(NamedTuple):
    """The calls of a delivery that have ended lately.

    Args:
        done: the places of calls that finished all their messages and decided nothing else.
        duration_ms: how long these took together.
        others: the other calls.
    """

    handed: Handed
    done: list[int]
    duration_ms: int
    others: list[Returned]


class Handed(msgspec.Struct, eq=False):
    """A delivery to the listener. Threads take its calls and add their ends.

    A quick call leaves only its place behind (benchmarks/against_apache.py: drain, a listener by
    1).

    Args:
        queue: the queue under its user's name.
        batches: the messages of each call under users' names.
        waiting: the places of the calls that have not begun, the next one last.
        left: how many calls have not ended or been taken back, as far as was looked.
    """

    delivery: Deliver
    queue: MessageQueue
    batches: Sequence[tuple[MessageExt, ...]]
    is_orderly: bool
    waiting: list[int]
    left: int
    done: list[int] = []
    durations_ms: list[int] = []
    others: list[Returned] = []

    def __repr__(self) -> str:
        # The messages are left out: there may be hundreds.
        return f"<{self.left} calls for {self.queue}, {len(self.waiting)} of them waiting>"

    @classmethod
    def of(
        cls,
        delivery: Deliver,
        queue: MessageQueue,
        batches: Sequence[tuple[MessageExt, ...]],
        *,
        is_orderly: bool = False,
    ) -> Self:
        """Return a delivery of which no call has begun."""
        count = len(batches)
        return cls(delivery, queue, batches, is_orderly, [*range(count - 1, -1, -1)], count)

    def begin(
        self,
    ) -> tuple[int, tuple[list[MessageExt], ConsumeContext | ConsumeOrderlyContext]] | None:
        """Return the next call and its arguments; the list is the listener's own."""
        try:
            at = self.waiting.pop()
        except IndexError:
            return None
        messages = self.batches[at]
        if self.is_orderly:
            return at, (list(messages), ConsumeOrderlyContext(self.queue))
        return at, (list(messages), ConsumeContext(self.queue, None, 0, messages))

    def end(
        self,
        at: int,
        arguments: tuple[Any, ...],
        value: Any,
        error: BaseException | None,
        duration_ms: int,
    ) -> None:
        """Note the end of a call."""
        context = arguments[1]
        if (
            (value is None or value is ConsumeStatus.CONSUME_SUCCESS)
            and error is None
            and not self.is_orderly
            and context.ack_index is None
            and context.end_undecided()
        ):
            if duration_ms:
                self.durations_ms.append(duration_ms)
            self.done.append(at)
        else:
            messages = self.batches[at]
            self.others.append(Returned(at, messages, context, value, error, duration_ms))

    def take_ended(self) -> Ended:
        """Return the calls that have ended since the last look."""
        duration_ms = sum(_take_all(self.durations_ms)) if self.durations_ms else 0
        done = _take_all(self.done)
        others = _take_all(self.others) if self.others else []
        self.left -= len(done) + len(others)
        return Ended(self, done, duration_ms, others)

    def take_waiting(self) -> list[int]:
        """Take the calls that have not begun, so that they are not made."""
        taken: list[int] = []
        with suppress(IndexError):
            while True:
                # A thread may take the last one at any time.
                taken.append(self.waiting.pop())
        self.left -= len(taken)
        return taken

    def split(self) -> Handed | None:
        """Take the next call as a delivery of its own; None if no call waits."""
        try:
            at = self.waiting.pop()
        except IndexError:
            return None
        self.left -= 1
        return Handed(self.delivery, self.queue, self.batches, self.is_orderly, [at], 1)


def _take_all(items: list[T]) -> list[T]:
    """Empty a list to which threads append."""
    taken = items[:]
    del items[: len(taken)]
    return taken


@dataclass(slots=True)
class ListenerCalls:
    """The waiting calls of the listener, the tasks that make calls, and the recent pace."""

    # Those of which calls may wait, for threads, and those with calls that have not ended.
    waiting: deque[WaitingCalls] = field(default_factory=deque)
    in_hand: list[Handed] = field(default_factory=list)
    _task_count: int = 0
    # When the newest task began.
    _task_begun_ms: int = 0
    # Whether the last calls returned at once.
    is_quick: bool = False
    # The calls by which `is_quick` is judged, and how long they took.
    _call_count: int = 0
    _duration_ms: int = 0
    _has_reported: bool = False
    # By topic, of the newest minute in which a call ended, and of the one before.
    _tallies: dict[str, tuple[_Tally, _Tally]] = field(default_factory=dict)

    @property
    def ahead_max(self) -> int:
        """The number of calls that may wait beyond those that have a task."""
        return AHEAD_MAX if self.is_quick else 0

    @property
    def waiting_count(self) -> int:
        """The number of calls that wait."""
        return sum([len(handed.waiting) for handed in self.in_hand])

    def add(self, handed: Handed) -> None:
        """Let the calls of a delivery wait."""
        self.in_hand.append(handed)
        self.waiting.append(handed)

    def take_back(self, now_ms: int, *, is_suspended: bool) -> list[tuple[Deliver, list[int]]]:
        """Give back waiting calls that must not begin any more or have waited too long."""
        if self.is_quick and self._task_count and now_ms - self._task_begun_ms >= PATIENCE_MS:
            self.is_quick = False
        back: list[tuple[Deliver, list[int]]] = []
        if is_suspended or (not self.is_quick and self.waiting_count > self._task_count):
            for handed in reversed(self.in_hand):
                if calls := handed.take_waiting():
                    back.append((handed.delivery, calls))
            self._drop_ended()
        return back

    def split(self) -> Handed | None:
        """Take the next waiting call as a delivery of its own, which is not in hand."""
        for handed in self.in_hand:
            if (one := handed.split()) is not None:
                self._drop_ended()
                return one
        return None

    def _drop_ended(self) -> None:
        if all(handed.left for handed in self.in_hand):
            return
        for handed in self.in_hand:
            if not handed.left:
                # It may refer to much memory.
                drop_empty(self.waiting, handed)
        self.in_hand = [handed for handed in self.in_hand if handed.left]

    def begin_tasks(self, now_ms: int, *, call_count: int, task_count_max: int) -> int:
        """Return how many tasks are to begin now; each then counts until `task_ended`.

        Args:
            call_count: the number of calls under way, waiting calls included.
            task_count_max: how many calls may run at once.
        """
        wanted = 1 if self.is_quick else min(call_count, task_count_max)
        count = min(self.waiting_count, wanted - self._task_count)
        if count <= 0:
            return 0
        self._task_count += count
        self._task_begun_ms = now_ms
        return count

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return the instant at which patience with waiting calls ends, None if no call waits.

        Calls may have returned by then which their task, kept by the next, cannot report.
        """
        due_ms = self._task_begun_ms + PATIENCE_MS
        return due_ms if self._task_count and now_ms < due_ms else None

    def task_ended(self) -> None:
        """Note that a task has ended."""
        self._task_count -= 1

    def take_ended(self) -> list[Ended]:
        """Return the calls that have ended since the last look."""
        ended = [h.take_ended() for h in self.in_hand if h.done or h.others]
        self._drop_ended()
        self._judge(ended)
        return ended

    def _judge(self, ended: Sequence[Ended]) -> None:
        for each in ended:
            self._call_count += len(each.done) + len(each.others)
            self._duration_ms += each.duration_ms
            self._duration_ms += sum([other.duration_ms for other in each.others])
        if self._call_count < QUICK_CALLS_MIN and self._duration_ms <= 1:
            return
        self.is_quick = self._duration_ms * QUICK_CALLS_PER_MS <= self._call_count
        if not self.is_quick:
            self._call_count = self._duration_ms = 0
        elif self._call_count >= JUDGED_CALLS_MAX:
            self._call_count //= 2
            self._duration_ms //= 2

    def ended(
        self, topic: str, now_ms: int, *, calls: int, duration_ms: int, done: int, failed: int = 0
    ) -> None:
        """Note that calls for a topic have returned, and how many messages are done or failed."""
        self._has_reported = False
        minute = now_ms // MINUTE_MS
        tallies = self._tallies.get(topic)
        if tallies is None:
            tallies = self._tallies[topic] = (_Tally(0), _Tally(minute))
        elif tallies[1].minute < minute:
            tallies = self._tallies[topic] = (tallies[1], _Tally(minute))
        newest = tallies[1]
        newest.calls += calls
        newest.total_ms += duration_ms
        newest.done += done
        newest.failed += failed

    def pace(self, topic: str, now_ms: int) -> Pace:
        """Return the pace of calls for a topic in this minute of the clock and the one before."""
        minute = now_ms // MINUTE_MS
        recent = [t for t in self._tallies.get(topic, ()) if t.minute >= minute - 1]
        calls = sum(tally.calls for tally in recent)
        if not calls:
            return Pace()
        begun_ms = min(tally.minute for tally in recent) * MINUTE_MS
        seconds = max(1.0, (now_ms - begun_ms) / 1000)
        return Pace(
            mean_ms=sum(tally.total_ms for tally in recent) / calls,
            done_per_s=sum(tally.done for tally in recent) / seconds,
            failed_per_s=sum(tally.failed for tally in recent) / seconds,
        )

    def capacity_per_s(self, now_ms: int, *, call_count_max: int) -> float:
        """Return how many messages a second the listener could take; 0 if no call ended lately.

        That is more than it takes while it waits for messages: calls at once over time a call.
        """
        minute = now_ms // MINUTE_MS
        recent = [
            tally
            for pair in self._tallies.values()
            for tally in pair
            if tally.minute >= minute - 1 and tally.calls
        ]
        messages = sum(tally.done + tally.failed for tally in recent)
        # Time is counted in whole milliseconds; a quick call takes less than one.
        busy_ms = sum(max(tally.total_ms, tally.calls / QUICK_CALLS_PER_MS) for tally in recent)
        return call_count_max * messages * 1000 / busy_ms if messages else 0.0

    def find_stuck(
        self, calls: Deliveries, now_ms: int, *, call_count_max: int, timeout_ms: int
    ) -> ListenersStuck | None:
        """Return whether all calls are stuck; once, until one of them returns.

        Args:
            calls: those under way.
            call_count_max: how many calls may be under way.
            timeout_ms: how long a call may run.
        """
        if self._has_reported or not 0 < call_count_max <= len(calls):
            return None
        oldest_ms, newest_ms = calls.begun_ms, calls.newest_ms
        if oldest_ms is None or newest_ms is None or now_ms - newest_ms <= timeout_ms:
            return None
        self._has_reported = True
        return ListenersStuck(
            len(calls),
            shortest_ms=now_ms - newest_ms,
            longest_ms=now_ms - oldest_ms,
            messages=tuple(
                f"{m.topic}/{m.broker_name}/{m.queue_id}/{m.queue_offset}" for m in calls.firsts
            ),
        )
