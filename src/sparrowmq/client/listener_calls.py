"""The calls of a consumer's listener: those under way, how long they take, whether all are stuck.

Pure.

A call that runs too long has its messages sent back, but keeps its thread. Once every thread is
kept so, nothing is consumed any more although the member is alive and listed, which nobody sees
from outside; `ListenersStuck` says it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sparrowmq.membership.actions import Deliver

MINUTE_MS = 60_000


class ListenersStuck(NamedTuple):
    """Every call that may be under way has run for longer than the consume timeout."""

    call_count: int
    shortest_ms: int
    longest_ms: int
    # The longest first: topic/broker/queue id/offset of its first message.
    messages: tuple[str, ...]


class Pace(NamedTuple):
    """How calls for one topic went of late: their mean time, and messages a second by outcome."""

    mean_ms: float = 0.0
    done_per_s: float = 0.0
    failed_per_s: float = 0.0


class _Tally(NamedTuple):
    """What ended in one minute of the clock."""

    minute: int
    calls: int = 0
    total_ms: int = 0
    done: int = 0
    failed: int = 0


class _Call(NamedTuple):
    delivery: Deliver
    begun_ms: int


@dataclass(slots=True)
class ListenerCalls:
    """The listener's calls under way, how fast calls went of late, and whether all are stuck."""

    _calls: dict[int, _Call] = field(default_factory=dict)
    _has_told: bool = False
    # By topic, of the newest minute in which a call ended, and of the one before.
    _tallies: dict[str, tuple[_Tally, _Tally]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def begun_ms(self) -> int | None:
        """When the oldest call began, None without calls."""
        return min((call.begun_ms for call in list(self._calls.values())), default=None)

    def begin(self, delivery: Deliver, now_ms: int) -> None:
        """Take note of a call."""
        self._calls[delivery.delivery_id] = _Call(delivery, now_ms)

    def end(self, delivery: Deliver, now_ms: int, *, done_count: int) -> None:
        """Take note that a call has returned, and how many of its messages are done."""
        call = self._calls.pop(delivery.delivery_id, None)
        self._has_told = False
        if call is None:
            return
        minute = now_ms // MINUTE_MS
        before, newest = self._tallies.get(delivery.queue.topic, (_Tally(0), _Tally(minute)))
        if newest.minute < minute:
            before, newest = newest, _Tally(minute)
        _, calls, total_ms, done, failed = newest
        failed_count = len(delivery.messages) - done_count
        newest = _Tally(
            minute,
            calls + 1,
            total_ms + now_ms - call.begun_ms,
            done + done_count,
            failed + failed_count,
        )
        self._tallies[delivery.queue.topic] = before, newest

    def pace(self, topic: str, now_ms: int) -> Pace:
        """Return how calls for a topic went in this minute of the clock and the one before."""
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

    def find_stuck(
        self, now_ms: int, *, call_count_max: int, timeout_ms: int
    ) -> ListenersStuck | None:
        """Tell whether all calls are stuck; once, until one of them returns.

        Args:
            call_count_max: how many calls may be under way.
            timeout_ms: how long a call may run.
        """
        if self._has_told or not 0 < call_count_max <= len(self._calls):
            return None
        # The order of beginning.
        calls = list(self._calls.values())
        if now_ms - calls[-1].begun_ms <= timeout_ms:
            return None
        self._has_told = True
        firsts = [call.delivery.messages[0] for call in calls]
        return ListenersStuck(
            len(calls),
            shortest_ms=now_ms - calls[-1].begun_ms,
            longest_ms=now_ms - calls[0].begun_ms,
            messages=tuple(
                f"{m.topic}/{m.broker_name}/{m.queue_id}/{m.queue_offset}" for m in firsts
            ),
        )
