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
from typing import NamedTuple

import msgspec

from sparrowmq.calling.effects import Returned
from sparrowmq.membership.actions import Deliver
from sparrowmq.membership.deliveries import CallUnderWay
from sparrowmq.model import ConsumeContext, ConsumeOrderlyContext, MessageExt

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


class Handed(msgspec.Struct, frozen=True, gc=False):
    """A delivery to the listener: the messages under users' names, and the call's context."""

    delivery: Deliver
    messages: tuple[MessageExt, ...]
    context: ConsumeContext | ConsumeOrderlyContext

    def arguments(self) -> tuple[list[MessageExt], ConsumeContext | ConsumeOrderlyContext]:
        """Return the listener's arguments; the list is its own, which it may change."""
        return list(self.messages), self.context


@dataclass(slots=True)
class ListenerCalls:
    """The waiting calls of the listener, the tasks that make calls, and the recent pace."""

    # Threads take them from the left.
    waiting: deque[Handed] = field(default_factory=deque)
    # The outcomes of calls; threads append them on the right.
    returned: deque[Returned] = field(default_factory=deque)
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

    def take_back(self, now_ms: int, *, is_suspended: bool) -> list[Deliver]:
        """Give back waiting calls that must not begin any more or have waited too long."""
        if self.is_quick and self._task_count and now_ms - self._task_begun_ms >= PATIENCE_MS:
            self.is_quick = False
        back: list[Deliver] = []
        if is_suspended or (not self.is_quick and len(self.waiting) > self._task_count):
            with suppress(IndexError):
                while True:
                    # A thread may take the last one at any time.
                    back.append(self.waiting.pop().delivery)
        return back

    def begin_tasks(self, now_ms: int, *, call_count: int, task_count_max: int) -> int:
        """Return how many tasks are to begin now; each then counts until `task_ended`.

        Args:
            call_count: the number of calls under way, waiting calls included.
            task_count_max: how many calls may run at once.
        """
        wanted = 1 if self.is_quick else min(call_count, task_count_max)
        count = min(len(self.waiting), wanted - self._task_count)
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

    def take_returned(self) -> list[Returned]:
        """Return the outcomes of calls since the last `take_returned`."""
        count = len(self.returned)
        taken = [self.returned.popleft() for _ in range(count)]
        self._judge(taken)
        return taken

    def _judge(self, returned: Sequence[Returned]) -> None:
        self._call_count += len(returned)
        self._duration_ms += sum([each.duration_ms for each in returned])
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
        self, calls: Sequence[CallUnderWay], now_ms: int, *, call_count_max: int, timeout_ms: int
    ) -> ListenersStuck | None:
        """Return whether all calls are stuck; once, until one of them returns.

        Args:
            calls: those under way, the oldest first.
            call_count_max: how many calls may be under way.
            timeout_ms: how long a call may run.
        """
        if self._has_reported or not 0 < call_count_max <= len(calls):
            return None
        if now_ms - calls[-1].begun_ms <= timeout_ms:
            return None
        self._has_reported = True
        firsts = [call.delivery.messages[0] for call in calls]
        return ListenersStuck(
            len(calls),
            shortest_ms=now_ms - calls[-1].begun_ms,
            longest_ms=now_ms - calls[0].begun_ms,
            messages=tuple(
                f"{m.topic}/{m.broker_name}/{m.queue_id}/{m.queue_offset}" for m in firsts
            ),
        )
