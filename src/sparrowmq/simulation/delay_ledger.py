"""The delayed messages of a run, their times and recalls, and the rules that brokers must keep.

A delay is a level or a time of its own. Only a message with a time of its own can be recalled.

1. A delayed message is not in its topic before its time.
2. If nothing fails, it is there soon after its time, and once.
3. A message whose recall a broker has confirmed is never in its topic. A recall names the message
   by its time: if the producer sent the message again after a lost answer, the other copy has
   another time, and comes.
4. If nothing fails, a recall that is asked for in time is confirmed.

`Checkers.find_unfinished` demands every acknowledged message whose recall nobody has asked for, or
a broker has refused. Tests: test_delay_ledger.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sparrowmq.model.message import PROPERTY_TIMER_OUT_MS
from sparrowmq.protocol.properties import find_property
from sparrowmq.protocol.recall_handle import decode_recall_handle

# From a message's time to its place in the topic: a slot, a broker's tick, and a sync.
SOON_MS = 600
# A recall that is asked for so long before the message's time is in time.
IN_TIME_MS = 500


class DelayLedger:
    """All delayed messages of a run.

    Args:
        fail: called with a violation.
        is_calm: whether nothing fails in this run.
    """

    def __init__(self, fail: Callable[[str], None], topic: str, *, is_calm: bool) -> None:
        self._fail = fail
        self._topic = topic
        self._is_calm = is_calm
        # By payload: when the message may come first, and its delay.
        self._due_ms: dict[bytes, int] = {}
        self._delays_ms: dict[bytes, int] = {}
        # By payload: the instant by which the message should be in its topic if nothing fails.
        self._expected_ms: dict[bytes, int] = {}
        # The copies in the topic, and by broker and time those that have a time of their own.
        self._copies: Counter[bytes] = Counter()
        self._timed: set[tuple[str, str, bytes]] = set()
        self._recalled: set[tuple[str, str, bytes]] = set()
        # The messages that may not come: their recall was asked for, and not refused.
        self._asked: set[bytes] = set()

    @property
    def reached(self) -> dict[str, int]:
        """How many messages had a delay, and how many of them were recalled."""
        return {
            "messages delayed": sum(ms > 0 for ms in self._delays_ms.values()),
            "messages recalled": len(self._recalled),
        }

    def note_sent(self, payload: bytes, delay_ms: int, *, now_ms: int) -> None:
        """Note that a producer is about to send a message with a delay, 0 for none."""
        self._due_ms[payload] = now_ms + delay_ms
        self._delays_ms[payload] = delay_ms

    def note_acked(self, payload: bytes, *, now_ms: int) -> None:
        """Note the acknowledgement of a message."""
        if self._delays_ms.get(payload) and not self._copies[payload]:
            self._expected_ms[payload] = now_ms + self._delays_ms[payload] + SOON_MS

    def note_clock_jump(self, ms: int) -> None:
        """Note that a broker's wall clock was set forward, or back: what it has may come early."""
        if ms > 0:
            self._due_ms = {payload: due_ms - ms for payload, due_ms in self._due_ms.items()}

    def is_delayed(self, payload: bytes) -> bool:
        """Return whether a message has a delay."""
        return self._delays_ms.get(payload, 0) > 0

    def note_copy(
        self, broker_name: str, topic: str, payload: bytes, properties: str, *, now_ms: int
    ) -> None:
        """Note a message that became readable in any topic of a broker."""
        due_ms = self._due_ms.get(payload)
        if topic != self._topic or due_ms is None:
            return
        if now_ms < due_ms:
            self._fail(f"{payload!r}: in {topic} {due_ms - now_ms} ms early")
        self._copies[payload] += 1
        if self._is_calm and self._copies[payload] > 1:
            self._fail(f"{payload!r}: twice in {topic}, and nothing has failed")
        expected_ms = self._expected_ms.pop(payload, now_ms)
        if self._is_calm and now_ms > expected_ms:
            self._fail(f"{payload!r}: in {topic} {now_ms - expected_ms} ms late")
        place = broker_name, find_property(properties, PROPERTY_TIMER_OUT_MS), payload
        self._timed.add(place)
        if place in self._recalled:
            self._fail(f"{payload!r}: in {topic}, and its recall was confirmed")

    # --- recalls ----------------------------------------------------------------------------

    def note_recall(self, payload: bytes) -> None:
        """Note that a producer is about to ask for a recall."""
        self._asked.add(payload)

    def note_recalled(self, payload: bytes, handle: str) -> None:
        """Note that a broker has confirmed a recall."""
        found = decode_recall_handle(handle)
        place = found.broker_name, str(found.due_ms), payload
        self._recalled.add(place)
        if place in self._timed:
            self._fail(f"{payload!r}: recalled, and already in {self._topic}")

    def note_refused(self, payload: bytes, *, asked_ms: int) -> None:
        """Note that a broker has refused a recall that was asked for at an instant."""
        self._asked.discard(payload)
        early_ms = self._due_ms[payload] - asked_ms
        if self._is_calm and early_ms > IN_TIME_MS:
            self._fail(f"{payload!r}: its recall is refused {early_ms} ms before its time")

    def note_lost(self, broker_name: str) -> None:
        """Note that a broker may have lost recalls: their messages may come or not."""
        self._recalled = {place for place in self._recalled if place[0] != broker_name}

    def may_be_gone(self, payload: bytes) -> bool:
        """Return whether a message need not come, since it may be recalled."""
        return payload in self._asked
