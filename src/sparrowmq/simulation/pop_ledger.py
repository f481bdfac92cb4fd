"""The messages that groups pop, message by message, and the promises that brokers must keep.

The model gets the pops and acknowledgements that brokers answer, as the answers are written
(`PopWatch`), and the changes in the pop log, once they are readable. It uses no state of the
brokers.

1. A message whose acknowledgement was confirmed is never popped again.
2. A message that is not acknowledged comes again within `SOON_MS` of its time, and a new one as
   soon, if a pop waits for it.
3. The deliveries of a message count up, to the group's retries at most; a message that is not
   finished then is a dead letter, and no other message is.
4. At the end no message is invisible: each was acknowledged or is a dead letter.
5. A popped message is not popped again before its time, and then with a later handle.
6. In order, a message is popped only after all earlier ones of its queue are finished, or with
   them.

All of it holds across kills and power cuts, for brokers that flush before they answer.
Tests: test_pop_mutations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparrowmq.broker.pop_changes import Changed, Finished, PopChange, Popped
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import dlq_topic

# From a message's time to its pop: ticks and syncs of the broker, within a second.
SOON_MS = 1_000
# From a pop to its answer and its change in the log, behind slow syncs or a broker standing still.
ANSWER_MS = 120_000


class MessagePlace(NamedTuple):
    """A message of a queue."""

    queue: MessageQueue
    offset: int


class Handle(NamedTuple):
    """The times by which acknowledgements name a popped message."""

    pop_timestamp_ms: int
    invisible_ms: int


class PopLedger:
    """The messages of a topic that a group pops.

    Args:
        fail: called with a violation.
        now_ms: reads the timeline.
        retries_max: how often a message comes again before it is a dead letter.
        is_orderly: whether the group pops in order.
    """

    def __init__(
        self,
        fail: Callable[[str], None],
        now_ms: Callable[[], int],
        group: str,
        topic: str,
        *,
        retries_max: int,
        is_orderly: bool,
    ) -> None:
        self.group = group
        self._fail = fail
        self._now_ms = now_ms
        self._topic = topic
        self._dlq = dlq_topic(group)
        self._retries_max = retries_max
        self._is_orderly = is_orderly
        self._payloads: dict[MessagePlace, bytes] = {}
        # The confirmed pop, or change of the time, that hides a message, and the end of its time.
        self._handles: dict[MessagePlace, Handle] = {}
        self._hidden_ms: dict[MessagePlace, int] = {}
        # How often messages were delivered before, at least, by the next answer.
        self._times: dict[MessagePlace, int] = {}
        # Confirmed as finished; and acknowledged by requests that may have had an effect.
        self._ended: set[MessagePlace] = set()
        self._asked: set[MessagePlace] = set()
        # Acknowledgements that were refused as the log could not take them: they may hold, by the
        # broker's saved table alone.
        self._refused: set[MessagePlace] = set()
        self._expired: set[MessagePlace] = set()
        self._dead: set[bytes] = set()
        # By the log: when a message may be popped that is not finished.
        self._due_ms: dict[MessagePlace, int] = {}
        # Of the brokers' wall clocks: the broker, when, and how far.
        self._jumps: list[tuple[str, int, int]] = []
        self.delivered = self._again = 0

    @property
    def reached(self) -> dict[str, int]:
        """How often messages were popped, and what came of them."""
        return {
            "messages popped": self.delivered,
            "messages popped again": self._again,
            "dead letters of pops": len(self._dead),
        }

    # --- the store --------------------------------------------------------------------------

    def note_copy(
        self, queue: MessageQueue, offset: int, payload: bytes, reconsume_times: int
    ) -> None:
        """Note a message that became readable in any topic."""
        if queue.topic == self._dlq:
            self._dead.add(payload)
            if reconsume_times != self._retries_max + 1:
                self._fail(f"{payload!r}: a dead letter of {self.group} after {reconsume_times}")
        elif queue.topic == self._topic:
            place = MessagePlace(queue, offset)
            self._payloads[place] = payload
            self._due_ms[place] = self._now_ms()

    def note_change(self, change: PopChange, broker_name: str, *, wall_ms: int) -> None:
        """Note a change in the pop log; the broker's wall clock leads the timeline by `wall_ms`."""
        queue = MessageQueue(change.key.topic, broker_name, change.key.queue_id)
        if change.key.group != self.group:
            return
        if isinstance(change, Finished):
            for offset in change.offsets:
                self._due_ms.pop(MessagePlace(queue, offset), None)
        elif isinstance(change, Popped | Changed):
            times = self._times_of(broker_name, change.pop_timestamp_ms, wall_ms)
            hidden_ms, due_ms = (at_ms + change.invisible_ms for at_ms in times)
            offsets = change.offsets if isinstance(change, Popped) else [change.offset]
            for place in (MessagePlace(queue, offset) for offset in offsets):
                self._refused.discard(place)
                if place in self._due_ms:
                    self._due_ms[place] = due_ms
            if isinstance(change, Changed):
                # It holds, whether or not its answer arrives.
                place = MessagePlace(queue, change.offset)
                self._hidden_ms[place] = hidden_ms
                if change.is_suspended:
                    self._times[place] = max(0, self._times.get(place, 1) - 1)

    def note_clock_jump(self, broker_name: str, ms: int) -> None:
        """Note that a broker's wall clock was set forward, or back.

        The broker keeps times by its monotonic clock, and after a restart by the wall clock. So a
        jump may make a message visible earlier or later, and need not.
        """
        self._jumps.append((broker_name, self._now_ms(), ms))
        changed = self._hidden_ms if ms > 0 else self._due_ms
        for place in [p for p in changed if p.queue.broker_name == broker_name]:
            changed[place] -= ms

    def _times_of(self, broker_name: str, timestamp_ms: int, wall_ms: int) -> tuple[int, int]:
        """Return when a broker made a pop, at the earliest and latest: before or after jumps."""
        since_ms = self._now_ms() - ANSWER_MS
        found = [timestamp_ms - wall_ms]
        for name, at_ms, ms in reversed(self._jumps):
            if name == broker_name and at_ms >= since_ms:
                found.append(found[-1] + ms)
        return min(found), max(found)

    def note_expired(self, queue: MessageQueue, offset: int) -> None:
        """Note that a message has expired, consumed or not."""
        place = MessagePlace(queue, offset)
        # An acknowledgement that is refused because of it does not make it unfinished.
        self._expired.add(place)
        self._due_ms.pop(place, None)

    # --- requests and answers ---------------------------------------------------------------

    def note_popped(
        self, found: Sequence[tuple[MessagePlace, int]], handle: Handle, *, wall_ms: int
    ) -> None:
        """Note the answer to a pop: messages, and how often each was delivered before."""
        for place, times in found:
            self.delivered += 1
            self._again += times > 0
            name = f"{place.queue.broker_name}:{place.queue.queue_id} offset {place.offset}"
            _, latest_ms = self._times_of(place.queue.broker_name, handle.pop_timestamp_ms, wall_ms)
            early_ms = self._hidden_ms.get(place, 0) - latest_ms
            known = self._handles.get(place)
            if place in self._ended:
                self._fail(f"{name}: popped after its acknowledgement was confirmed")
            elif early_ms > 0:
                self._fail(f"{name}: popped twice at once, {early_ms} ms before its time is over")
            elif known is not None and handle.pop_timestamp_ms <= known.pop_timestamp_ms:
                self._fail(f"{name}: popped with an old handle")
            if not self._times.get(place, 0) <= times <= self._retries_max:
                self._fail(f"{name}: delivered with {times} retries, not {self._times.get(place)}")
            self._times[place] = times + 1
            self.note_hidden(place, handle, wall_ms=wall_ms)
        if self._is_orderly:
            self._check_order([place for place, _ in found])

    def _check_order(self, places: Sequence[MessagePlace]) -> None:
        for at, place in enumerate(places):
            for offset in range(place.offset):
                before = MessagePlace(place.queue, offset)
                is_done = before in self._ended or before in self._asked
                # A dead letter is in the log, but not yet readable while the disk is full.
                is_done |= before not in self._due_ms
                if not is_done and before not in places[:at]:
                    self._fail(f"{place}: popped in order before {before.offset} is finished")
                    return

    def note_hidden(self, place: MessagePlace, handle: Handle, *, wall_ms: int) -> None:
        """Note the confirmed time of a message."""
        self._handles[place] = handle
        earliest_ms, _ = self._times_of(place.queue.broker_name, handle.pop_timestamp_ms, wall_ms)
        self._hidden_ms[place] = earliest_ms + handle.invisible_ms

    def note_asked(self, place: MessagePlace) -> None:
        """Note that a broker gets an acknowledgement."""
        self._asked.add(place)

    def note_answered(self, place: MessagePlace, *, is_ended: bool) -> None:
        """Note whether an acknowledgement was confirmed, or refused since the message is not in
        flight under its handle."""
        if is_ended:
            self._ended.add(place)
            # The refusal of one with an older handle may have come before.
            self._asked.add(place)
        elif place not in self._ended:
            self._asked.discard(place)

    def note_refused(self, place: MessagePlace) -> None:
        """Note that the log could not take an acknowledgement."""
        self._refused.add(place)

    # --- what must come ---------------------------------------------------------------------

    def check_waiting(self, broker_name: str, *, waits_since_ms: int) -> None:
        """Check that no message is due while a pop has waited since an instant."""
        for place, due_ms in self._due_ms.items():
            late_ms = self._now_ms() - max(due_ms, waits_since_ms)
            is_here = place.queue.broker_name == broker_name and place not in self._refused
            if late_ms > SOON_MS and is_here:
                self._fail(f"{place}: {late_ms} ms late, and a pop of {self.group} waits for it")
                return

    def find_unfinished(self) -> str | None:
        """Return the group's unfinished work, None for none."""
        for place, payload in self._payloads.items():
            is_gone = place in self._expired or payload in self._dead
            if place in self._due_ms and place not in self._refused:
                return f"{place}: still invisible, or popped by nobody, in {self.group}"
            if not is_gone and place not in self._asked:
                self._fail(f"{place}: finished, but neither acknowledged nor a dead letter")
        return None
