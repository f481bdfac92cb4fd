"""Half messages without an end: their producers are asked, and at last the messages are discarded.

The half message of a transaction waits in the half topic. END_TRANSACTION appends the message's
offset to the op topic; nothing is changed in place. Two offsets of the group CID_RMQ_SYS_TRANS are
the progress in both topics. From time to time a round goes on from there. The round reads the op
topic to its end, and then decides on each half message:

- A message that was ended is done.
- A fresh message ends the round.
- A message whose producer asked for more time stays where it is, and so does the progress; the next
  rounds pass over what they have decided. Once many messages are behind it, it is appended again.
- The producer of any other message is asked. The message is appended again, with its number of
  checks, and CHECK_TRANSACTION_STATE names the new copy.
- A message that was checked often enough, or is too old, goes into TRANS_CHECK_MAX_TIME_TOPIC.

An appended copy names the first offset of its message. The end of any copy is the end of the
message, so no later copy is asked for.

The round commits its two offsets once all that it wrote is on the disk, so a crash repeats a round
and loses nothing.

Two commits of a message come if its producer commits while its answer to a question is under way.
The second stores nothing: the latest commits are remembered. They are not after a restart, so the
message is delivered at least once, not exactly once.

Source: TransactionalMessageServiceImpl.java of 4.9.7. Differs from RocketMQ: a message's age counts
from when the broker stored it, not by the producer's clock. One that waits for its producer's own
time does not count as checked, nor is it appended in each round. The end of a first copy counts for
the later copies too. RocketMQ asks about such copies again, and delivers the message with every
commit.
Tests: test_transactions.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.consumer_offsets import ConsumerOffsets
from sparrowmq.broker.flush_gate import FlushGate
from sparrowmq.broker.moved_messages import put_moved
from sparrowmq.errors import ProtocolError
from sparrowmq.model.message import (
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
)
from sparrowmq.model.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from sparrowmq.model.whole_number import read_whole_number
from sparrowmq.protocol.properties import encode_properties, parse_properties
from sparrowmq.protocol.record import Record, decode_record
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.results import PutStatus
from sparrowmq.store.retention import HOUR_MS, RESERVED_HOURS

# MixAll.CID_SYS_RMQ_TRANS.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
# The bounds of one step. Half messages that were ended cost next to nothing.
OPS_PER_STEP = 1_024
ENDED_PER_STEP = 8_192
UNENDED_PER_STEP = 128
UNENDED_BYTES_PER_STEP = 4 << 20
# The ended half messages that a round remembers, and the messages appended again: some 30 MB each.
# If more ends than this precede the end of a half message, its producer is asked.
ENDED_MAX = AGAIN_MAX = 200_000
# The commits that are remembered, some 20 MB. An older message that is committed again is stored
# again.
COMMITTED_MAX = 100_000
# So many messages may be behind one that waits for its producer's own time: each round reads them.
WAITING_SPAN = 8_192
# The longest time that a producer can ask for: the rounds begin at the message meanwhile.
# Differs from RocketMQ, which appends it for as long as the producer says.
IMMUNITY_MS_MAX = RESERVED_HOURS * HOUR_MS
# A round waits while this many messages still wait for the question to their producers.
TO_ASK_MAX = 1_024
_OPS_BYTES_MAX = 1 << 20


class CheckStep(NamedTuple):
    """The result of a step.

    Args:
        asked: offsets in the half topic of messages whose producers are to be asked.
        put_away: how many messages went into TRANS_CHECK_MAX_TIME_TOPIC.
    """

    asked: list[int]
    put_away: int


@dataclass(slots=True)
class _Round:
    """A round's progress: decided up to `half_offset`, the op topic read up to `op_offset`.

    The first message that waits for its producer's own time, if any, is at `waiting_offset`.
    """

    half_offset: int
    half_end: int
    op_begin: int
    op_offset: int
    waiting_offset: int | None = None
    # For each ended half message the offset of its first op, in the op topic's order.
    ended: dict[int, int] = field(default_factory=dict)
    put_away: int = 0


class TransactionChecks:
    """Decides about which half messages producers are asked.

    Args:
        store: the store with the half topic and the op topic.
        config: the first wait, the number of checks and their interval; the value may change.
    """

    def __init__(self, store: MessageStore, config: BrokerConfig) -> None:
        self._store = store
        self.config = config
        self._due_ms: int | None = None
        self._round: _Round | None = None
        # The round that has decided on its last message.
        self._decided: FlushGate[_Round] = FlushGate()
        # By the first offset of a message: the offset of its latest copy. The message is decided at
        # this offset and not before; of a discarded message, it is the end of its round.
        self._again: dict[int, int] = {}
        # The end of the half topic at the start. Before this offset a message may have a copy, and
        # after a crash even two, which `_again` does not have.
        self._first_end: int | None = None
        # The copies to ask about once they can be read, by their first offsets.
        self._to_ask: dict[int, int] = {}
        # The latest committed messages, by their first offsets.
        self._committed: OrderedDict[int, None] = OrderedDict()

    def step(self, offsets: ConsumerOffsets, *, now_ms: int, timestamp_ms: int) -> CheckStep:
        """Go on with the round, or begin a round if one is due; call it at every tick."""
        if self._due_ms is None:
            self._due_ms = now_ms + self.config.transaction_check_interval_ms
        if self._round is None and now_ms >= self._due_ms:
            self._due_ms = now_ms + self.config.transaction_check_interval_ms
            self._round = self._begin(offsets)
        put_away = 0
        if self._round is not None:
            self._go_on(self._round, timestamp_ms)
            put_away, self._round.put_away = self._round.put_away, 0
            decided = self._decided.take(self._store.flushed_position)
            if decided is not None:
                self._commit(decided, offsets)
                self._round = None
        return CheckStep(self._take_readable(), put_away)

    def pass_time(self, duration_ms: int) -> None:
        """Begin the next round sooner, as if the time had passed."""
        if self._due_ms is not None:
            self._due_ms -= duration_ms

    def note_end(self, first: int) -> None:
        """Note that a message, by its first offset, has ended: its producer is not asked now."""
        self._to_ask.pop(first, None)

    def note_commit(self, first: int) -> None:
        """Note that a message, by its first offset, was appended to its real topic."""
        self._committed[first] = None
        if len(self._committed) > COMMITTED_MAX:
            self._committed.popitem(last=False)

    def is_committed(self, first: int) -> bool:
        """Return whether a message, by its first offset, is known to be in its real topic."""
        return first in self._committed

    def forget_commits(self) -> None:
        """Forget all commits: a failed write has lost appended messages."""
        self._committed.clear()

    def read(self, half_offset: int) -> Record | None:
        """Return the half message at an offset, None if no message can be read there."""
        return self._store.records.read_message(TRANS_HALF_TOPIC, 0, half_offset)

    def _begin(self, offsets: ConsumerOffsets) -> _Round:
        half_end = self._store.queues.max_offset(TRANS_HALF_TOPIC, 0)
        if self._first_end is None:
            self._first_end = half_end
        op_offset = self._begin_of(offsets, TRANS_OP_HALF_TOPIC)
        return _Round(self._begin_of(offsets, TRANS_HALF_TOPIC), half_end, op_offset, op_offset)

    def _begin_of(self, offsets: ConsumerOffsets, topic: str) -> int:
        """Return the committed offset, or the nearest offset that the topic has."""
        queues = self._store.queues
        low, high = queues.min_offset(topic, 0), queues.max_offset(topic, 0)
        return min(max(offsets.find(TRANSACTION_GROUP, topic, 0) or 0, low), high)

    def _go_on(self, current: _Round, timestamp_ms: int) -> None:
        if not self._decided.is_empty or len(self._to_ask) >= TO_ASK_MAX:
            return
        if not self._read_ops(current):
            return
        unended = unended_bytes = 0
        for _ in range(ENDED_PER_STEP):
            if current.half_offset >= current.half_end:
                self._decided.hold(current, position=self._store.appended_position)
                return
            if unended == UNENDED_PER_STEP or unended_bytes >= UNENDED_BYTES_PER_STEP:
                return
            if current.half_offset not in current.ended:
                unended += 1
                record = self.read(current.half_offset)
                unended_bytes += 0 if record is None else record.size
                if record is not None and not self._decide(current, record, timestamp_ms):
                    current.half_end = current.half_offset
                    continue
            current.half_offset += 1

    def _read_ops(self, current: _Round) -> bool:
        """Read on in the op topic; return whether its end or the round's bound is reached."""
        if len(current.ended) >= ENDED_MAX:
            return True
        found = self._store.queues.get(
            TRANS_OP_HALF_TOPIC,
            0,
            queue_offset=current.op_offset,
            count_max=OPS_PER_STEP,
            bytes_max=_OPS_BYTES_MAX,
        )
        at = 0
        for op_offset in range(current.op_offset, current.op_offset + found.count):
            try:
                record = decode_record(found.records, at)
            except ProtocolError:
                self._store.records.note_damaged(TRANS_OP_HALF_TOPIC, 0, op_offset)
                current.op_offset = op_offset + 1
                return current.op_offset >= found.max_offset
            at += record.size
            # 5.x brokers write the ends of several messages as one op: `12,13,`.
            for text in record.body.decode(errors="replace").split(","):
                ended = read_whole_number(text)
                if ended is not None:
                    current.ended.setdefault(ended, op_offset)
        is_stuck = found.next_offset <= current.op_offset
        current.op_offset = max(found.next_offset, current.op_offset)
        return is_stuck or current.op_offset >= found.max_offset

    def _decide(self, current: _Round, record: Record, timestamp_ms: int) -> bool:
        """Decide on the next half message, which has not been ended; False ends the round."""
        half_offset = current.half_offset
        properties = parse_properties(record.properties)
        first = first_offset(half_offset, properties)
        if first in current.ended or half_offset < self._again.get(first, 0):
            return True
        times = read_whole_number(properties.get(PROPERTY_TRANSACTION_CHECK_TIMES)) or 0
        # A copy has been here longer than its store time says; the producer's clock may be wrong.
        age_ms = timestamp_ms - record.store_timestamp_ms
        waited_ms = age_ms if first == half_offset else timestamp_ms - record.born_timestamp_ms
        if self._is_too_old(age_ms):
            return self._put_away(current, record, first, timestamp_ms)
        if not times and 0 <= waited_ms < self._immunity_ms(properties):
            if PROPERTY_CHECK_IMMUNITY_TIME not in properties:
                return False
            if current.half_end - half_offset <= WAITING_SPAN:
                if current.waiting_offset is None:
                    current.waiting_offset = half_offset
                return True
            is_asked = False
        elif times >= self.config.transaction_check_max:
            return self._put_away(current, record, first, timestamp_ms)
        else:
            is_asked = True
            properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(times + 1)
        properties[PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET] = str(first)
        again = replace(record, properties=encode_properties(properties))
        result = self._store.put(again, timestamp_ms=timestamp_ms)
        if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
            return False
        if result.status is not PutStatus.PUT_OK:
            # The message's properties leave no room for the two further ones.
            return self._put_away(current, record, first, timestamp_ms)
        self._note_again(first, result.queue_offset)
        if is_asked:
            self._to_ask[first] = result.queue_offset
        return True

    def _put_away(self, current: _Round, record: Record, first: int, timestamp_ms: int) -> bool:
        """Put a half message into TRANS_CHECK_MAX_TIME_TOPIC; return whether the store could."""
        record.topic = TRANS_CHECK_MAX_TIME_TOPIC
        waited_at = TRANS_HALF_TOPIC, 0, current.half_offset
        status = put_moved(self._store, record, waited_at=waited_at, timestamp_ms=timestamp_ms)
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            return False
        current.put_away += status is PutStatus.PUT_OK
        self._note_again(first, current.half_end)
        return True

    def _note_again(self, first: int, offset: int) -> None:
        if len(self._again) < AGAIN_MAX:
            self._again[first] = offset

    def _is_too_old(self, age_ms: int) -> bool:
        """Return whether a half message may expire before its producer answers.

        Source: fileReservedTime in TransactionalMessageServiceImpl.needSkip.
        """
        hours = self.config.retention.retention_hours
        if hours is None:
            hours = RESERVED_HOURS if self._store.is_expiring else 0
        return 0 < hours * HOUR_MS < age_ms

    def _immunity_ms(self, properties: dict[str, str]) -> int:
        """Return how old a message must be before its producer is asked."""
        seconds = read_whole_number(properties.get(PROPERTY_CHECK_IMMUNITY_TIME))
        if seconds is None:
            return self.config.transaction_timeout_ms
        return min(seconds * 1_000, IMMUNITY_MS_MAX)

    def _commit(self, current: _Round, offsets: ConsumerOffsets) -> None:
        """Commit the progress in both topics; in the op topic up to the first end still needed."""
        half_offset = current.half_offset
        if current.waiting_offset is not None:
            half_offset = current.waiting_offset
        self._again = {first: at for first, at in self._again.items() if at >= half_offset}
        op_offset = current.op_offset
        if self._first_end is not None and half_offset < self._first_end:
            op_offset = current.op_begin
        for ended, at in current.ended.items():
            if ended >= half_offset or ended in self._again:
                op_offset = min(op_offset, at)
                break
        for topic, offset in ((TRANS_HALF_TOPIC, half_offset), (TRANS_OP_HALF_TOPIC, op_offset)):
            if offset != (offsets.find(TRANSACTION_GROUP, topic, 0) or 0):
                offsets.commit(TRANSACTION_GROUP, topic, 0, offset=offset)

    def _take_readable(self) -> list[int]:
        """Take the copies to ask about that can be read: an outcome refers to a stored copy."""
        end = self._store.queues.max_offset(TRANS_HALF_TOPIC, 0)
        ready = [first for first, offset in self._to_ask.items() if offset < end]
        return [self._to_ask.pop(first) for first in ready[:UNENDED_PER_STEP]]


def first_offset(half_offset: int, properties: Mapping[str, str]) -> int:
    """Return the first offset of a half message, which its later copies name."""
    first = read_whole_number(properties.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET))
    return half_offset if first is None else first
