"""Delayed messages: they wait in the schedule topic, then go to their real topics.

The schedule topic has one queue for each delay level. Each level has the offset of its next message
(`config/delayOffset.json`). The consume queue entry of a message has its due time. A due message is
put into its real topic and queue, and then the offset advances. What a crash leaves between the two
is found in the log (`delivered_before`).

Differs from RocketMQ: if the wall clock was set back, a message waits at most its level's delay
again, counted from the next check. RocketMQ delivers it at once.

Source: ScheduleMessageService.java.
"""

from __future__ import annotations

from sparrowmq.broker.delivered_before import DeliveredBefore
from sparrowmq.broker.moved_messages import FindQueue, put_moved
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.model.message import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC
from sparrowmq.model.names import SCHEDULE_TOPIC
from sparrowmq.model.whole_number import read_whole_number
from sparrowmq.protocol.bodies import DelayOffsetTable
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.record import Record
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.results import PutStatus

# The most messages that one tick delivers from one level.
_DELIVERIES_MAX = 256


class DelaySchedule:
    """The delay levels: the offset and the due time of each level's next message."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._offsets: dict[int, int] = {}
        # When the level's next message is due, on the wall clock; 0 if not known yet, None for an
        # empty level.
        self._due_timestamp_ms: dict[int, int | None] = dict.fromkeys(
            range(1, len(DELAY_LEVELS_MS) + 1), 0
        )
        # By level, until all its messages are done that may have been delivered before the start.
        self._before: dict[int, DeliveredBefore] = {}
        self.is_changed = False
        # Why a level could not be read at the last check; it is read again at the next.
        self.read_error: OSError | None = None

    def load(self, table: DelayOffsetTable, *, timestamp_ms: int) -> None:
        """Load the table of a file, and correct offsets that the queue does not have."""
        queues = self._store.queues
        self._before = {
            level: DeliveredBefore(
                self._store, start_ms=timestamp_ms, end=queues.max_offset(SCHEDULE_TOPIC, level - 1)
            )
            for level in self._due_timestamp_ms
        }
        self._offsets = {}
        for level, offset in table.offset_table.items():
            if 1 <= level <= len(DELAY_LEVELS_MS):
                lowest = max(0, queues.min_offset(SCHEDULE_TOPIC, level - 1))
                highest = max(0, queues.max_offset(SCHEDULE_TOPIC, level - 1))
                kept = self._offsets[level] = min(max(offset, lowest), highest)
                self.is_changed |= kept != offset

    def table(self) -> DelayOffsetTable:
        """Return a copy of the offsets by level."""
        return DelayOffsetTable(offset_table=dict(self._offsets))

    def note_arrival(self, queue_id: int) -> None:
        """Check a level again, since a message came to its queue."""
        level = queue_id + 1
        if self._due_timestamp_ms.get(level, 0) is None:
            self._due_timestamp_ms[level] = 0

    def deliver_due(self, *, timestamp_ms: int, find_queue: FindQueue) -> int:
        """Put every due message into its real topic; return how many were put.

        Args:
            find_queue: returns where a message for a topic's queue goes now, None without the
                topic: its messages are dropped.
        """
        count, self.read_error = 0, None
        for level, due_ms in self._due_timestamp_ms.items():
            # A clock that was set back must not make a level wait longer than its delay.
            if due_ms is not None and (
                due_ms <= timestamp_ms or due_ms > timestamp_ms + DELAY_LEVELS_MS[level - 1]
            ):
                try:
                    count += self._deliver_level(level, timestamp_ms, find_queue)
                except OSError as error:
                    self.read_error = error.with_traceback(None)
        return count

    def _deliver_level(self, level: int, timestamp_ms: int, find_queue: FindQueue) -> int:
        store, queue_id = self._store, level - 1
        count = 0
        offset, lowest = (
            self._offsets.get(level, 0),
            store.queues.min_offset(SCHEDULE_TOPIC, queue_id),
        )
        if offset < lowest:
            # The level's next message has expired, and its due time is not that of the next one.
            offset = self._offsets[level] = lowest
            self._due_timestamp_ms[level] = 0
        latest_ms = timestamp_ms + DELAY_LEVELS_MS[queue_id]
        known_ms = self._due_timestamp_ms[level] or latest_ms
        while count < _DELIVERIES_MAX:
            entry = store.queues.entry(SCHEDULE_TOPIC, queue_id, offset)
            if entry is None:
                self._due_timestamp_ms[level] = None
                self._before.pop(level, None)
                break
            before = self._before.get(level)
            if before is not None and before.is_over(offset, entry[2]):
                del self._before[level]
                before = None
            due_ms = min(entry[2], known_ms, latest_ms)
            if due_ms > timestamp_ms:
                self._due_timestamp_ms[level] = due_ms
                break
            self._due_timestamp_ms[level] = 0
            waiting = store.records.read_message(SCHEDULE_TOPIC, queue_id, offset)
            record = self._restore(waiting, find_queue)
            was_put = (
                record is not None and before is not None and before.has(record, due_ms=due_ms)
            )
            if record is not None and not was_put:
                waited_at = SCHEDULE_TOPIC, queue_id, offset
                status = put_moved(store, record, waited_at=waited_at, timestamp_ms=timestamp_ms)
                if status is PutStatus.SERVICE_NOT_AVAILABLE:
                    break
                count += status is PutStatus.PUT_OK
            offset += 1
            known_ms = latest_ms
            self._offsets[level] = offset
            self.is_changed = True
        return count

    def _restore(self, record: Record | None, find_queue: FindQueue) -> Record | None:
        """Return a waiting record with its real topic and queue, or None if it has none now."""
        if record is None:
            return None
        properties = parse_properties(record.properties)
        topic = properties.get(PROPERTY_REAL_TOPIC)
        queue_id = read_whole_number(properties.get(PROPERTY_REAL_QUEUE_ID))
        if topic and queue_id is not None:
            queue_id = find_queue(topic, queue_id)
        if not topic or queue_id is None:
            return None
        record.topic, record.queue_id = topic, queue_id
        return record
