"""Messages with a delivery time of their own: they wait in the timer topic for this time.

A message with TIMER_DELIVER_MS, TIMER_DELAY_SEC or TIMER_DELAY_MS is stored in the timer topic with
its time as TIMER_OUT_MS, which is also the tags code of its queue entry. The broker reads the
entries on and files each offset in a timer wheel: slots of 100 ms, of which only the used ones
exist. A slot whose time has come is emptied: each message is put into its real topic and queue.
Nothing comes early; a message comes up to a slot and a tick late.

The progress is in RocketMQ's file (`timer_check_file`). Every message before the offset `begin` is
done. A message before the offset `read` is done if its time is up to `delivered_ms`. If the clock
is set back, a message may come that is due before others that are done: `former_read` and
`former_ms` are the progress of before it. The progress is saved behind the flush, as all progress;
what a crash leaves delivered and not saved is found in the log (`delivered_before`). At the start
the entries from `begin` on are read again.

The timer topic expires as any other, so the first waiting message, once it has waited for half of
the retention, is stored again at the topic's end; a record behind it ends the first one.

A recall is a record of the timer topic too: it names the message, and ends it when it is read. Once
a recall is asked for, the message waits for the recall's record, so a recall that is confirmed
holds. RocketMQ's own recalls, in a store that comes from there, name no offset: a message with the
key of one is not delivered at its time.

Source: TimerMessageStore.java, HookUtils.java of 5.5.0. Differs from RocketMQ: the time is kept to
the millisecond and never rounded down to the second before; the wheel is in memory alone.
Tests: test_timer_messages.py, interop/test_store_exchange.py.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Generator, Mapping, Sequence
from heapq import heappop, heappush

from msgspec import Struct
from msgspec.structs import replace

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.delivered_before import DeliveredBefore
from sparrowmq.broker.moved_messages import FindQueue, put_moved
from sparrowmq.model.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_KEY,
)
from sparrowmq.model.names import TIMER_TOPIC
from sparrowmq.model.whole_number import read_whole_number
from sparrowmq.protocol.properties import encode_properties, parse_properties
from sparrowmq.protocol.record import Record
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.results import PutStatus
from sparrowmq.store.retention import HOUR_MS, RESERVED_HOURS

SLOT_MS = 100
# The bounds of one tick.
READ_PER_TICK = 50_000
DELIVERIES_PER_TICK = 1_024
ADVANCE_PER_TICK = 1_024
# The messages of one time that are looked at in a step of a recall.
FOUND_PER_STEP = 256
# The most messages that wait: some 60 MB. Further ones are refused.
WAITING_MAX = 1_000_000
# The keys of RocketMQ's recalls that are remembered, some 20 MB.
KEYS_MAX = 100_000
# The highest hash of a tag; times are higher.
_HASH_MAX = 2**31 - 1
# The offset of a recalled message.
RECALLED_OFFSET = "TIMER_DEL_QUEUE_OFFSET"
# RocketMQ stores a message again that waits for longer than two days, and counts that here. Both
# have the same time, and at it RocketMQ delivers the last one alone.
_ROLL_TIMES = "TIMER_ROLL_TIMES"
# The key that ends a message which was stored again: RocketMQ finds none with it.
_AGAIN = "stored again"
# The properties of a waiting message that the record which ends it has too.
_KEPT = (
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_UNIQ_KEY,
)
# The most digits of a time in a property.
_DIGITS_MAX = 15


class TimerTable(Struct, frozen=True, kw_only=True):
    """The progress, as above; `begin`, `read` and `former_read` are offsets in the timer topic."""

    begin: int = 0
    read: int = 0
    delivered_ms: int = 0
    former_read: int = 0
    former_ms: int = 0

    def covers(self, offset: int, due_ms: int) -> bool:
        """Return whether a message at or behind `begin` was done at this progress."""
        return (offset < self.read and due_ms <= self.delivered_ms) or (
            offset < self.former_read and due_ms <= self.former_ms
        )


class TimerMessages:
    """The waiting messages of the timer topic.

    Args:
        config: the retention; the value may change.
    """

    def __init__(self, store: MessageStore, config: BrokerConfig) -> None:
        self._store = store
        self.config = config
        self._begin = self._read = self._delivered_ms = 0
        self._former_read = self._former_ms = 0
        # The progress at the start, and the topic's end: recalls before it are read before anything
        # is delivered.
        self._saved = TimerTable()
        self._first_end = 0
        # None once all messages are done that may have been delivered before the start.
        self._before: DeliveredBefore | None = None
        # By slot the offsets of its messages; and the slots in order.
        self._slots: dict[int, array[int]] = {}
        self._order: list[int] = []
        self._filed = 0
        # Messages that are to be recalled, and the ends of the records that say so: these are not
        # read yet.
        self._recalled: dict[int, int] = {}
        # By slot the keys of recalls that name no offset.
        self._keys: dict[int, set[str]] = {}
        self._key_count = 0
        # By slot under delivery the keys of the messages that were put, and whether one of them was
        # what RocketMQ has stored again.
        self._put_keys: dict[int, dict[str, bool]] = {}
        # From `_begin` on: messages that were recalled or stored again before their time.
        self._ended: set[int] = set()
        self.is_changed = False
        # Why a message could not be read at the last tick; it is read again at the next.
        self.read_error: OSError | None = None

    def __len__(self) -> int:
        """The messages that wait, at most: also those that are recalled or stored again."""
        unread = self._store.queues.max_offset(TIMER_TOPIC, 0) - self._read
        return self._filed + max(0, unread)

    def load(self, table: TimerTable, *, timestamp_ms: int) -> None:
        """Load the table of a file, and leave out offsets that the topic does not have."""
        lowest = self._store.queues.min_offset(TIMER_TOPIC, 0)
        highest = self._first_end = self._store.queues.max_offset(TIMER_TOPIC, 0)
        self._before = DeliveredBefore(self._store, start_ms=timestamp_ms, end=highest)
        begin = min(max(table.begin, lowest), highest)
        self._saved = saved = replace(
            table,
            begin=begin,
            read=min(table.read, highest),
            former_read=min(table.former_read, highest),
        )
        self._begin = self._read = begin
        self._delivered_ms = saved.delivered_ms
        self._former_read, self._former_ms = saved.former_read, saved.former_ms
        # Offsets beyond the end, which new messages will get, must not come back with the file.
        self.is_changed = self._saved != table

    def table(self) -> TimerTable:
        """Return the progress."""
        if self._read < self._first_end:
            return self._saved
        return TimerTable(
            begin=self._begin,
            read=self._read,
            delivered_ms=self._delivered_ms,
            former_read=self._former_read,
            former_ms=self._former_ms,
        )

    # -- delivery ------------------------------------------------------------------------------

    def deliver_due(self, *, timestamp_ms: int, find_queue: FindQueue) -> int:
        """Put every message whose time has come into its real topic; return how many were put.

        Args:
            find_queue: returns where a message for a topic's queue goes now, None without the
                topic: its messages are dropped.
        """
        self.read_error = None
        try:
            self._read_on()
            if self._read < self._first_end:
                return 0
            count = self._deliver_slots(timestamp_ms, find_queue)
            self._advance(timestamp_ms)
            if self._before is not None and self._before.is_over(self._begin, self._delivered_ms):
                self._before = None
        except OSError as error:
            self.read_error = error.with_traceback(None)
            count = 0
        return count

    def _deliver_slots(self, timestamp_ms: int, find_queue: FindQueue) -> int:
        count, left, waiting = 0, DELIVERIES_PER_TICK, list[int]()
        while left > 0 and self._order and self._order[0] * SLOT_MS <= timestamp_ms:
            slot = heappop(self._order)
            offsets = self._slots[slot]
            tried = offsets[:left]
            left -= len(tried)
            kept = array("q")
            for offset in tried:
                if offset in self._recalled:
                    kept.append(offset)
                elif offset in self._ended:
                    self._ended.discard(offset)
                else:
                    try:
                        is_put = self._deliver(offset, slot, timestamp_ms, find_queue)
                    except OSError as error:
                        self.read_error = error.with_traceback(None)
                        kept.append(offset)
                        continue
                    if is_put is None:
                        left = 0
                        kept.append(offset)
                    else:
                        count += is_put
            kept.extend(offsets[len(tried) :])
            self._filed -= len(offsets) - len(kept)
            if kept:
                self._slots[slot] = kept
                waiting.append(slot)
            else:
                del self._slots[slot]
                self._key_count -= len(self._keys.pop(slot, ()))
                self._put_keys.pop(slot, None)
            self.is_changed |= len(kept) < len(offsets)
        for slot in waiting:
            heappush(self._order, slot)
        # If the clock was set back, what was delivered until then is done as before.
        self._delivered_ms = max(self._delivered_ms, timestamp_ms)
        if self._order:
            self._delivered_ms = min(self._delivered_ms, (self._order[0] - 1) * SLOT_MS)
        return count

    def _read_on(self) -> None:
        """File the messages that have come, of which each is read once."""
        self._read = max(self._read, self._store.queues.min_offset(TIMER_TOPIC, 0))
        codes = self._store.queues.tags_codes(TIMER_TOPIC, 0, self._read, READ_PER_TICK)
        saved = self._saved
        for offset, code in enumerate(codes, self._read):
            due_ms = self._due_ms(offset, code)
            is_recall = due_ms == 0 and self._end_recalled(offset)
            if not is_recall and not saved.covers(offset, due_ms):
                self._file(offset, due_ms)
            # One by one: what comes next may not be readable.
            self._read = offset + 1
            self.is_changed = True

    def _due_ms(self, offset: int, code: int) -> int:
        """Return the time of an entry; 0 for a recall, and for a message without a time."""
        if code > _HASH_MAX:
            return code
        # Another broker has written the queue, with the hash of the tags as its tags codes.
        record = None if code == 0 else self._record(offset)
        properties = {} if record is None else parse_properties(record.properties)
        is_recall = PROPERTY_TIMER_DEL_UNIQKEY in properties
        return 0 if is_recall else _out_ms(properties)

    def _file(self, offset: int, due_ms: int) -> None:
        self._offsets_of(_slot(due_ms)).append(offset)
        if due_ms <= self._delivered_ms:
            # It waits, though what was due then is done, as with a clock that was set back. After
            # several times the latest progress is kept: it covers the most.
            if self._delivered_ms > self._former_ms:
                self._former_read, self._former_ms = offset, self._delivered_ms
            self._delivered_ms = due_ms - 1
        self._filed += 1

    def _offsets_of(self, slot: int) -> array[int]:
        """Return the offsets of a slot, which is made if there is none."""
        offsets = self._slots.get(slot)
        if offsets is None:
            offsets = self._slots[slot] = array("q")
            heappush(self._order, slot)
        return offsets

    def _deliver(
        self, offset: int, slot: int, timestamp_ms: int, find_queue: FindQueue
    ) -> bool | None:
        """Deliver a message; return whether it was put, None if the store cannot take it now."""
        record = self._record(offset)
        properties = {} if record is None else parse_properties(record.properties)
        topic = properties.get(PROPERTY_REAL_TOPIC, "")
        queue_id = _number(properties.get(PROPERTY_REAL_QUEUE_ID))
        if queue_id is not None:
            queue_id = find_queue(topic, queue_id)
        if record is None or queue_id is None:
            return False
        record.topic, record.queue_id = topic, queue_id
        key, put = _key_of(properties), self._put_keys.setdefault(slot, {})
        is_again = _ROLL_TIMES in properties
        is_done = key in self._keys.get(slot, ()) or (key in put and (is_again or put[key]))
        if is_done or self._was_delivered(record, properties):
            return False
        waited_at = TIMER_TOPIC, 0, offset
        status = put_moved(self._store, record, waited_at=waited_at, timestamp_ms=timestamp_ms)
        if status is PutStatus.PUT_OK and PROPERTY_UNIQ_KEY in properties:
            put[key] = is_again
        return None if status is PutStatus.SERVICE_NOT_AVAILABLE else status is PutStatus.PUT_OK

    def _was_delivered(self, record: Record, properties: Mapping[str, str]) -> bool:
        """Return whether a message, with its real place, was delivered before the start."""
        if self._before is None:
            return False
        return self._before.has(record, due_ms=_out_ms(properties) - SLOT_MS)

    def _record(self, offset: int) -> Record | None:
        return self._store.records.read_message(TIMER_TOPIC, 0, offset)

    def _advance(self, timestamp_ms: int) -> None:
        """Move `begin` over what is done; store the first waiting messages again that are old."""
        queues = self._store.queues
        begin = self._begin
        end = min(self._read, begin + ADVANCE_PER_TICK)
        offset = max(begin, min(queues.min_offset(TIMER_TOPIC, 0), end))
        while offset < end:
            if offset not in self._ended and self._waits(offset):
                stored_ms = queues.store_timestamp(TIMER_TOPIC, 0, offset) or timestamp_ms
                if timestamp_ms - stored_ms <= self._again_after_ms() or offset in self._recalled:
                    break
                record = self._record(offset)
                if record is not None and not self._has_key(parse_properties(record.properties)):
                    # A kill before the progress is saved lets both be read again.
                    ending = _ending(record, offset, key=_AGAIN)
                    result = self._store.put(record, timestamp_ms=timestamp_ms)
                    if result.status is not PutStatus.PUT_OK:
                        break
                    self._store.put(ending, timestamp_ms=timestamp_ms)
                # Its slot still names it.
                self._ended.add(offset)
            offset += 1
        self._begin = offset
        self.is_changed |= offset != begin

    def _waits(self, offset: int) -> bool:
        """Return whether a message waits in its slot, whatever the wall clock says."""
        entry = self._store.queues.entry(TIMER_TOPIC, 0, offset)
        if entry is None:
            return False
        # The offsets of a slot are in the order in which they were read.
        offsets = self._slots.get(_slot(self._due_ms(offset, entry[2])), ())
        at = bisect_left(offsets, offset)
        return at < len(offsets) and offsets[at] == offset

    def _again_after_ms(self) -> float:
        hours = self.config.retention.retention_hours
        if hours is None:
            hours = RESERVED_HOURS if self._store.is_expiring else 0
        return hours * HOUR_MS / 2 or float("inf")

    # -- recall --------------------------------------------------------------------------------

    def find(self, topic: str, msg_id: str, due_ms: int) -> Generator[None, None, list[int]]:
        """Return the offsets of a waiting message; yields at times, as many may have its time.

        A message whose send was repeated waits several times, at times of its slot.

        Args:
            topic: the message's real topic.
            msg_id: the id that its producer gave it.
            due_ms: its delivery time.
        """
        self._read_on()
        found: list[int] = []
        for number, offset in enumerate(list(self._slots.get(_slot(due_ms), ())), 1):
            record = None if offset in self._ended else self._record(offset)
            properties = {} if record is None else parse_properties(record.properties)
            if (
                properties.get(PROPERTY_UNIQ_KEY) == msg_id
                and properties.get(PROPERTY_REAL_TOPIC) == topic
            ):
                found.append(offset)
            if number % FOUND_PER_STEP == 0:
                yield
        return found

    def recall(self, offsets: Sequence[int]) -> list[tuple[int, Record]]:
        """Return the records that recall a message at its offsets; none if one waits no longer."""
        records = [(offset, self._recall_at(offset)) for offset in offsets]
        found = [(offset, record) for offset, record in records if record is not None]
        return found if len(found) == len(offsets) else []

    def _recall_at(self, offset: int) -> Record | None:
        waiting = self._record(offset)
        properties = {} if waiting is None else parse_properties(waiting.properties)
        due_ms = _out_ms(properties)
        is_waiting = offset in self._slots.get(_slot(due_ms), ()) and offset not in self._ended
        if waiting is None or not is_waiting:
            return None
        topic, msg_id = properties[PROPERTY_REAL_TOPIC], properties[PROPERTY_UNIQ_KEY]
        queue_id = properties[PROPERTY_REAL_QUEUE_ID]
        real = replace(waiting, topic=topic, queue_id=_number(queue_id) or 0)
        if self._was_delivered(real, properties):
            return None
        return _ending(waiting, offset, key=_key(topic, msg_id))

    def note_recall(self, offset: int, *, end_position: int) -> None:
        """Hold a message until the record that recalls it is read; it ends at a position."""
        self._recalled[offset] = end_position

    def forget_recalls(self, written_position: int) -> None:
        """Let messages be delivered whose recalls a failed write has lost, behind a position."""
        recalled = self._recalled.items()
        self._recalled = {offset: end for offset, end in recalled if end <= written_position}

    def _end_recalled(self, offset: int) -> bool:
        """End the message that a record recalls; return whether it is such a record."""
        record = self._record(offset)
        properties = {} if record is None else parse_properties(record.properties)
        if PROPERTY_TIMER_DEL_UNIQKEY not in properties:
            return False
        recalled = _number(properties.get(RECALLED_OFFSET))
        if recalled is None:
            self._note_key(properties)
        elif recalled >= self._begin:
            self._recalled.pop(recalled, None)
            self._ended.add(recalled)
        return True

    def _note_key(self, properties: Mapping[str, str]) -> None:
        """Note the key of a recall of RocketMQ's; only one of its own topic recalls a message."""
        key = properties[PROPERTY_TIMER_DEL_UNIQKEY]
        is_own = key.startswith(_key(properties.get(PROPERTY_REAL_TOPIC, ""), ""))
        if not is_own or self._key_count >= KEYS_MAX:
            return
        slot = _slot_of(properties)
        # The keys go with the slot, which may have no message yet.
        self._offsets_of(slot)
        keys = self._keys.setdefault(slot, set())
        self._key_count += key not in keys
        keys.add(key)

    def _has_key(self, properties: Mapping[str, str]) -> bool:
        """Return whether a waiting message was recalled by its key."""
        keys = self._keys.get(_slot_of(properties))
        return keys is not None and _key_of(properties) in keys


