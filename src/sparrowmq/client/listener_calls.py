"""The calls of a consumer's listener that are under way, and whether all of them are stuck. Pure.

A call that runs too long has its messages sent back, but keeps its thread. Once every thread is
kept so, nothing is consumed any more although the member is alive and listed, which nobody sees
from outside: so it is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sparrowmq.membership.actions import Deliver


class ListenersStuck(NamedTuple):
    """Every call that may be under way has run for longer than the consume timeout."""

    call_count: int
    shortest_ms: int
    longest_ms: int
    # The longest first: topic/broker/queue id/offset of its first message.
    messages: tuple[str, ...]


class _Call(NamedTuple):
    delivery: Deliver
    begun_ms: int


@dataclass(slots=True)
class ListenerCalls:
    """See the module's text."""

    _calls: dict[int, _Call] = field(default_factory=dict)
    _has_told: bool = False

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def begun_ms(self) -> int | None:
        """When the oldest call began, None without calls."""
        return min((call.begun_ms for call in list(self._calls.values())), default=None)

    def begin(self, delivery: Deliver, now_ms: int) -> None:
        """Take note of a call."""
        self._calls[delivery.delivery_id] = _Call(delivery, now_ms)

    def end(self, delivery: Deliver) -> None:
        """Take note that a call has returned."""
        self._calls.pop(delivery.delivery_id, None)
        self._has_told = False

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