def _key(topic: str, msg_id: str) -> str:
    """Return the key by which RocketMQ's recalls name a message: TimerMessageStore.buildDeleteKey.

    A topic has no plus sign.
    """
    return f"{topic}+{msg_id}"


def _key_of(properties: Mapping[str, str]) -> str:
    """Return the key of a waiting message."""
    return _key(properties.get(PROPERTY_REAL_TOPIC, ""), properties.get(PROPERTY_UNIQ_KEY, ""))


def _ending(waiting: Record, offset: int, *, key: str) -> Record:
    """Return the record that ends the waiting message at an offset.

    Args:
        key: what RocketMQ knows the message by.
    """
    properties = parse_properties(waiting.properties)
    kept = {name: properties[name] for name in _KEPT if name in properties}
    kept |= {PROPERTY_TIMER_DEL_UNIQKEY: key, RECALLED_OFFSET: str(offset)}
    return replace(waiting, body=b"-", properties=encode_properties(kept))


def _slot(due_ms: int) -> int:
    """Return the first slot that ends at a time, or later."""
    return -(-due_ms // SLOT_MS)


def _slot_of(properties: Mapping[str, str]) -> int:
    """Return the slot of a waiting message or of a recall."""
    return _slot(_out_ms(properties))


def _out_ms(properties: Mapping[str, str]) -> int:
    """Return the time at which a stored message is due, 0 for none."""
    return _number(properties.get(PROPERTY_TIMER_OUT_MS)) or 0


def delivery_time(properties: dict[str, str], *, timestamp_ms: int) -> int | None:
    """Return the time that a message asks for, in ms since 1970; None if it asks for none.

    As in RocketMQ, a delay overrides an instant, and seconds override milliseconds.

    Raises: ValueError for a value other than a number.
    """
    for name, unit_ms in ((PROPERTY_TIMER_DELAY_SEC, 1_000), (PROPERTY_TIMER_DELAY_MS, 1)):
        if text := properties.get(name):
            return timestamp_ms + _checked(name, text) * unit_ms
    if text := properties.get(PROPERTY_TIMER_DELIVER_MS):
        return _checked(PROPERTY_TIMER_DELIVER_MS, text)
    return None


def _checked(name: str, text: str) -> int:
    number = _number(text)
    if number is None:
        raise ValueError(f"{name} is {text[:40]!r}; give milliseconds or seconds as digits")
    return number


def _number(text: str | None) -> int | None:
    return read_whole_number(text, _DIGITS_MAX)
